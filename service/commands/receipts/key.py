"""`noria receipts key`: make the key that signs receipts, or show its public part."""

import os
from pathlib import Path
from typing import Annotated

import typer

from service.receipts.keys import make_key, read_key

receipts = typer.Typer(help="The key that signs receipts.", rich_markup_mode=None)


@receipts.command()
def key(file: Annotated[Path, typer.Argument(help="File of the private key.", show_default=False)]) -> None:
    """Print the public key of FILE, in base64. Without this file, make it first.

    FILE has mode 0600 and is for noria serve --receipt-key. Give the public key to those who verify receipts.
    """
    found = read_key(file) if os.access(file, os.F_OK) else make_key(file)
    typer.echo(found.public)
