"""Python where packages are not installed."""


def uninstalled(*names: str) -> str:
    """The first lines of a program, after which an import of these packages fails as if they were not installed."""
    return f"""
import sys
class Uninstalled:
    @staticmethod
    def find_spec(name, *_):
        if name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Uninstalled)
"""
