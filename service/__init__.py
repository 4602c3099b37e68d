"""The HTTP service. Never imports torch: tensors live in the engine process."""


def version() -> str:
    """Of the installed package, as pip shows it; "unknown" when run from a checkout that was never installed."""
    from importlib import metadata

    try:
        return metadata.version("noria")
    except metadata.PackageNotFoundError:
        return "unknown"
