"""`noria serve` as torchrun starts it for a rank other than 0: no HTTP, only the process of this rank."""

import json
import logging
import signal
import subprocess
from typing import Any

from model.checkpoint.resolve import resolve
from model.machine.child import ending, start_python
from model.ranks.world import Exit, World
from service import logs
from service.generation.startup import check_layout, runner_options
from service.settings import Settings

log = logging.getLogger("noria.engine")


class RankProcess:
    """The process of one rank, again and again, until SIGTERM or SIGINT."""

    def __init__(self, options: str) -> None:
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.ends = False

    def run(self) -> int:
        """Run one process; returns its exit code."""
        self._process = start_python("model.ranks", self._options)
        if self.ends:
            self._process.kill()
        return self._process.wait()

    def end(self, *_: Any) -> None:
        self.ends = True
        if self._process is not None:
            self._process.kill()


def supervise(settings: Settings, world: World) -> int:
    """Run this rank, and again whenever rank 0 has lost its engine; returns the exit code.

    It ends at SIGTERM, when the service ends in good order, or when rank 0 cannot be reached for `MEETING_SECONDS` or
    refuses this rank.
    """
    logs.configure(settings.log_format, settings.level(), f"rank {world.rank}")
    directory = resolve(settings.model, revision=settings.revision)
    check_layout(settings, directory)
    rank = RankProcess(json.dumps(runner_options(settings, directory)))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, rank.end)
    log.info("it joins rank 0 at %s", world.address)
    while (code := rank.run()) not in (Exit.OVER, Exit.REFUSED) and not rank.ends:
        log.warning("its process has ended (%s); it joins rank 0 again", ending(code))
    return 0 if rank.ends else code
