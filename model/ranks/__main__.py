"""`python -m model.ranks [OPTIONS]`: the process of a rank other than 0 that torchrun starts through `noria serve`.

Its numbers are in the environment (world.py). OPTIONS are the runner's, as JSON.
"""

import json
import signal
import sys

from model.machine.child import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as the engine: who started us ends us
    from model.ranks.follow import run
    from model.ranks.world import from_environment

    world = from_environment()
    assert world is not None, "noria serve starts this"
    run(world, json.loads(sys.argv[1]))
