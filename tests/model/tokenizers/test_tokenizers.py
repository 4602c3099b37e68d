"""Tokenizers against the libraries that define them: `tokenizers`, sentencepiece, transformers."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from model.checkpoint.resolve import resolve
from model.checkpoint.words import LLAMA3_WORDS, TEKKEN_WORDS
from model.errors import ModelError
from model.tokenizers.base import Tokenizer
from model.tokenizers.huggingface import HuggingFaceTokenizer
from model.tokenizers.load import load_tokenizer
from tests.gguf_models import write_tokenizer
from tests.model.tokenizers.kinds import trained

ENCODING = {"add_bos": False, "parse_control": True}


@pytest.fixture(scope="module")
def embedded() -> Path:
    return resolve("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def byte_level(embedded: Path) -> Tokenizer:
    return load_tokenizer(embedded)


def test_other_threads_run_while_a_long_text_is_encoded(byte_level: Tokenizer) -> None:
    thread = threading.Thread(target=byte_level.encode, args=["lorem ipsum " * 2**17], kwargs=ENCODING)
    thread.start()
    pauses = 0
    while thread.is_alive():
        time.sleep(0.001)
        pauses += 1
    assert pauses > 10


def test_the_gguf_tokenizer_splits_digits_as_the_published_one(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("x 2024", add_bos=True, parse_control=True)
    assert [byte_level.name(token) for token in ids] == ["x", " ", "2", "0", "2", "4"]


def _hostile(**options: bool) -> HuggingFaceTokenizer:
    """A vocabulary whose own merges (or whole-word lookup) spell its control token."""
    vocab = {"<": 0, "/": 1, "s": 2, ">": 3, "</": 4, "s>": 5, "</s>": 6, "a": 7}
    merges = [("<", "/"), ("s", ">"), ("</", "s>")]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, **options))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return HuggingFaceTokenizer(tokenizer, bos=None, eos="</s>")


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_merges_that_spell_a_control_token_are_not_used(ignore_merges: bool) -> None:
    tokenizer = _hostile(ignore_merges=ignore_merges)
    assert tokenizer.encode("</s>", add_bos=False, parse_control=True) == [6]
    assert tokenizer.encode("</s>", add_bos=False, parse_control=False) == [4, 5]
    assert tokenizer.encode("a</s>", add_bos=False, parse_control=False) == [7, 4, 5]


def test_added_tokens_that_are_not_special_are_text() -> None:
    """This holds also after a special token that is not in the model's own vocabulary."""
    inner = tokenizers.Tokenizer.from_str(_hostile()._tokenizer.to_str())
    inner.add_tokens([AddedToken("<eot>", special=True), AddedToken("<tool>", special=False)])
    mine = HuggingFaceTokenizer(inner, bos=None, eos="</s>")
    ids = mine.encode("a<tool>", add_bos=False, parse_control=False)
    assert ids == inner.encode("a<tool>").ids == [7, 9]
    assert mine.decode(ids) == inner.decode(ids) == "a<tool>"


def test_begin_token_where_the_pipeline_adds_one(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_special_tokens(["<s>", "</s>"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "</s>"}))
    inner.save(str(tmp_path / "tokenizer.json"))
    without = load_tokenizer(tmp_path)
    assert (without.bos_id, without.eos_id) == (1, 2)
    assert without.encode("a", add_bos=True, parse_control=True) == [0]
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    inner.save(str(tmp_path / "tokenizer.json"))
    with_bos = load_tokenizer(tmp_path)
    assert with_bos.encode("a", add_bos=True, parse_control=True) == [1, 0]
    assert with_bos.encode("a", add_bos=True, parse_control=False) == [1, 0]
    assert with_bos.encode("a", add_bos=False, parse_control=True) == [0]


def test_llama3_pipeline_from_gguf_metadata(tmp_path: Path) -> None:
    """Whole words are looked up before merges, and a begin token is added: both as the published tokenizer does."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "Ġabc", "ab", "<|begin|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 258 + [3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 258,
        "tokenizer.ggml.add_bos_token": True,
    }
    write_tokenizer(metadata, tmp_path)
    mine = load_tokenizer(tmp_path)

    def names(text: str) -> list[str]:
        return [mine.name(token) for token in mine.encode(text, add_bos=True, parse_control=True)]

    assert names(" abc") == ["<|begin|>", " abc"]
    assert names("abc 1234") == ["<|begin|>", "ab", "c", " ", "1", "2", "3", "4"]
    library = AutoTokenizer.from_pretrained(tmp_path)
    assert library("abc")["input_ids"] == mine.encode("abc", add_bos=True, parse_control=True)


def _refused(directory: Path, change: Callable[[Path], object]) -> str:
    change(directory)
    with pytest.raises(ModelError) as caught:
        load_tokenizer(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "expected tokenizer.json, tekken.json or tokenizer.model" in _refused(tmp_path, lambda path: None)
    broken = _refused(tmp_path, lambda path: (path / "tokenizer.model").write_bytes(b"x"))
    assert broken == "tokenizer.model is not a readable SentencePiece model; download it again"
    assert "tokenizer.json cannot be read: " in _refused(
        tmp_path, lambda path: (path / "tokenizer.json").write_text("{")
    )
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    assert "WordLevel model; Noria supports BPE" in _refused(
        tmp_path, lambda path: words.save(str(path / "tokenizer.json"))
    )
    pieces = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    pieces.normalizer, pieces.decoder = normalizers.Lowercase(), decoders.WordPiece()
    assert "decoder 'WordPiece'" in _refused(tmp_path, lambda path: pieces.save(str(path / "tokenizer.json")))


@pytest.mark.parametrize(
    ("pattern", "control", "doubtful"),
    [(LLAMA3_WORDS, "[INST]", True), (TEKKEN_WORDS, "[INST]", False), (LLAMA3_WORDS, "<|eot_id|>", False)],
)
def test_the_old_words_of_mistrals_tokenizers_are_named(
    pattern: str, control: str, doubtful: bool, tmp_path: Path
) -> None:
    pipeline = trained(pattern)
    pipeline.add_special_tokens([AddedToken(control, special=True, normalized=False)])
    pipeline.save(str(tmp_path / "tokenizer.json"))
    doubt = HuggingFaceTokenizer.load(tmp_path).doubt
    assert (doubt is not None) == doubtful
    assert not doubtful or str(doubt).startswith("the tokenizer divides a text into the words of Llama 3")


def test_a_tokenizer_that_transformers_has_fixed_is_not_named(tmp_path: Path) -> None:
    """It takes vocabularies of more than 100,000 tokens for Mistral's. Llama's words divide "'The" after the T."""
    pipeline = trained(LLAMA3_WORDS)
    pipeline.model = models.BPE(_with_fillers(json.loads(pipeline.to_str())["model"]["vocab"]), [("T", "h")])
    pipeline.add_special_tokens([AddedToken("[INST]", special=True, normalized=False)])
    pipeline.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral3", "transformers_version": "4.50.0"}))
    fixed = PreTrainedTokenizerFast.from_pretrained(tmp_path, fix_mistral_regex=True)
    wrong = HuggingFaceTokenizer.load(tmp_path)
    fixed.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    right, text = HuggingFaceTokenizer.load(tmp_path), "'The 12345 words"
    assert (wrong.doubt is None, right.doubt) == (False, None)
    assert right.encode(text, **ENCODING) == fixed.encode(text) != wrong.encode(text, **ENCODING)


def _with_fillers(vocab: dict[str, int]) -> dict[str, int]:
    names = ["Th", *(f"filler {number}" for number in range(100_000))]
    return vocab | {name: token for token, name in enumerate(names, len(vocab)) if name not in vocab}


def test_pipelines_without_words_are_not_named(byte_level: HuggingFaceTokenizer) -> None:
    assert byte_level.doubt is None
    assert _hostile().doubt is None
