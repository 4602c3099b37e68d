"""Serving compiles nothing: what the first steps have not launched, no later step launches."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from model import decide, loading, selftest, warming
from model.batch import PoolSpec, RunnerInfo, StepBatch
from model.config.vision import VisionConfig
from model.errors import OptionError
from model.linear import schemes
from model.linear.floats import WeightsOnly
from model.linear.schemes import SCHEMES
from model.media import MediaWork
from model.network import weights
from model.network.adapters import Lora, blank
from model.network.moe import MoE
from model.network.transformer import Transformer
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.executors.graphs import GraphExecutor, shapes
from model.step.runner import ModelRunner
from model.warming import BLANK, step, steps
from service.engine.messages import Submit, ToEngine
from tests.engine.driving import Client
from tests.model.driving import checkpoint, tiny
from tests.model.kernels.recording import recorded

pytest.importorskip("triton")

WARM = warming.warm
WIDE = {"dim": 64, "hidden_dim": 128, "head_dim": 16, "max_position": 2048}
DENSE = tiny((40, None), **WIDE)
SPARSE = tiny((40, None), **WIDE, n_experts=4, n_experts_per_token=2, expert_hidden_dim=64)
CASES: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "none": (DENSE, {}),
    "fp8": (DENSE, {"quantize": "fp8"}),
    "int4": (DENSE, {"quantize": "int4-weights"}),
    "fp8 cache": (DENSE, {"kv_dtype": "fp8"}),
    "images": (tiny((None, None), **WIDE, vision=VisionConfig(64, 2, 4, 16, 96, 4, 128, merge=2)), {}),
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
    monkeypatch.setattr(schemes, "serving", lambda scheme, *_, **__: scheme)
    monkeypatch.setattr(decide, "check_deterministic", lambda *_: None)
    monkeypatch.setattr(weights, "_reserve", reserve)
    monkeypatch.setattr(loading, "warm", lambda *_: None)
    monkeypatch.setattr(selftest, "failing", lambda checks: {})  # the interpreter rounds fp8 wrongly
    limits = {"max_sequences": 24, "max_step_tokens": 600, "cache_memory": 2**22}
    made = RunnerOptions("", device="cpu", dtype="bfloat16", attention="triton", **{**limits, **options})
    return loading.load_from(checkpoint(config), made, lambda stage, done: None)


def warm(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, *, fast_start: bool = False) -> list[tuple[str, float]]:
    """What `load_from` does on a GPU; returns the progress."""
    stages: list[tuple[str, float]] = []
    monkeypatch.setattr(warming, "CudaCapture", lambda: capture)
    pretended = SimpleNamespace(
        device=torch.device("cuda"),
        captures=True,
        attention_name="triton",
        scheme=SCHEMES["none"],
        options=SimpleNamespace(fast_start=fast_start),
        pool_sizes=SimpleNamespace(max_sequences=24),
    )
    with torch.inference_mode():
        WARM(runner, pretended, lambda stage, done: stages.append((stage, done)))  # type: ignore[arg-type]
    return stages


def missing_graphs(runner: ModelRunner) -> int:
    assert isinstance(runner.executor, GraphExecutor)
    return len(runner.executor.graphs.missing)


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
    lengths = [1, 2, 3, 7, 8, 9, 15, 16, 17, 18, 31, 33, 40, 64, 65, 66, 97, 128, 129, 150, 199, 200, 201, 500, 700]
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


def smaller(adapter: Lora) -> Lora:
    """Only some of its products."""
    return Lora(tuple({name: layer[name] for name in ("wqkv",)} for layer in adapter.layers))


def serve(runner: ModelRunner) -> None:
    whole = blank(runner.head.model)
    runner.adapters.hold(1, whole)
    runner.adapters.hold(2, smaller(whole))
    if (form := runner.info.media) is not None:
        for number, sides in enumerate([(1, 1), (3, 5), (16, 16)]):
            n_patches = form.n_patches(*sides)
            work = MediaWork(number, *sides, bytes(form.n_bytes(*sides)), 0, n_patches, n_patches)
            assert not runner.step(StepBatch((), media=(work,))).media_faults
    client = Client(runner, requests(), max_sequences=24, max_step_tokens=600)
    assert set(client.finished.values()) == {"length"}


@pytest.mark.parametrize("name", CASES)
def test_serving_compiles_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, options = CASES[name]
    runner = loaded(config, monkeypatch, **options)
    with recorded() as launches:
        warm(runner, monkeypatch)
        launches.mark()
        serve(runner)
    assert {"attend_parts", "attend_tiles", "_rms_norm", "_shrink"} < {kernel for kernel, _ in launches.seen}
    assert launches.new == []


def test_logits_in_blocks_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an odd vocabulary: only some of them begin at multiples of 16 bytes."""
    monkeypatch.setattr("model.step.head.LOGIT_VALUES", 7 * 67)
    runner = loaded(tiny((None,), **WIDE, vocab_size=67), monkeypatch)
    with recorded() as launches:
        warm(runner, monkeypatch)
        launches.mark()
        runner.step(step(runner.info, [1] * 24, before=1))
    assert launches.new == []


def test_a_fast_start_leaves_the_rest_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """This shows also that the recording sees what serving adds."""
    runner = loaded(SPARSE, monkeypatch, quantize="fp8")
    with recorded() as launches:
        assert warm(runner, monkeypatch, fast_start=True) == []
        launches.mark()
        assert missing_graphs(runner) == len(shapes(24, 600)) == 22
        while runner.idle():
            pass
        serve(runner)
    assert {"_shrink", "_product"} <= {kernel for kernel, _ in launches.new}


def test_a_kernel_that_fails_names_what_chooses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import PTXASError

    def fails(*_: object, **__: object) -> None:
        raise PTXASError("too many registers")

    runner = loaded(DENSE, monkeypatch)
    message = r"^--attention triton, --quantize none: .* \(PTXASError: .*registers\); choose another, and report this"
    with recorded() as launches:
        launches.add = fails  # type: ignore[method-assign]
        with pytest.raises(OptionError, match=message):
            warm(runner, monkeypatch)


def test_other_errors_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(runner: Any) -> None:
        raise RuntimeError("something else")

    runner = loaded(DENSE, monkeypatch)
    monkeypatch.setattr(warming, "first_steps", fails)
    with pytest.raises(RuntimeError, match="something else"):
        warm(runner, monkeypatch)


def test_progress_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = loaded(DENSE, monkeypatch)
    with recorded():
        stages = warm(runner, monkeypatch)
    fractions = [done for stage, done in stages if stage == "compiling kernels"]
    assert fractions == sorted(fractions)
    assert stages[len(fractions) :] == [(f"capturing CUDA graph {i + 1} of 22", i / 22) for i in range(22)]
    assert missing_graphs(runner) == 0
    assert not runner.adapters.has(BLANK)


def test_a_cpu_compiles_nothing_at_its_start() -> None:
    with pytest.raises(OptionError, match="--fast-start needs a GPU, the device is cpu"):
        loading.check_options(RunnerOptions("", device="cpu", fast_start=True))


@pytest.mark.parametrize("limits", [(1, 1, 1), (1, 100, 7), (3, 40, 9), (24, 600, 2048)], ids=str)
def test_first_steps_keep_to_the_limits(limits: tuple[int, int, int]) -> None:
    n_slices, n_tokens, length = limits
    pools = (PoolSpec(5, 3), PoolSpec(None, 2))
    info = RunnerInfo(32, pools, length, 64, 64, n_slices, n_tokens, {})
    batches = list(steps(info, [1, 2, 33, 600]))
    assert batches
    for batch in batches:
        assert 1 <= batch.n_tokens <= n_tokens
        assert len(batch.slices) <= n_slices
        for item in batch.slices:
            assert 0 <= item.start < item.stop <= length
            for pool, table in zip(pools, item.tables, strict=True):
                assert len(table.pages) == -(-item.stop // 32)
                assert set(table.pages) <= set(range(pool.n_pages))
