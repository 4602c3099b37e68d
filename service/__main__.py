"""`python -m service` runs the command `noria`."""

from service.cli import main

main()
