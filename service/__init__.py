"""The HTTP service. It never imports torch: tensors are in the engine process."""

from model.version import version

__all__ = ["version"]
