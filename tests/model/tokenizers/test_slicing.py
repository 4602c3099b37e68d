"""Texts encoded in slices, against the same texts encoded whole, for every kind of tokenizer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from model.tokenizers import huggingface
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from model.tokenizers.slicing import Slicing
from tests.gguf_models import write_tokenizer
from tests.model.tokenizers.kinds import KINDS, PIPELINES, byte_fallback, sliced, trained
from tests.model.tokenizers.vocabularies import V1, gguf_metadata

ARTICLE = Path(__file__).read_text() + "Ünïcödé dĕŕ Größe, 日本語の文章 and don't we'll 12 345 x² "


@pytest.fixture(scope="module", params=PIPELINES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer of whole texts, and one that cuts wherever it can."""
    directory = KINDS[request.param].write(tmp_path_factory.mktemp("tokenizer"))
    tokenizer = load_tokenizer(directory)
    return tokenizer, sliced(tokenizer, Slicing(3))


PARTS = ["a", "word", "Größe", "7", "2024", "²", "日本語", "é", "e\u0301", "▁", "_", "'s", "don't", ".", "(", "\u00a0"]
PARTS += [" ", "  ", "\n", "\t", "\r\n", "<s>", "[INST]", "<|im_start|>", "🦙", "\u200b", "¨", "ﷺ", "I'm", "/", "x."]
joined = st.lists(st.sampled_from(PARTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=30)
texts = st.builds(str.join, st.sampled_from(["", " ", " ", "  "]), joined)


@settings(deadline=None, max_examples=120)
@given(texts, st.booleans())
def test_the_ids_of_slices_are_those_of_the_whole(pair: tuple[Tokenizer, Tokenizer], text: str, control: bool) -> None:
    whole, cut = (tokenizer.encode(text, add_bos=True, parse_control=control) for tokenizer in pair)
    assert cut == whole


def test_a_long_text_is_encoded_in_slices(pair: tuple[Tokenizer, Tokenizer]) -> None:
    """The tokenizer pauses between them, and an error there ends its work."""
    pauses: list[int] = []
    whole = pair[0]
    slicing: Any = Slicing(100, lambda: pauses.append(0))
    text = ARTICLE * 3
    expected = whole.encode(text, add_bos=False, parse_control=True)
    assert sliced(whole, slicing).encode(text, add_bos=False, parse_control=True) == expected
    assert len(text) // 300 < len(pauses) <= len(text) // 100

    def leave() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sliced(whole, Slicing(100, leave)).encode(text, add_bos=False, parse_control=True)


def test_a_long_text_without_a_place_to_cut_is_encoded_aside(pair: tuple[Tokenizer, Tokenizer]) -> None:
    asides: list[int] = []

    def aside(call: Callable[[], list[int]]) -> list[int]:
        asides.append(0)
        return call()

    whole = pair[0]
    text = "word " * 30 + "a" * 300 + " word" * 30
    expected = whole.encode(text, add_bos=False, parse_control=True)
    assert sliced(whole, Slicing(20, aside=aside)).encode(text, add_bos=False, parse_control=True) == expected
    assert asides == [0]


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
    assert _changed(tmp_path, **parts)._cut is None


def test_an_added_token_that_could_touch_a_cut_encodes_whole_texts(tmp_path: Path) -> None:
    inner = trained(huggingface._WORDS[0])
    for token in (AddedToken("<a b>"), AddedToken("word"), AddedToken("<a>", rstrip=True)):
        inner = trained(huggingface._WORDS[0])
        inner.add_tokens([AddedToken("<kept>")])
        inner.save(str(tmp_path / "tokenizer.json"))
        assert load_tokenizer(tmp_path, Slicing())._cut is not None  # type: ignore[attr-defined]
        inner.add_tokens([token])
        inner.save(str(tmp_path / "tokenizer.json"))
        assert load_tokenizer(tmp_path, Slicing())._cut is None  # type: ignore[attr-defined]


def test_pieces_with_a_space_inside_encode_whole_texts(tmp_path: Path) -> None:
    metadata = gguf_metadata(V1)
    metadata["tokenizer.ggml.tokens"][-1] = "of▁the"
    write_tokenizer(metadata, tmp_path)
    assert load_tokenizer(tmp_path, Slicing())._cut is None  # type: ignore[attr-defined]
