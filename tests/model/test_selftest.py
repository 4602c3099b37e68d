"""The self-test of a GPU's kernels, under Triton's interpreter: each broken once is found, and whole ones pass."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from model import decide, selftest, setup
from model.attention import triton as attention
from model.attention.sdpa import SdpaAttention
from model.attention.triton import TritonAttention
from model.config.latent import LatentConfig
from model.config.model import ModelConfig, QueryTemperature
from model.errors import OptionError
from model.kernels import cuda
from model.kernels.cpu import native
from model.kernels.cuda import adapters, convert, gate, norm, product, routing, sampling
from model.kernels.cuda.layouts import DeviceWeights
from model.linear.schemes import SCHEMES
from model.network import weights
from model.network.kernels import leave_to_torch
from model.network.lora import Lora, LowRank, LowRankPart, StepAdapters
from model.network.moe import MoE
from model.network.transformer import Transformer
from model.options import RunnerOptions
from model.selftest import attention_fault, failing, product_checks
from model.sharding.shard import shard_of
from tests.model.attention.attending import CPU, make
from tests.model.driving import Driver, checkpoint, random_stored, tiny
from tests.model.kernels.triton_case import poisoned, small_tiles

WIDE = {"dim": 64, "hidden_dim": 64, "head_dim": 16}
SPARSE = tiny((None,), **WIDE, n_experts=4, n_experts_per_token=2)
FLOAT32 = torch.float32


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    yield from poisoned()


@pytest.fixture
def backend() -> TritonAttention:
    made = make("triton")
    assert isinstance(made, TritonAttention)
    return made


def heads(n_heads: int, n_kv_heads: int, head_dim: int, *windows: int | None, **more: Any) -> ModelConfig:
    return tiny(windows or (None,), n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, **more)


LATENT = heads(
    *(4, 4, 24), latent=LatentConfig(None, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16)
)
SHAPES = {
    "3 queries a key, with a window": (heads(3, 1, 16, 5), FLOAT32),
    "4 queries a key, of a temperature": (heads(8, 2, 32, query_temperature=QueryTemperature(16, 0.5)), FLOAT32),
    "128 wide": (heads(2, 1, 128), torch.float16),
    "latent": (LATENT, FLOAT32),
}


@pytest.mark.parametrize("name", SHAPES)
def test_attention_that_works(name: str, backend: TritonAttention) -> None:
    config, dtype = SHAPES[name]
    assert attention_fault(backend, config, dtype, dtype, CPU) is None


def test_a_wrong_rounding_of_keys(backend: TritonAttention) -> None:
    """The interpreter truncates where float8 should be rounded."""
    assert attention_fault(backend, heads(2, 1, 16), torch.float8_e4m3fn, FLOAT32, CPU) is not None


class Launched:
    """A kernel whose launches get other arguments, or a smaller grid."""

    def __init__(self, kernel: Any, change: Callable[..., Sequence[Any]], fewer: int = 0) -> None:
        self._kernel, self._change, self._fewer = kernel, change, fewer

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            self._kernel[(grid[0] - self._fewer, *grid[1:])](*self._change(*args), **options)

        return launch


def same(*args: Any) -> Sequence[Any]:
    return args


def shifted(q: Tensor, k: Tensor, v: Tensor, pages: Tensor, *others: Any) -> Sequence[Any]:
    return (q, k, v, pages.roll(1), *others)


def unrotated(qkv: Tensor, rotations: Tensor, *others: Any) -> Sequence[Any]:
    return (qkv, torch.ones_like(rotations), *others)


BREAKS: dict[str, Callable[[TritonAttention, pytest.MonkeyPatch], None]] = {
    "scores times 0": lambda backend, patch: patch.setattr(attention, "_scale", lambda heads: 0.0),
    "scores times 100": lambda backend, patch: patch.setattr(
        attention, "_scale", lambda heads, real=attention._scale: 100 * real(heads)
    ),
    "the first keys dropped": lambda backend, patch: patch.setattr(attention, "NO_WINDOW", 124),
    "a tile of queries dropped": lambda backend, patch: patch.setattr(
        backend, "_tiles", Launched(backend._tiles, same, fewer=3)
    ),
    "a shifted page of long slices": lambda backend, patch: patch.setattr(
        backend, "_tiles", Launched(backend._tiles, shifted)
    ),
    "a shifted page of short slices": lambda backend, patch: patch.setattr(
        backend, "_parts", Launched(backend._parts, shifted)
    ),
    "a part not joined": lambda backend, patch: patch.setattr(
        backend, "_join", Launched(backend._join, lambda tops, *others: (tops[:, :, [0, 0]], *others))
    ),
    "no rotation": lambda backend, patch: patch.setattr(backend, "_write", Launched(backend._write, unrotated)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_attention_that_is_broken(name: str, backend: TritonAttention, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKS[name](backend, monkeypatch)
    why = attention_fault(backend, heads(3, 1, 16), FLOAT32, FLOAT32, CPU)
    assert why is not None
    assert why.startswith("its numbers are wrong, by ")


# Products


def found(config: ModelConfig, scheme: str, *, fixed: bool = False) -> dict[str, str]:
    return dict(failing(product_checks(config, SCHEMES[scheme], FLOAT32, CPU, fixed)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, with few rows and small tiles."""
    monkeypatch.setattr(cuda, "serves", lambda x: True)
    monkeypatch.setattr(product, "TILES", small_tiles())
    monkeypatch.setattr(selftest, "MOST", {"cpu": (64, 4, 1, 0)})
    monkeypatch.setattr(selftest, "HIDDEN_DIM", 64)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("scheme", "fixed"), [("none", False), ("none", True), ("fp8", False), ("int4-weights", False)]
)
def test_products_that_work(scheme: str, fixed: bool) -> None:
    assert not found(SPARSE, scheme, fixed=fixed)


def one_scale_wrong(x: Tensor, weights: DeviceWeights, **more: Any) -> Tensor:
    scales, *zeros = (table.clone() for table in weights.tables)
    scales.view(-1)[3] *= 1.5
    return PRODUCT(x, replace(weights, tables=(scales, *zeros)), **more)


def gate_and_up_swapped(x: Tensor, weights: DeviceWeights, *, gated: bool = False, **more: Any) -> Tensor:
    if gated:
        half = weights.n_out // 2
        axis = -1 if weights.layout == "int4" else 0
        swapped = [table.roll(half, axis) for table in weights.tables]
        weights = DeviceWeights(weights.layout, weights.bytes.roll(half, 0).view(weights.values.dtype), tuple(swapped))
    return PRODUCT(x, weights, gated=gated, **more)


def not_added(x: Tensor, weights: DeviceWeights, *, onto: Tensor | None = None, **more: Any) -> Tensor:
    y = PRODUCT(x, weights, **more)
    return y if onto is None else onto.copy_(y)


def swapped_experts(*args: Any, **more: Any) -> routing.Assignment:
    made = ASSIGN(*args, **more)
    return replace(made, experts=torch.where(made.experts >= 0, made.experts ^ 1, -1))


PRODUCT, GROUPED, ASSIGN, NORM, SWIGLU = (
    *(product.product, product.grouped, routing.assign),
    *(norm.rms_norm, gate.swiglu),
)
TILES, ON_GPU = product.TILES, selftest.MOST["cuda"]
WRONG: dict[str, tuple[str, Any, str, Any]] = {
    "one scale": ("products", product, "product", one_scale_wrong),
    "gate and up": ("products", product, "product", gate_and_up_swapped),
    "the residual": ("products", product, "product", not_added),
    "the gate alone": ("products", gate, "swiglu", lambda both: SWIGLU(both.roll(1, 1))),
    "an expert": ("experts", routing, "assign", swapped_experts),
    "the shares": ("experts", routing, "join", lambda y, shares, onto: onto),
    "B of an adapter": ("adapters", adapters, "add", lambda *_: None),
    "the norm": ("norms", norm, "rms_norm", lambda x, scale, eps: NORM(x, torch.ones_like(scale), eps)),
}


@pytest.mark.each
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("scheme", ["fp8", "int4-weights"])
@pytest.mark.parametrize("name", WRONG)
def test_products_that_are_broken(name: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, owner, function, broken = WRONG[name]
    monkeypatch.setattr(owner, function, broken)
    assert list(found(SPARSE, scheme)) == [kind]


@pytest.mark.usefixtures("small")
def test_a_kernel_that_fails_for_many_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import OutOfResources

    def fails(x: Tensor, *args: Any, **more: Any) -> Tensor:
        if len(x) > 16:
            raise OutOfResources(119000, 101376, "shared memory")
        return PRODUCT(x, *args, **more)

    monkeypatch.setattr(product, "product", fails)
    monkeypatch.setattr(selftest, "MOST", {"cpu": (64, 4, 20, 0)})
    why = found(tiny((None,), **WIDE), "fp8")["products"]
    assert why.startswith("OutOfResources: ")
    assert "Required: 119000" in why
    assert "\n" not in why


@pytest.mark.usefixtures("small")
def test_the_last_tile_of_experts_that_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows reach each of many experts. On a GPU so many are computed that all tiles serve."""

    def empty(x: Tensor, weights: DeviceWeights, *more: Any, **others: Any) -> Tensor:
        y, tile = GROUPED(x, weights, *more, **others), more[3]
        return y.zero_() if tile == product.TILES[weights.layout][-1] else y

    monkeypatch.setattr(product, "grouped", empty)
    channels = selftest.MOST["cpu"][:2]
    assert all(of_layout[-2].rows < ON_GPU[3] for of_layout in TILES.values())
    monkeypatch.setattr(selftest, "MOST", {"cpu": (*channels, 1, product.TILES["fp8"][-2].rows + 1)})
    assert list(found(SPARSE, "fp8")) == ["experts"]


@pytest.mark.usefixtures("small")
def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Tensor:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    monkeypatch.setattr(norm, "rms_norm", fails)
    why = found(tiny((None,), **WIDE), "fp8")["norms"]
    assert why.startswith("RuntimeError: Failed to find C compiler")
    assert "python3-dev" in why
    assert "TRITON_CACHE_DIR" in why


@pytest.mark.usefixtures("small")
def test_want_of_memory_is_not_the_kernels_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(norm, "rms_norm", fails)
    with pytest.raises(torch.OutOfMemoryError):
        found(tiny((None,), **WIDE), "none")


def test_errors_of_the_driver_in_triton_are_tritons() -> None:
    from triton.runtime.errors import OutOfResources

    assert cuda.failed(RuntimeError("Triton Error [CUDA]: device kernel image is invalid"))
    assert cuda.failed(OutOfResources(1, 0, "shared memory"))
    assert not cuda.failed(RuntimeError("something else"))


def test_programs_of_sampling_repeat_their_loop() -> None:
    n_rows, n_blocks = 9 * len(selftest.SAMPLINGS), selftest.N_TOKENS["cuda"] // sampling.BLOCK
    assert n_blocks * n_rows > 2 * sampling.PROGRAMS


# What serves instead


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("scheme", ["none", "fp8", "int4-weights"])
def test_a_network_that_is_left_to_pytorch_runs_no_kernel(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from model.kernels.cuda import product as kernels

    for owner, name in ((kernels, "product"), (kernels, "grouped"), (norm, "rms_norm"), (gate, "swiglu")):
        monkeypatch.setattr(owner, name, lambda *_, **__: pytest.fail("a kernel runs"))
    monkeypatch.setattr(convert, "dequantize", lambda *_: pytest.fail("a kernel runs"))
    monkeypatch.setattr(cuda, "serve_on", lambda device: True)
    with torch.device("meta"):
        model = Transformer(SPARSE, scheme)
    leave_to_torch(model, {"norms", "products", "experts"})
    weights.load(model, shard_of(SPARSE), "half", random_stored(SPARSE), FLOAT32, CPU, lambda _: None)
    assert not [part for part in model.modules() if isinstance(part, MoE) and part.stacked is not None]
    assert Driver(model.eval(), SdpaAttention()).whole(range(3)).isfinite().all()


def test_adapters_that_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "serves", lambda x: True)
    adapter = Lora(({"wo": LowRank(torch.ones(1, 2), (LowRankPart(0, 0, torch.ones(2, 1)),))},))
    for by_torch in (True, False):
        step = StepAdapters.of([adapter], [1], CPU, by_torch=by_torch)
        assert step is not None
        assert (step.grouped is None) == by_torch


def test_the_kinds_that_fail_on_a_gpu_are_left_to_pytorch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says which and why. Nobody may ask for equal bits of it, and no graph captures experts that wait."""
    monkeypatch.setattr(selftest, "faults", lambda *_: {"experts": "its numbers are wrong", "norms": "OutOfResources"})
    facts = checkpoint(SPARSE)
    options = RunnerOptions("", device="cpu", cache_memory=2**22, dtype="float32")
    monkeypatch.setattr(native, "kernels", lambda: None)
    made = setup.choose(facts, options)
    assert made.by_torch == {"experts", "norms"}
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "PyTorch serves, several times slower, for kernels" in record.message
    assert "(experts: its numbers are wrong; norms: OutOfResources)" in record.message
    on_gpu = replace(made, device=torch.device("cuda"), attention=make("triton"))
    assert not on_gpu.captures
    assert replace(on_gpu, by_torch=frozenset({"norms"})).captures
    monkeypatch.setattr(decide, "check_deterministic", lambda *_: None)
    monkeypatch.setattr(TritonAttention, "obstacle", lambda *_: None)
    with pytest.raises(OptionError, match=r"^--deterministic needs kernels .* \(experts: .*\); leave it out$"):
        setup.choose(facts, replace(options, deterministic=True, attention="triton"))
