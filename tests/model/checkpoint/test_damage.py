"""Damaged files: whatever the bytes of a header are, there is a model, or an error of one line.

Nothing is allocated for a length that the file does not have.
"""

import json
import math
import struct
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.checkpoint.gguf.config import generation_config
from model.checkpoint.gguf.open import open_gguf
from model.checkpoint.gguf.reader import GgufFile, read_gguf
from model.checkpoint.gguf.tokenizer import tokenizer_config
from model.checkpoint.model_files import model_files
from model.checkpoint.open import open_checkpoint
from model.checkpoint.resolve import resolve
from model.errors import ModelError
from model.loading import create
from service.generation.startup import load_text_side
from tests.model.checkpoint.faults import fault
from tests.model.checkpoint.gguf_bytes import join, text, typed
from tests.model.checkpoint.gguf_files import SIZES, save

MANY = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Whole(NamedTuple):
    """A GGUF file that loads: its bytes, its structure, and where its tensors begin."""

    data: bytes
    file: GgufFile
    first: int

    def changed(self, **fields: Any) -> bytes:
        """The file with other metadata; None removes a field. A dot in a name is written as two underscores."""
        changes = {name.replace("__", "."): value for name, value in fields.items()}
        metadata = {name: value for name, value in {**self.file.metadata, **changes}.items() if value is not None}
        return join(metadata, self.file.tensors, self.data[self.first :], self.first)


def start(model: Path) -> None:
    """Resolve and load a model, as the service and the engine do."""
    found = resolve(str(model))
    model_files(found)
    create(lambda *_: None, model=str(found), device="cpu", quantize="int8", cache_memory=2**20)


def started(directory: Path, data: bytes) -> str | None:
    """The fault of a GGUF file with these bytes."""
    path = directory / "m.gguf"
    path.write_bytes(data)
    return fault(lambda: start(path))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    path = tmp_path_factory.mktemp("whole") / "m.gguf"
    save("mixtral", path, ("Q8_0",))
    start(path)
    file = read_gguf(path)
    return Whole(path.read_bytes(), file, min(tensor.offset for tensor in file.tensors))


@given(
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([1, 2, 4, 8]), st.integers(0, 2**64 - 1)),
        min_size=1,
        max_size=3,
    )
)
@MANY
def test_any_bytes_in_a_gguf_header(changes: list[tuple[float, int, int]], whole: Whole, tmp_path: Path) -> None:
    """A change is a place in the header, and a number of 1 to 8 bytes that is written there."""
    data = bytearray(whole.data)
    for where, width, value in changes:
        place = int(where * (whole.first - width))
        data[place : place + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
    started(tmp_path, bytes(data))


ODD: list[Any] = [
    *(np.uint32(n) for n in (0, 1, 3, 33, 2**31, 2**32 - 1)),
    *(np.int64(n) for n in (-1, -(2**63), 2**62)),
    *(np.float64(x) for x in (0, 0.5, 1.5, -2, 1e-30, 1e308, math.nan, math.inf)),
    *("", "\n", "\0", "a b", "x" * 5000, True, False),
    *([], ["a"], ["a", "a"], ["a b"] * 20, ["<s>"] * 20),
    *(np.arange(20, dtype=np.float32), np.zeros(20, np.int32), np.full(3, np.nan, np.float32), np.zeros(0, np.uint8)),
]
MORE = (
    *("general.alignment", "llama.attention.sliding_window", "llama.attention.key_length", "llama.expert_count"),
    *("llama.expert_used_count", "llama.rope.scaling.type", "llama.rope.scaling.factor", "tokenizer.ggml.scores"),
    *("tokenizer.ggml.add_bos_token", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.eot_token_id"),
)
YARN = {"type": "yarn", "factor": np.float32(2), "original_context_length": np.uint32(64)}
SETS: list[dict[str, Any]] = [
    {},
    {f"llama.rope.scaling.{name}": value for name, value in YARN.items()},
    {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": np.arange(20, dtype=np.float32)},
]


@given(data=st.data())
@MANY
def test_any_values_in_gguf_metadata(data: st.DataObject, whole: Whole, tmp_path: Path) -> None:
    names = sorted({*whole.file.metadata, *MORE})
    pairs = st.dictionaries(st.sampled_from(names), st.sampled_from([None, *ODD]), min_size=1, max_size=3)
    started(tmp_path, whole.changed(**{**data.draw(st.sampled_from(SETS)), **data.draw(pairs)}))


def test_a_file_that_is_cut_anywhere_is_damaged(whole: Whole, tmp_path: Path) -> None:
    end = max(tensor.offset + tensor.n_bytes for tensor in whole.file.tensors)
    for place in (*range(0, whole.first, 41), whole.first - 1, whole.first, end - 1):
        (tmp_path / "m.gguf").write_bytes(whole.data[:place])
        message = fault(lambda: read_gguf(tmp_path / "m.gguf"))
        assert message, place
        assert message.startswith("m.gguf is not a readable GGUF file: ")
        assert message.endswith("; download it again")


def with_counts(n_tensors: int, n_fields: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_fields) + rest


def a_tensor(name: str, sizes: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGML" + bytes(60), "it starts with b'GGML', expected b'GGUF'"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "it has another byte order than this machine"),
        (with_counts(2**60, 0), f"it counts {2**60} tensors, but has only 8 more bytes"),
        (with_counts(0, 1, text("a" * 30)[:8] + b"\xff" * 30), "the name of a metadata field at byte 32 is not UTF-8"),
        (
            with_counts(0, 1, text("a") + typed(["é", "ü"]).replace("ü".encode(), b"\xc3b") + bytes(20)),
            "the field 'a' at byte 67 is not UTF-8",
        ),
        (
            with_counts(0, 1, text("a") + typed(["é", "ü"]).replace(text("ü"), b"\x99" + bytes(20))),
            "the field 'a' at byte 67 needs 153 bytes, the file ends at byte 80",
        ),
        (with_counts(0, 2, (text("a") + typed(True)) * 2), "it has the metadata field 'a' twice"),
        (
            with_counts(0, 1, text("a") + struct.pack("<IIQ", 9, 9, 0)),
            "the field 'a' has elements of value type 9, expected a number or a string",
        ),
        (
            with_counts(0, 1, text("general.alignment") + typed(np.uint32(12))),
            "its alignment is 12, expected a power of two of at least 8",
        ),
        (with_counts(1, 0, a_tensor("t", [1] * 5)), "the tensor 't' has 5 dimensions, expected 1..4"),
        (
            with_counts(1, 0, a_tensor("t", [33, 2], kind=8)),
            r"the tensor 't' has shape \[2, 33\], expected rows of whole blocks of 32 values",
        ),
        (with_counts(1, 0, a_tensor("t", [4], offset=4)), "the tensor 't' starts at 4, expected a multiple of 32"),
        (with_counts(2, 0, a_tensor("a", [1]) * 2), "it has two tensors of one name"),
        (
            with_counts(2, 0, a_tensor("a", [128], kind=42) + a_tensor("b", [1], offset=32)),
            "its tensor 'a' in Q2_0 ends at byte [0-9]+, and 'b' begins at [0-9]+",
        ),
    ],
)
def test_the_message_says_what_was_expected_and_found(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=rf"^m\.gguf is not a readable GGUF file: {message}"):
        read_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (with_counts(0, 0, version=4), "m.gguf has version 4 of GGUF; Noria reads 2 and 3"),
        (
            with_counts(1, 0, a_tensor("t", [4], kind=99)),
            "m.gguf has the tensor 't' of GGUF's kind number 99; Noria reads F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, ",
        ),
    ],
)
def test_a_file_newer_than_the_reader_is_not_called_damaged(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    found = str(fault(lambda: read_gguf(tmp_path / "m.gguf")))
    assert found.startswith(message)
    assert "download it again" not in found


@pytest.mark.parametrize("alignment", [8, 64])
def test_weights_begin_at_the_alignment_that_a_file_names(alignment: int, tmp_path: Path) -> None:
    head = with_counts(1, 1, text("general.alignment") + typed(np.uint32(alignment)) + a_tensor("t", [4]))
    (tmp_path / "m.gguf").write_bytes(head + bytes(-len(head) % alignment) + bytes(16))
    (tensor,) = read_gguf(tmp_path / "m.gguf").tensors
    assert tensor.offset == -(-len(head) // alignment) * alignment


def test_the_first_version_is_not_called_another_byte_order(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(with_counts(0, 0, version=1))
    with pytest.raises(ModelError, match=r"m\.gguf has version 1 of GGUF; Noria reads 2 and 3"):
        read_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("pad", [np.int32(-1), np.uint32(2**32 - 1), np.uint32(10**5)])
def test_a_padding_token_beyond_the_vocabulary_is_ignored_with_a_word(whole: Whole, pad: Any, tmp_path: Path) -> None:
    assert started(tmp_path, whole.changed(tokenizer__ggml__padding_token_id=pad)) is None
    n_tokens = len(whole.file.metadata["tokenizer.ggml.tokens"])
    assert open_gguf(tmp_path / "m.gguf").doubts == (
        f"m.gguf has tokenizer.ggml.padding_token_id {pad}, beyond its {n_tokens} tokens: it is ignored",
    )
    assert "pad_token" not in tokenizer_config(open_gguf(tmp_path / "m.gguf").metadata)


@pytest.mark.parametrize("role", ["bos", "eos", "unknown"])
def test_a_token_beyond_the_vocabulary_is_named_with_its_key_and_limit(whole: Whole, role: str, tmp_path: Path) -> None:
    n_tokens = len(whole.file.metadata["tokenizer.ggml.tokens"])
    for token in (np.int32(-2 if role == "eos" else -1), np.uint32(n_tokens)):
        message = started(tmp_path, whole.changed(**{f"tokenizer.ggml.{role}_token_id": token}))
        assert f"{token} in tokenizer.ggml.{role}_token_id, expected 0..{n_tokens - 1}" in str(message)


def test_a_model_may_have_no_end_token(whole: Whole, tmp_path: Path) -> None:
    """llama.cpp serves it with a warning."""
    assert started(tmp_path, whole.changed(tokenizer__ggml__eos_token_id=np.int32(-1))) is None
    assert -1 not in load_text_side(tmp_path / "m.gguf", None).defaults.eos_token_ids


def test_a_list_of_end_tokens_may_be_a_number(whole: Whole, tmp_path: Path) -> None:
    assert started(tmp_path, whole.changed(tokenizer__ggml__eos_token_ids=np.uint32(5))) is None
    assert 5 in generation_config(open_gguf(tmp_path / "m.gguf").metadata)["eos_token_id"]


def test_a_short_table_is_named_before_it_is_used(whole: Whole, tmp_path: Path) -> None:
    """By the search for end tokens in it."""
    tokens = [*list(whole.file.metadata["tokenizer.ggml.tokens"])[:-1], "</s>"]
    data = whole.changed(tokenizer__ggml__tokens=tokens, tokenizer__ggml__token_type=np.ones(1, np.int32))
    assert "1 values in tokenizer.ggml.token_type, expected" in str(started(tmp_path, data))


def test_an_empty_chat_template_is_none(whole: Whole, tmp_path: Path) -> None:
    assert started(tmp_path, whole.changed(tokenizer__chat_template="")) is None
    assert "chat_template" not in tokenizer_config(open_gguf(tmp_path / "m.gguf").metadata)


def test_a_table_of_another_length_than_the_vocabulary_is_named(whole: Whole, tmp_path: Path) -> None:
    n_tokens = len(whole.file.metadata["tokenizer.ggml.tokens"])
    types = np.ones(n_tokens - 1, np.int32)
    message = started(tmp_path, whole.changed(tokenizer__ggml__token_type=types))
    assert f"{n_tokens - 1} values in tokenizer.ggml.token_type, expected {n_tokens}, one for each token" in str(
        message
    )


def test_a_model_without_embeddings_or_with_merges_of_no_tokens_is_named(whole: Whole, tmp_path: Path) -> None:
    others = [tensor for tensor in whole.file.tensors if tensor.name != "token_embd.weight"]
    bare = join(whole.file.metadata, others, whole.data[whole.first :], whole.first)
    assert started(tmp_path, bare) == "m.gguf has no tensor 'token_embd.weight'; a model needs it"
    merges = {"tokenizer.ggml.merges": ["a b", "a nonsense"]}
    assert "merge 'a nonsense', which does not join" in str(started(tmp_path, whole.changed(**merges)))
    sizes = {"llama.attention.head_count": np.uint32(0)}
    assert "at least 1 in attention.head_count, it has 0" in str(started(tmp_path, whole.changed(**sizes)))
    experts = {"llama.expert_count": np.uint32(2**15), "llama.expert_used_count": np.uint32(2)}
    assert "2 layers of 32768 experts are more than 32768 blocks" in str(started(tmp_path, whole.changed(**experts)))
    layers = {"llama.block_count": np.uint32(2**32 - 1)}
    assert "4294967295 layers; Noria supports 10000" in str(started(tmp_path, whole.changed(**layers)))


def test_an_array_over_the_whole_file_takes_no_memory(tmp_path: Path) -> None:
    """A file of 64 MB whose metadata claims all of it as one array of numbers."""
    n = 2**26
    head = with_counts(0, 1, text("a") + struct.pack("<IIQ", 9, 0, n))
    path = tmp_path / "m.gguf"
    path.write_bytes(head)
    with path.open("r+b") as file:
        file.truncate(len(head) + n)
    tracemalloc.start()
    try:
        found = read_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.metadata["a"]) == n
    assert peak < 2**20


# Safetensors


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a checkpoint of one file."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("shard")
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(directory)
    return directory


def opened(directory: Path) -> str | None:
    return fault(lambda: [*open_checkpoint(directory).tensors()])


def copy(shard: Path, directory: Path, data: bytes) -> Path:
    (directory / "config.json").write_bytes((shard / "config.json").read_bytes())
    (directory / "model.safetensors").write_bytes(data)
    return directory


@given(
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from(b'0129-{}[]",:.eE') | st.integers(0, 255)),
        min_size=1,
        max_size=4,
    )
)
@MANY
def test_any_bytes_in_a_safetensors_header(changes: list[tuple[float, int]], shard: Path, tmp_path: Path) -> None:
    data = bytearray((shard / "model.safetensors").read_bytes())
    length = 8 + int.from_bytes(data[:8], "little")
    for where, value in changes:
        data[int(where * length)] = value
    opened(copy(shard, tmp_path, bytes(data)))


@pytest.mark.parametrize(
    "entry",
    [
        *({"dtype": odd} for odd in (None, ["F32"], "F33", "\n" * 999)),
        *({"shape": odd} for odd in (5, [-1], [2**63], [1.5])),
        *({"data_offsets": odd} for odd in ([0], [-8, 0], [8, 0], [0, 2**70])),
    ],
    ids=lambda entry: json.dumps(entry)[:40],
)
def test_any_entry_in_a_safetensors_header(entry: dict[str, Any], shard: Path, tmp_path: Path) -> None:
    data = (shard / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["model.norm.weight"] |= entry
    changed = json.dumps(header).encode()
    message = opened(copy(shard, tmp_path, struct.pack("<Q", len(changed)) + changed + data[8 + length :]))
    assert message
    assert message.startswith("model.safetensors is damaged: ")


def test_a_header_of_nothing_but_brackets(shard: Path, tmp_path: Path) -> None:
    header = b"[" * 100_000
    message = opened(copy(shard, tmp_path, struct.pack("<Q", len(header)) + header))
    assert message
    assert message.startswith("model.safetensors is damaged: ")


@pytest.mark.parametrize("name", ["num_hidden_layers", "rms_norm_eps", "vocab_size"])
@pytest.mark.parametrize(
    "value", [0, -1, 10**400, math.nan, math.inf, "a", None, [], {}], ids=lambda value: repr(value)[:9]
)
def test_any_value_in_config_json(name: str, value: Any, shard: Path, tmp_path: Path) -> None:
    copy(shard, tmp_path, (shard / "model.safetensors").read_bytes())
    config = json.loads((shard / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, name: value, "head_dim": None}))
    assert fault(lambda: create(lambda *_: None, model=str(tmp_path), device="cpu", cache_memory=2**20))
