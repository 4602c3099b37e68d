"""`noria` and `python -m service`: the command line.

`serve` starts the engine process before anything else is imported or read, because that process takes longest.
"""

import gc
import sys


def main() -> None:
    """Run the command; exits."""
    try:
        engine = None
        if sys.argv[1:2] == ["serve"] and "--help" not in sys.argv:
            from service.engine.supervision.process import try_to_launch

            gc.disable()  # until everything is imported: what imports make is no garbage
            engine = try_to_launch()
        from service import cli
    except KeyboardInterrupt:  # Ctrl-C while Python imports
        raise SystemExit(130) from None
    cli.main(engine)


if __name__ == "__main__":
    main()
