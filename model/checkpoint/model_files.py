"""The files of a model, whether it is a directory or a GGUF file. No torch."""

from importlib.resources.abc import Traversable
from pathlib import Path


def is_gguf(model: Traversable) -> bool:
    """Return whether a model is a GGUF file."""
    return model.name.lower().endswith(".gguf") and model.is_file()


def model_files(model: Traversable) -> Traversable:
    """Return the directory of a model. That of a GGUF file is in memory: configuration and tokenizer, but no weights.

    Raises ModelError for a GGUF file that is damaged or not supported.
    """
    if not isinstance(model, Path) or not is_gguf(model):
        return model
    from model.checkpoint.gguf.open import gguf_files  # numpy and tokenizers, which a directory does not need

    return gguf_files(model)
