"""`noria` and `python -m service`: the command line.

`serve` starts the zygote before anything else is imported or read, because that process takes longest.
"""

import os
import sys
from contextlib import suppress


def main() -> None:
    try:
        zygote = None
        if _needs_engine():
            from service.engine.supervision.launch import NETWORK, launch

            with suppress(OSError):  # whoever needs it finds out why
                zygote = launch(NETWORK)
        from service import cli
    except KeyboardInterrupt:  # Ctrl-C while Python imports
        raise SystemExit(130) from None
    cli.main(zygote)


def _needs_engine() -> bool:
    """Return whether this process serves: not for a page of help, nor as a rank of torchrun's other than 0."""
    serves = sys.argv[1:2] == ["serve"] and not {"-h", "--help"} & {*sys.argv}
    return serves and os.environ.get("RANK", "0") == "0"


if __name__ == "__main__":
    main()
