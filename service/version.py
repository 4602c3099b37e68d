"""The version of the installed package."""

from importlib import metadata


def version() -> str:
    """As pip shows it; "unknown" when run from a checkout that was never installed."""
    try:
        return metadata.version("noria")
    except metadata.PackageNotFoundError:
        return "unknown"
