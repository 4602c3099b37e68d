"""`python -m service` runs the command `noria`."""

try:
    from service.cli import main
except KeyboardInterrupt:  # Ctrl-C while Python imports
    raise SystemExit(130) from None

main()
