"""Noria's version."""


def version() -> str:
    """Return the version of the installed package; "unknown" for a checkout that was never installed."""
    from importlib import metadata

    try:
        return metadata.version("noria")
    except metadata.PackageNotFoundError:
        return "unknown"
