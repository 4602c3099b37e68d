"""The tokenizer of a model directory: `tokenizer.json`, else `tokenizer.model*`."""

import re
from importlib.resources.abc import Traversable

from model.errors import ModelError
from model.tokenizers.base import Tokenizer
from model.tokenizers.slicing import Slicing

_SENTENCEPIECE = re.compile(r"tokenizer\.model(\.v(\d+))?(m\d+)?")


def load_tokenizer(directory: Traversable, slicing: Slicing | None = None) -> Tokenizer:
    """The tokenizer of a model directory. `slicing` is for long texts; None encodes them whole.

    Raises ModelError, one line, for a directory without a tokenizer that can be read.
    """
    if (directory / "tokenizer.json").is_file():
        from model.tokenizers.huggingface import HuggingFaceTokenizer

        return HuggingFaceTokenizer.load(directory, slicing)
    if path := sentencepiece_file(directory):
        from model.tokenizers.sentencepiece import SentencePieceTokenizer

        return SentencePieceTokenizer(path, slicing)
    if (directory / "tekken.json").is_file():
        raise ModelError(
            f"{directory.name!r} has only a tekken.json tokenizer; Noria supports tokenizer.json and tokenizer.model"
        )
    raise ModelError(f"{directory.name!r} has no tokenizer: expected tokenizer.json or tokenizer.model")


def sentencepiece_file(directory: Traversable) -> Traversable | None:
    """The newest of `tokenizer.model.v3` and the like, else `tokenizer.model`; None if there is neither."""
    found = [(match, path) for path in directory.iterdir() if (match := _SENTENCEPIECE.fullmatch(path.name))]
    return max(found, key=lambda item: (int(item[0][2] or 0), item[0][0]))[1] if found else None
