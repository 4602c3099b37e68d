"""Tokenizers of every kind as directories, each with the library that defines it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import tokenizers
from sentencepiece import SentencePieceProcessor
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from model.checkpoint.embedded import embedded_gguf
from model.checkpoint.words import LLAMA3_WORDS, TEKKEN_WORDS
from tests.gguf_models import extracted, write_tokenizer
from tests.model.tokenizers.tekken_files import SPECIAL, VERSIONS, tekken_content, write_tekken
from tests.model.tokenizers.vocabularies import DATA, V1, gguf_metadata

SENTENCEPIECE = sorted(path for path in DATA.iterdir() if ".model" in path.name)
TRAINING = Path(__file__).read_text() + "Ünïcödé dĕŕ Größe, 日本語の文章 and don't we'll 12 345 x² "


class Library(Protocol):
    """The library that defines a tokenizer: ids of a text in which nothing is special, and text of any ids.

    `begin` has the begin token where texts have one.
    """

    begin: list[int]

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...


@dataclass(frozen=True)
class Kind:
    """A tokenizer: what writes its files into an empty directory, and what reads them with the library."""

    write: Callable[[Path], Path]
    library: Callable[[Path], Library]


class Mistral:
    """mistral-common."""

    def __init__(self, directory: Path) -> None:
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

        (file,) = (path for path in directory.iterdir() if path.name.startswith(("tekken", "tokenizer.model")))
        self._inner: Any = MistralTokenizer.from_file(file).instruct_tokenizer.tokenizer
        self.begin = [self._inner.bos_id]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._inner.encode(text, bos=False, eos=False)
        return ids

    def decode(self, ids: list[int]) -> str:
        return str(self._inner.decode(ids))

    def special(self, name: str) -> int:
        return int(self._inner.get_special_token(name))

    def word(self, text: str) -> list[int]:
        """Ids of a text that is one word of a `tekken.json`."""
        ranks: list[int] = self._inner._model._encode_single_piece(text)
        return [self._inner.num_special_tokens + rank for rank in ranks]


class HuggingFace:
    """The `tokenizers` library."""

    def __init__(self, directory: Path) -> None:
        self._inner = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.begin = list(self._inner.encode("").ids)

    def encode(self, text: str) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._inner.decode(ids))


class SentencePiece:
    """The sentencepiece library with Mistral's first model, of which a `tokenizer.json` was made."""

    def __init__(self, directory: Path) -> None:
        self._inner = SentencePieceProcessor(model_file=str(V1))
        self.begin = [self._inner.bos_id()]

    def encode(self, text: str) -> list[int]:
        return list(self._inner.encode(text))

    def decode(self, ids: list[int]) -> str:
        return str(self._inner.decode(ids))


class Metaspace(SentencePiece):
    """The pieces of that model, but nothing is added before a text that begins with a space.

    The `tokenizers` library decodes all bytes beside a broken character as broken ones; sentencepiece does not.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._encoder = HuggingFace(directory)

    def encode(self, text: str) -> list[int]:
        return self._encoder.encode(text)


def embedded(directory: Path) -> Path:
    return extracted(embedded_gguf(), directory)


def sentencepiece(file: Path, directory: Path) -> Path:
    shutil.copy(file, directory / f"tokenizer.model{file.name.partition('.model')[2]}")
    return directory


def byte_fallback(directory: Path) -> Path:
    (directory / "tokenizer.json").write_text(_byte_fallback()[0])
    (directory / "tokenizer_config.json").write_text(_byte_fallback()[1])
    return directory


@cache
def _byte_fallback() -> tuple[str, str]:
    with TemporaryDirectory() as name:
        write_tokenizer(gguf_metadata(V1), Path(name))
        tokenizer, config = (Path(name, f"{kind}.json").read_text() for kind in ("tokenizer", "tokenizer_config"))
    return tokenizer, config


def metaspace(directory: Path) -> Path:
    """The same tokens in the newer form of transformers."""
    path = byte_fallback(directory) / "tokenizer.json"
    spec = json.loads(path.read_text())
    marks = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    path.write_text(json.dumps(spec | {"normalizer": None, "pre_tokenizer": marks}))
    return directory


def of_words(pattern: str, directory: Path) -> Path:
    """Byte-level BPE with this pattern of words."""
    trained(pattern).save(str(directory / "tokenizer.json"))
    return directory


def trained(pattern: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TRAINING], trainer)
    return tokenizer


def tekken(version: str, directory: Path, **options: Any) -> Path:
    return write_tekken(directory, version, **options).parent


def old_tekken(directory: Path) -> Path:
    """A file without a list of special tokens, as the first ones."""
    content = {key: value for key, value in tekken_content("v3").items() if key != "special_tokens"}
    (directory / "tekken.json").write_text(json.dumps(content))
    return directory


def shipped_tekken(name: str, directory: Path) -> Path:
    shutil.copy(DATA / name, directory / "tekken.json")
    return directory


def shuffled_tekken(directory: Path) -> Path:
    """50 special tokens: those of v13, in reverse order."""
    return tekken("v13", directory, special=SPECIAL["v13"][::-1], n_special=50)


def converted_tekken(directory: Path) -> Path:
    """The `tokenizer.json` that transformers makes of a `tekken.json`."""
    from transformers.integrations.mistral.tokenizer import MistralConverter

    path = write_tekken(directory, "v13")
    MistralConverter(str(path)).converted().save(str(directory / "tokenizer.json"))
    path.unlink()
    return directory


KINDS: dict[str, Kind] = {
    "embedded": Kind(embedded, HuggingFace),
    **{file.name: Kind(partial(sentencepiece, file), Mistral) for file in SENTENCEPIECE},
    "byte fallback": Kind(byte_fallback, SentencePiece),
    "metaspace": Kind(metaspace, Metaspace),
    "words of Llama 3": Kind(partial(of_words, LLAMA3_WORDS), HuggingFace),
    "words of Tekken": Kind(partial(of_words, TEKKEN_WORDS), HuggingFace),
    "tekken_240911.json": Kind(partial(shipped_tekken, "tekken_240911.json"), Mistral),
    **{f"tekken {version}": Kind(partial(tekken, version), Mistral) for version in VERSIONS},
    "tekken without a list": Kind(old_tekken, Mistral),
    "tekken in another order": Kind(shuffled_tekken, Mistral),
    "converted tekken": Kind(converted_tekken, HuggingFace),
}
"""Tokenizers of every kind and version."""
PIPELINES = (
    *("embedded", "tokenizer.model.v1", "mistral_instruct_tokenizer_241114.model.v7", "byte fallback", "metaspace"),
    *("words of Llama 3", "tekken_240911.json", "tekken in another order", "converted tekken"),
)
"""Those that differ in more than their control tokens."""
