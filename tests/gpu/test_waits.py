"""What is launched without waiting for the device, by PyTorch's own check. Run with `pytest -m gpu tests/gpu`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from model.batch import Slice
from model.config.audio import AudioConfig
from model.config.model import ModelConfig
from model.config.vision import VisionConfig
from model.loading import load_from
from model.network import weights
from model.network.audio.encoder import AudioEncoder
from model.network.encoding import Encoder
from model.network.transformer import Transformer
from model.network.vision.encoder import ImageEncoder
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.sharding.shard import shard_of
from model.step.masks import Masks
from model.step.runner import ModelRunner
from model.warming import step
from tests.model.driving import checkpoint, random_stored, tiny
from tests.model.grammar.vocabulary import FIRST

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]
GPU = torch.device("cuda")


@contextmanager
def no_wait() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    options = RunnerOptions(
        "", device="cuda", dtype="bfloat16", max_sequences=8, max_step_tokens=64, cache_memory=2**24
    )
    return load_from(checkpoint(tiny((37, None), head_dim=32, dim=64, vocab_size=512)), options, lambda *_: None)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"seed": 1},
        {"top_p": 0.9},
        {"top_k": 5},
        {"min_p": 0.1},
        {"top_p": 0.9, "top_k": 5, "min_p": 0.1},
        {"logprobs": 5},
        {"prompt_logprobs": 3},
        {"allowed_token_ids": (1, 2, 3)},
        {"bad_words": ((5, 6), (7,))},
        {"min_tokens": 5, "stop_token_ids": (2,)},
        {"logit_bias": ((3, 1.0),)},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"embed": "mean", "max_tokens": 0},
    ],
    ids=", ".join,
)
def test_sampling(runner: ModelRunner, values: dict[str, Any]) -> None:
    params = SamplingParams(**{"max_tokens": 8, **values})
    for lengths in ([9], [1, 1]):
        batch = step(runner.info, lengths, params)
        runner.launch(batch)()  # it may compile
        with no_wait():
            finish = runner.launch(batch)
        finish()


def test_masks_of_grammars() -> None:
    masks, item = Masks(FIRST, 512), Slice(1, [0], 1, 0, 1, (), SamplingParams(grammar="x"))
    masks._rows[1, 1] = np.zeros(64, dtype=np.uint8)
    logits = torch.zeros(1, 512, device=GPU)
    masks.step.change(logits, [item])  # it copies a table
    with no_wait():
        masks.step.change(logits, [item])
    masks.close()


def encoder(config: ModelConfig, made: Encoder) -> Encoder:
    with torch.device("meta"):
        model = Transformer(config)
        model.encoder = made
    weights.load(model, shard_of(config), "half", random_stored(config), torch.bfloat16, GPU, lambda _: None)
    return made


VISION = VisionConfig(64, 2, 4, 16, 128, patch_size=14, image_size=1540, merge=2, adapter_norm=True)
AUDIO = AudioConfig(64, 2, 4, 128)


@torch.inference_mode()
def test_images() -> None:
    config = tiny(vision=VISION)
    with torch.device("meta"):
        made = ImageEncoder(VISION, config.dim, config.norm_eps)
    check(encoder(config, made), bytes(12 * 11 * 28 * 28 * 3), 12, 11)


@torch.inference_mode()
def test_audio() -> None:
    config = tiny(audio=AUDIO)
    with torch.device("meta"):
        made = AudioEncoder(AUDIO, config.dim)
    check(encoder(config, made), bytes(4 * AUDIO.n_mels * AUDIO.n_frames), 1, AUDIO.max_tokens)


def check(made: Encoder, inputs: bytes, rows: int, columns: int) -> None:
    """The first item may wait: for a table that all of them need."""
    made(inputs, rows, columns)
    with no_wait():
        made(inputs, rows, columns)
