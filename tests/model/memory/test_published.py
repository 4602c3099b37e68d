"""`noria plan` of published models: parameters, keys and values of a token, windows and context, from configurations.

Parameters are counted three times: by the configuration, by our network and by that of transformers.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Mistral4ForCausalLM

from model.checkpoint.config import read_config
from model.memory.plan import make_plan
from model.network.transformer import Transformer
from model.options import RunnerOptions
from tests.model.checkpoint.published import ROWS, written


@pytest.mark.parametrize("name", ROWS)
def test_plan(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    plan = make_plan(written(name, tmp_path), RunnerOptions("", device="cuda"), 2**40)
    parameters = row.parameters + row.encoder
    assert (plan.parameters, plan.weights, plan.dtype) == (parameters, 2 * parameters, "bfloat16")
    assert plan.encoder == 2 * row.encoder
    assert (plan.token, plan.context, plan.served) == (row.token_bytes, row.context, row.context)
    assert {pool.window: pool.layers for pool in plan.pools} == row.windows
    for pool in plan.pools:
        assert pool.token_bytes == row.token_bytes * pool.layers // sum(row.windows.values())


@pytest.mark.parametrize("name", ROWS)
def test_parameters_on_the_meta_device(name: str, tmp_path: Path) -> None:
    directory = written(name, tmp_path)
    row = ROWS[name]
    with torch.device("meta"):
        assert Transformer(read_config(directory)).n_parameters == row.parameters + row.encoder
        if row.file == "config.json":
            theirs = AutoConfig.from_pretrained(directory)
            text = theirs.get_text_config()
            made = (
                Mistral4ForCausalLM(text) if text.model_type == "mistral4" else AutoModelForCausalLM.from_config(text)
            )
            assert made.num_parameters() == row.parameters
            if row.encoder:
                whole = AutoModel.from_config(theirs)
                tower = whole.audio_tower if row.config["model_type"] == "voxtral" else whole.vision_tower
                parts = tower, whole.multi_modal_projector
                assert sum(weight.numel() for part in parts for weight in part.parameters()) == row.encoder
