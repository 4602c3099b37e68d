"""Models in several GGUF files, as the gguf package's writer splits them."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import LlamaConfig, LlamaForCausalLM

from model.checkpoint.gguf.open import open_gguf
from model.checkpoint.gguf.reader import read_parts
from model.errors import ModelError
from tests.model.checkpoint.gguf_files import SIZES, VOCAB, new_file, store
from tests.model.driving import network


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    torch.manual_seed(0)
    for name, split in (("Whole", {}), ("Model", {"split_max_tensors": 8})):
        torch.manual_seed(0)
        store(LlamaForCausalLM(LlamaConfig(**SIZES)), new_file(tmp_path / f"{name}.gguf", **split))
    return sorted(tmp_path.glob("Model-*.gguf"))


def test_a_split_model_is_the_whole_one(parts: list[Path]) -> None:
    assert [path.name for path in parts] == [f"Model-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    whole = network(parts[0].with_name("Whole.gguf")).whole(range(VOCAB))
    assert torch.equal(network(parts[0]).whole(range(VOCAB)), whole)


def test_a_part_that_is_missing_or_is_not_the_first_is_one_line(parts: list[Path]) -> None:
    with pytest.raises(
        ModelError, match=r"Model-00002-of-00003\.gguf is part 2 of 3; name the first part, Model-00001-of-00003\.gguf"
    ):
        open_gguf(parts[1])
    parts[2].unlink()
    with pytest.raises(
        ModelError, match=r"Model-00003-of-00003\.gguf, a part of the model, is missing beside Model-00001-of-00003"
    ):
        open_gguf(parts[0])


def test_parts_that_do_not_belong_together_are_one_line(parts: list[Path]) -> None:
    second, third = (path.read_bytes() for path in parts[1:])
    parts[1].write_bytes(third)
    with pytest.raises(ModelError, match=r"Model-00002-of-00003\.gguf says it is part 3 of 3, expected 2 of 3"):
        open_gguf(parts[0])
    parts[1].write_bytes(second)
    for number in (1, 2):  # a whole model of two parts, which are named as parts of three
        parts[number].rename(parts[number].with_name(f"Model-0000{number}-of-00002.gguf"))
    with pytest.raises(ModelError, match=r"says it is part 2 of 3, expected 1 of 2"):
        open_gguf(parts[0].with_name("Model-00001-of-00002.gguf"))
    lacking = parts[0].with_name("Lacking-00001-of-00001.gguf")
    writer = GGUFWriter(lacking, "llama")
    writer.add_uint16("split.no", 0)
    writer.add_uint16("split.count", 1)
    writer.add_int32("split.tensors.count", 2)
    writer.add_tensor("token_embd.weight", np.ones((4, 32), np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    with pytest.raises(ModelError, match="the parts of the model have 1 tensors, expected 2"):
        read_parts([lacking])
    alone = parts[0].rename(parts[0].with_name("alone.gguf"))
    with pytest.raises(ModelError, match=re.escape("alone.gguf says it is part 1 of 3, expected 1 of 1")):
        open_gguf(alone)
