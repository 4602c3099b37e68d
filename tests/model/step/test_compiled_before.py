"""Serving compiles nothing: what the first steps have not launched, no later step launches."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from model import loading, setup
from model.linear import selection
from model.linear.floats import WeightsOnly
from model.network import weights
from model.network.adapters import Adapter, blank
from model.network.moe import MoE
from model.network.transformer import Transformer
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from model.warming import capture_all, compile_all, first_steps
from service.engine.messages import Submit, ToEngine
from tests.engine.driving import Client
from tests.model.driving import checkpoint, tiny
from tests.model.kernels.recording import recorded

pytest.importorskip("triton")

WIDE = {"dim": 64, "hidden_dim": 128, "head_dim": 16, "max_position": 2048}
DENSE = tiny((40, None), **WIDE)
SPARSE = tiny((40, None), **WIDE, n_experts=4, n_experts_per_token=2, expert_hidden_dim=64)
CASES: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "none": (DENSE, {}),
    "fp8": (DENSE, {"quantize": "fp8"}),
    "int4": (DENSE, {"quantize": "int4-weights"}),
    "deterministic": (DENSE, {"deterministic": True}),
    "experts": (SPARSE, {}),
    "experts in fp8": (SPARSE, {"quantize": "fp8"}),
}


def reserve(model: Transformer, dtype: torch.dtype, device: torch.device) -> None:
    """As on a GPU."""
    for module in model.modules():
        if isinstance(module, MoE):
            module.reserve(dtype, device)
        elif isinstance(module, WeightsOnly) and module.weights is None:
            module.assign_weights(module.allocate((), dtype, device))


def capture(compute: Callable[[], Tensor]) -> Callable[[], Any]:
    """A fake graph, which computes at every replay."""
    compute()
    return compute


def loaded(config: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> ModelRunner:
    """A runner on the CPU as one on a GPU, which has computed nothing yet."""
    monkeypatch.setattr(setup, "serving", lambda scheme, *_: scheme)
    monkeypatch.setattr(selection, "check_tiles", lambda *_: None)
    monkeypatch.setattr(weights, "_reserve", reserve)
    monkeypatch.setattr(loading, "warm", lambda *_: None)
    limits = {"max_sequences": 24, "max_step_tokens": 200, "cache_memory": 2**22}
    made = RunnerOptions("", device="cpu", dtype="bfloat16", attention="triton", **{**limits, **options})
    return loading.load_from(checkpoint(config), made, lambda stage, done: None)


def warm(runner: ModelRunner) -> None:
    with torch.inference_mode():
        first_steps(runner)
        runner.record(24, capture)
        compile_all(runner, runner.row_counts, lambda stage, done: None)
        capture_all(runner, lambda stage, done: None)
        runner.warmed()


def requests() -> list[list[ToEngine]]:
    """Prompts of many lengths with all kinds of parameters, some with an adapter, which arrive in several waves."""
    params = [
        SamplingParams(temperature=0.0, max_tokens=5),
        SamplingParams(max_tokens=3, top_p=0.5, logprobs=2),
        SamplingParams(max_tokens=4, top_k=3, prompt_logprobs=2, presence_penalty=1.0),
        SamplingParams(max_tokens=7, min_p=0.1, repetition_penalty=1.3, logit_bias=((3, 1.0),)),
        SamplingParams(max_tokens=9, temperature=0.0, prompt_lookup_num_tokens=4),
        SamplingParams(max_tokens=0, embed="mean"),
        SamplingParams(max_tokens=2, allowed_token_ids=(1, 2), bad_words=((1, 2),), min_tokens=1, stop_token_ids=(5,)),
    ]
    lengths = [1, 2, 3, 7, 8, 9, 15, 16, 17, 18, 31, 33, 40, 64, 65, 66, 97, 128, 129, 150, 199, 200, 201, 500]
    waves = []
    for wave in range(4):
        waves.append(
            [
                Submit(100 * wave + i, [i % 5] * n, params[(i + wave) % len(params)], adapter=(i + wave) % 3)
                for i, n in enumerate(lengths[wave::4])
            ]
        )
        waves += [[], []]
    return waves


def smaller(adapter: Adapter) -> Adapter:
    """Only some of its products."""
    return Adapter(tuple({name: layer[name] for name in ("wqkv",)} for layer in adapter.layers))


def serve(runner: ModelRunner) -> None:
    whole = blank(runner._model)
    runner._adapters.hold(1, whole)
    runner._adapters.hold(2, smaller(whole))
    client = Client(runner, requests(), max_sequences=24, max_step_tokens=200)
    assert set(client.finished.values()) == {"length"}


@pytest.mark.parametrize("name", CASES)
def test_serving_compiles_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, options = CASES[name]
    runner = loaded(config, monkeypatch, **options)
    with recorded() as launches:
        warm(runner)
        launches.mark()
        serve(runner)
    assert {"attend_parts", "attend_tiles", "_rms_norm", "_shrink"} < {kernel for kernel, _ in launches.seen}
    assert launches.new == []


def test_the_first_steps_alone_leave_much_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --fast-start. This shows also that the recording sees what serving adds."""
    runner = loaded(SPARSE, monkeypatch, quantize="fp8")
    with recorded() as launches:
        with torch.inference_mode():
            first_steps(runner)
        launches.mark()
        serve(runner)
    assert {"_shrink", "_product"} <= {kernel for kernel, _ in launches.new}
