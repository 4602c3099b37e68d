"""A server whose steps take as long as a test needs: `python -m tests.e2e.paced FLAGS` is `noria serve` with `runner`.

While the file that the variable `PACE` names exists, no step ends within `STEP_SECONDS`. A long answer then lasts for a
minute on every machine, and what a test does meanwhile happens before its end. No number of tokens does that: a machine
that is several times as fast ends it early, and one that stands still for a moment ends it before the test sees it.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.engine.supervision.process import EngineProcess
from service.engine.worker import import_callable

PACE = "PACE_OF_STEPS"
STEP_SECONDS = 0.03
HERE = "tests.e2e.paced:runner:"


def runner(*original: str) -> Callable[..., Any]:
    """What creates the runner that `original` names, in its parts, with paced steps."""
    create = import_callable(":".join(original))
    file = Path(os.environ[PACE])

    def paced(progress: Callable[[str, float], None], **options: Any) -> Any:
        made: Any = create(progress, **options)
        launch = made.launch

        def launch_paced(batch: Any) -> Any:
            if file.exists():
                time.sleep(STEP_SECONDS)
            return launch(batch)

        made.launch = launch_paced
        return made

    return paced


@contextmanager
def slow(file: Path) -> Iterator[None]:
    """Until the block ends no step takes less than `STEP_SECONDS`. `file` is the one that `PACE` names."""
    file.touch()
    try:
        yield
    finally:
        file.unlink()


def install() -> None:
    """From now on the engines that this process starts are paced."""
    original = EngineProcess.__init__

    def init(self: EngineProcess, runner: str, *arguments: Any) -> None:
        original(self, HERE + runner, *arguments)

    engine: Any = EngineProcess
    engine.__init__ = init


if __name__ == "__main__":
    from service.__main__ import main

    install()
    sys.argv[1:1] = ["serve"]
    main()
