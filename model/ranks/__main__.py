"""`python -m model.ranks [OPTIONS]`: the process of a rank other than 0. Its numbers are in the environment (world.py).

OPTIONS are the runner's, as JSON, where the rank has a command line of its own: torchrun's. Else it takes rank 0's.
"""

import json
import os
import signal
import sys
from typing import NoReturn

from model.machine.child import die_with_parent, name_process


def main() -> NoReturn:
    """Run a rank and never return: threads of torch.distributed may hang in their end."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as the engine: rank 0, or who started us, ends us
    from model.ranks.world import from_environment

    world = from_environment()
    assert world is not None, "rank 0 or noria serve starts this"
    name_process(f"noria-rank-{world.rank}")
    from model.ranks.follow import follow

    os._exit(follow(world, json.loads(sys.argv[1]) if sys.argv[1:] else None))


if __name__ == "__main__":
    main()
