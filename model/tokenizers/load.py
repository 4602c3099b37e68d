"""The tokenizer of a model directory: the file that defines it, and its reader."""

import re
from importlib.resources.abc import Traversable
from pathlib import Path

from model.checkpoint.files import layout
from model.checkpoint.model_files import model_files
from model.errors import ModelError
from model.tokenizers.base import Tokenizer
from model.tokenizers.roles import Roles, read_roles

TEKKEN, HUGGINGFACE = "tekken.json", "tokenizer.json"
_SENTENCEPIECE = re.compile(r"tokenizer\.model(\.v(\d+))?(m\d+)?")


def load_tokenizer(directory: Traversable, roles: Roles | None = None) -> Tokenizer:
    """Load the tokenizer of a model directory or GGUF file, with the roles that its files give to its tokens.

    Raises ModelError, one line, for a directory without a tokenizer that can be read.
    """
    directory = model_files(directory)
    path = tokenizer_file(directory)
    if path is None:
        raise ModelError(f"{directory.name!r} has no tokenizer: expected {HUGGINGFACE}, {TEKKEN} or tokenizer.model")
    if path.name == HUGGINGFACE:
        from model.tokenizers.huggingface import HuggingFaceTokenizer

        return HuggingFaceTokenizer.load(directory, roles)
    if path.name == TEKKEN:
        from model.tokenizers.tekken import TekkenTokenizer

        return TekkenTokenizer(path)
    from model.tokenizers.sentencepiece import SentencePieceTokenizer

    return SentencePieceTokenizer(path, roles or read_roles(directory))


def tokenizer_file(directory: Traversable) -> Traversable | None:
    """Return the file that defines the tokenizer; None if there is none.

    `tekken.json` comes first, as in transformers 5: some models have a `tokenizer.json` beside it that divides words in
    another way. A SentencePiece model comes before `tokenizer.json` in Mistral's native format, after it in others.
    """
    tekken, huggingface = _if_file(directory / TEKKEN), _if_file(directory / HUGGINGFACE)
    sentencepiece = _sentencepiece_file(directory)
    others = (sentencepiece, huggingface) if _is_native(directory) else (huggingface, sentencepiece)
    return tekken or others[0] or others[1]


def mistral_tokenizer_file(directory: Traversable) -> Traversable | None:
    """Find the file that mistral-common reads: `tekken.json`, else the newest `tokenizer.model*`, else None."""
    return _if_file(directory / TEKKEN) or _sentencepiece_file(directory)


def _sentencepiece_file(directory: Traversable) -> Traversable | None:
    """Return the newest of `tokenizer.model.v3` and the like, else `tokenizer.model`; None if there is neither."""
    found = [(match, path) for path in directory.iterdir() if (match := _SENTENCEPIECE.fullmatch(path.name))]
    return max(found, key=lambda item: (int(item[0][2] or 0), item[0][0]))[1] if found else None


def _if_file(path: Traversable) -> Traversable | None:
    return path if path.is_file() else None


def _is_native(directory: Traversable) -> bool:
    """Return whether a directory is in Mistral's native format; for an archive, with one tokenizer, any will do."""
    return isinstance(directory, Path) and (directory / "params.json").is_file() and layout(directory) == "native"
