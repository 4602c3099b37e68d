"""Texts encoded in slices, against the same texts encoded whole, for every kind of tokenizer."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from model.checkpoint.gguf.tokenizer import write_tokenizer
from model.checkpoint.resolve import resolve
from model.tokenizers import huggingface
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from model.tokenizers.slicing import Slicing
from tests.model.tokenizers.vocabularies import DATA, V1, gguf_metadata

SENTENCEPIECE = sorted(path for path in DATA.iterdir() if ".model" in path.name)
ARTICLE = Path(__file__).read_text() + "Ünïcödé dĕŕ Größe, 日本語の文章 and don't we'll 12 345 x² "


def embedded(directory: Path) -> Path:
    return resolve("smollm2-135m-instruct")


def sentencepiece(file: Path) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        shutil.copy(file, directory / f"tokenizer.model{file.name.partition('.model')[2]}")
        return directory

    return write


def byte_fallback(directory: Path) -> Path:
    write_tokenizer(gguf_metadata(V1), directory)
    return directory


def metaspace(directory: Path) -> Path:
    """The same tokens in the newer form of transformers."""
    path = byte_fallback(directory) / "tokenizer.json"
    spec = json.loads(path.read_text())
    marks = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    path.write_text(json.dumps(spec | {"normalizer": None, "pre_tokenizer": marks}))
    return directory


def of_words(pattern: str) -> Callable[[Path], Path]:
    """Byte-level BPE with this pattern of words."""

    def write(directory: Path) -> Path:
        trained(pattern).save(str(directory / "tokenizer.json"))
        return directory

    return write


def trained(pattern: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([ARTICLE], trainer)
    return tokenizer


KINDS: dict[str, Callable[[Path], Path]] = {
    "embedded": embedded,
    **{file.name: sentencepiece(file) for file in SENTENCEPIECE},
    "byte fallback": byte_fallback,
    "metaspace": metaspace,
    **{f"words {number}": of_words(pattern) for number, pattern in enumerate(huggingface._WORDS)},
}


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer of whole texts, and one that cuts wherever it can."""
    directory = KINDS[request.param](tmp_path_factory.mktemp("tokenizer"))
    return load_tokenizer(directory), load_tokenizer(directory, Slicing(3))


PARTS = ["a", "word", "Größe", "7", "2024", "²", "日本語", "é", "e\u0301", "▁", "_", "'s", "don't", ".", "(", "\u00a0"]
PARTS += [" ", "  ", "\n", "\t", "\r\n", "<s>", "[INST]", "<|im_start|>", "🦙", "\u200b", "¨", "ﷺ", "I'm", "/", "x."]
joined = st.lists(st.sampled_from(PARTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=30)
texts = st.builds(str.join, st.sampled_from(["", " ", " ", "  "]), joined)


@settings(deadline=None, max_examples=150)
@given(texts, st.booleans())
def test_the_ids_of_slices_are_those_of_the_whole(pair: tuple[Tokenizer, Tokenizer], text: str, control: bool) -> None:
    whole, sliced = (tokenizer.encode(text, add_bos=True, parse_control=control) for tokenizer in pair)
    assert sliced == whole


def test_a_long_text_is_encoded_in_slices(pair: tuple[Tokenizer, Tokenizer]) -> None:
    """The tokenizer pauses between them, and an error there ends its work."""
    pauses: list[int] = []
    sliced = pair[1]
    slicing: Any = Slicing(100, lambda: pauses.append(0))
    sliced._slicing = slicing
    text = ARTICLE * 3
    assert sliced.encode(text, add_bos=False, parse_control=True) == pair[0].encode(
        text, add_bos=False, parse_control=True
    )
    assert len(text) // 300 < len(pauses) <= len(text) // 100

    def leave() -> None:
        raise KeyboardInterrupt

    sliced._slicing = Slicing(100, leave)
    with pytest.raises(KeyboardInterrupt):
        sliced.encode(text, add_bos=False, parse_control=True)
    sliced._slicing = Slicing(3)


def _changed(directory: Path, **parts: Any) -> Any:
    path = byte_fallback(directory) / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    return load_tokenizer(directory, Slicing(3))


SPLIT = {"type": "Split", "pattern": {"Regex": ".* "}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "▁"}},
        {"normalizer": {"type": "Prepend", "prepend": "▁"}},
        {"pre_tokenizer": SPLIT},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [SPLIT, {**SPLIT, "pattern": {"Regex": huggingface._WORDS[0]}}],
            }
        },
        {"truncation": {"max_length": 9, "stride": 0, "direction": "Right", "strategy": "LongestFirst"}},
    ],
    ids=lambda parts: "".join(parts),
)
def test_a_step_that_is_not_known_encodes_whole_texts(parts: dict[str, Any], tmp_path: Path) -> None:
    assert _changed(tmp_path, **parts)._slicing is None


def test_an_added_token_that_could_touch_a_cut_encodes_whole_texts(tmp_path: Path) -> None:
    inner = trained(huggingface._WORDS[0])
    for token in (AddedToken("<a b>"), AddedToken("word"), AddedToken("<a>", rstrip=True)):
        inner = trained(huggingface._WORDS[0])
        inner.add_tokens([AddedToken("<kept>")])
        inner.save(str(tmp_path / "tokenizer.json"))
        assert load_tokenizer(tmp_path, Slicing())._slicing is not None  # type: ignore[attr-defined]
        inner.add_tokens([token])
        inner.save(str(tmp_path / "tokenizer.json"))
        assert load_tokenizer(tmp_path, Slicing())._slicing is None  # type: ignore[attr-defined]


def test_pieces_with_a_space_inside_encode_whole_texts(tmp_path: Path) -> None:
    metadata = gguf_metadata(V1)
    metadata["tokenizer.ggml.tokens"][-1] = "of▁the"
    write_tokenizer(metadata, tmp_path)
    assert load_tokenizer(tmp_path, Slicing())._slicing is None  # type: ignore[attr-defined]
