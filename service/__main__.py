"""`python -m service` is `noria`."""

from service.cli import main

main()
