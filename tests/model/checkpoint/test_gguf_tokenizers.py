"""Tokenizers in GGUF metadata, which the gguf package makes of mistral-common's files. Oracle: mistral-common."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from gguf.vocab import MistralVocab
from hypothesis import given, settings
from hypothesis import strategies as st
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from model.errors import ModelError
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from tests.gguf_models import write_tokenizer
from tests.model.tokenizers.runs import runs
from tests.model.tokenizers.vocabularies import DATA

N_TOKENS = 9000
SENTENCEPIECE = ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3")
TEXTS = (
    "The quick brown Fox's JUMPS over 1234567 dogs,\n\n\tand  doesn't care...   ",
    "def f(x):\n    return x ** 2  # ½ café naïve\r\n\r\n",
    "日本語のテキスト、한국어 텍스트 и русский текст; العربية ١٢٣ हिन्दी",
    "emoji 👩‍👩‍👧‍👦🏳️‍🌈 and \u200b zero\u00a0width\u3000spaces\u2028",
    "[INST] not control [/INST]</s><s>",
    " leading and trailing ",
    "CamelCaseWordsAndHTTPServer/path//to\\file",
)
texts = st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=40)
words = st.lists(st.sampled_from(["the", " The", "ING", "é", "ß", "İ", " ", "\n", "7", "/", "'s", "ǅ", "ʰ", "़"])).map(
    "".join
)


@dataclass(frozen=True)
class Case:
    """A tokenizer that has come through GGUF, mistral-common's own, and the metadata."""

    ours: Tokenizer
    theirs: Callable[[str], list[int]]
    metadata: dict[str, Any]
    control: dict[str, int]


def metadata_of(vocab: MistralVocab) -> dict[str, Any]:
    """What llama.cpp's converter writes for a tokenizer of mistral-common."""
    tokens, scores, kinds = zip(*vocab.all_tokens(), strict=True)
    metadata = {
        "tokenizer.ggml.model": vocab.gguf_tokenizer_model,
        "tokenizer.ggml.tokens": [token.decode() for token in tokens],
        "tokenizer.ggml.scores": list(scores),
        "tokenizer.ggml.token_type": list(map(int, kinds)),
        "tokenizer.ggml.bos_token_id": vocab.bos_id,
        "tokenizer.ggml.eos_token_id": vocab.eos_id,
        "tokenizer.ggml.unknown_token_id": vocab.unk_id,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }
    if vocab.gguf_tokenizer_model == "gpt2":
        metadata["tokenizer.ggml.pre"] = "tekken"
        metadata["tokenizer.ggml.merges"] = vocab.extract_vocab_merges_from_model()
    else:
        metadata["tokenizer.ggml.add_space_prefix"] = True
    return metadata


def tekken(directory: Path) -> Path:
    """The first 9,000 tokens of mistral-common's own vocabulary, 1,000 of them special."""
    file = json.loads((DATA / "tekken_240911.json").read_text())
    file["config"] |= {"default_vocab_size": N_TOKENS, "num_vocab_tokens": N_TOKENS}
    file["vocab"] = file["vocab"][:N_TOKENS]
    (directory / "tekken.json").write_text(json.dumps(file))
    return directory


@pytest.fixture(scope="module", params=["tekken", *SENTENCEPIECE])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    if request.param == "tekken":
        tekken(source)
    else:
        (source / request.param).write_bytes((DATA / request.param).read_bytes())
    vocab = MistralVocab(source)
    library = vocab.tokenizer
    metadata = metadata_of(vocab)
    write_tokenizer(metadata, target)
    special = range(library.num_special_tokens if isinstance(library, Tekkenizer) else library.n_words)
    is_special = library.is_special if isinstance(library, Tekkenizer) else library._model.IsControl
    control = {library.id_to_piece(token): token for token in special if is_special(token)}
    return Case(load_tokenizer(target), lambda text: library.encode(text, bos=False, eos=False), metadata, control)


@settings(deadline=None, max_examples=60)
@given(text=texts | words)
def test_ids_are_those_of_mistral_common(case: Case, text: str) -> None:
    assert case.ours.encode(text, add_bos=False, parse_control=False) == case.theirs(text)


def test_runs_have_the_ids_of_mistral_common(case: Case) -> None:
    for text in runs():
        assert case.ours.encode(text, add_bos=False, parse_control=False) == case.theirs(text), (text[:3], len(text))


def test_periodic_texts_have_the_ids_of_mistral_common(case: Case) -> None:
    """Only in these do two pairs of one piece overlap."""
    random = Random(0)
    for _ in range(1500):
        unit = "".join(random.choices("abehlo =-.\n", k=random.randint(1, 4)))
        text = "".join(random.choice([unit * random.randint(1, 9), "foo ", "  ", "x"]) for _ in range(5))
        assert case.ours.encode(text, add_bos=False, parse_control=False) == case.theirs(text), text


def test_ids_of_whole_texts(case: Case) -> None:
    for text in (*TEXTS, "", " ".join(TEXTS) * 20):
        assert case.ours.encode(text, add_bos=False, parse_control=False) == (case.theirs(text) if text else [])


def test_control_tokens_are_those_of_mistral_common(case: Case) -> None:
    """Each is one token where control tokens are read, and never one where they are not."""
    assert case.control.items() <= case.ours.control.items()
    assert set(case.ours.control.values()) - set(case.control.values()) <= {
        case.metadata["tokenizer.ggml.unknown_token_id"]
    }
    assert (
        case.ours.bos_id
        == case.metadata["tokenizer.ggml.bos_token_id"]
        == case.ours.encode("a", add_bos=True, parse_control=False)[0]
    )
    assert case.ours.eos_id == case.metadata["tokenizer.ggml.eos_token_id"]
    everything = "".join(case.control)
    ids = case.ours.encode(everything, add_bos=False, parse_control=True)
    assert list(case.control.values()) == [token for token in ids if token in case.control.values()]
    plain = case.ours.encode(everything, add_bos=False, parse_control=False)
    assert set(plain).isdisjoint(case.ours.control.values())


def test_every_token_has_the_bytes_of_mistral_common(case: Case) -> None:
    """A text of all tokens that are whole characters comes back."""
    for text in TEXTS:
        ids = case.ours.encode(text, add_bos=False, parse_control=False)
        assert case.ours.decode(ids) == text


@pytest.mark.parametrize("name", ["llama3", "llama-v3", "pixtral", "llama-bpe", "tekken"])
def test_these_begin_with_a_begin_token_unless_the_file_says_otherwise(name: str, tmp_path: Path) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": ["<s>", "a", "b", "ab"],
        "tokenizer.ggml.token_type": [3, 1, 1, 1],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 0,
    }
    for says, expected in ((None, [0, 3]), (True, [0, 3]), (False, [3])):
        write_tokenizer(metadata if says is None else metadata | {"tokenizer.ggml.add_bos_token": says}, tmp_path)
        assert load_tokenizer(tmp_path).encode("ab", add_bos=True, parse_control=False) == expected


def test_a_file_without_a_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.merges": []}
    with pytest.raises(
        ModelError, match=r"has no pre-tokenizer \(tokenizer\.ggml\.pre\); Noria supports smollm, llama"
    ):
        write_tokenizer(metadata, tmp_path)
