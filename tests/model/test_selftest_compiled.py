"""The self-test of a CPU's kernels: each broken once is found, every variant here passes, and what serves instead."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model import selftest, setup
from model.attention.paged import PagedAttention
from model.config.latent import LatentConfig
from model.config.model import ModelConfig, QueryTemperature
from model.errors import OptionError
from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights
from model.linear.schemes import SCHEMES
from model.options import RunnerOptions
from model.selftest import attention_fault, faults
from tests.model.attention.attending import CPU
from tests.model.driving import checkpoint, tiny

COMPILED = [name for name, scheme in SCHEMES.items() if scheme.compiled]
WIDE = {"dim": 576, "hidden_dim": 640, "n_experts": 8, "n_experts_per_token": 2}
FLOAT32 = torch.float32
pytestmark = pytest.mark.skipif(native.kernels() is None, reason="needs the compiled kernels")


def found(config: ModelConfig, scheme: str, variant: str | None = None) -> dict[str, str]:
    kernels = native.variant(variant) if variant else native.needed()
    return dict(faults(config, SCHEMES[scheme], FLOAT32, CPU, kernels, False))


@pytest.mark.parametrize("variant", native.available())
@pytest.mark.parametrize("scheme", COMPILED)
def test_kernels_that_work(variant: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "kernels", lambda: native.variant(variant))
    assert not found(tiny((None,), **WIDE), scheme, variant)


LATENT = LatentConfig(None, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16)
SHAPES = [
    tiny((None, 5), n_heads=9, n_kv_heads=3, head_dim=64),
    tiny((4096,), n_heads=8, n_kv_heads=2, head_dim=128, query_temperature=QueryTemperature(16, 0.5)),
    tiny((None,), n_heads=48, latent=LATENT),
]


@pytest.mark.parametrize("dtype", [FLOAT32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("config", SHAPES, ids=["3 queries a key", "4 queries a key", "latent"])
@pytest.mark.parametrize("variant", native.available())
def test_attention_that_works(variant: str, config: ModelConfig, dtype: torch.dtype) -> None:
    assert attention_fault(PagedAttention(native.variant(variant)), config, dtype, FLOAT32, CPU) is None


LINEAR, SAMPLE, ATTENTION, EXPERTS = Kernels.linear, Kernels.sample, Kernels.attention, Kernels.experts


def one_output(self: Kernels, weights: PackedWeights, x: Tensor, **more: Any) -> Tensor:
    y = LINEAR(self, weights, x, **more)
    y[-1, 5] *= -1
    return y


def without_residual(self: Kernels, weights: PackedWeights, x: Tensor, onto: Tensor | None = None, **more: Any) -> Any:
    y = LINEAR(self, weights, x, **more)
    return y if onto is None else onto.copy_(y)


def without_adapters(self: Kernels, weights: PackedWeights, x: Tensor, adapters: Any = None, **more: Any) -> Tensor:
    return LINEAR(self, weights, x, **more)


def constant_noise(self: Kernels, logits: Tensor, rows: np.ndarray) -> Tensor:
    rows["start"], rows["step"] = 0, 0
    return SAMPLE(self, logits, rows)


def swapped_pages(self: Kernels, call: Any) -> None:
    if call.n_rows > 100:
        first = (ctypes.c_int64 * 2).from_address(call.pages)
        first[:] = first[::-1]
    ATTENTION(self, call)


def times_100(self: Kernels, call: Any) -> None:
    factors = torch.full((call.n_rows,), 100.0)
    call.q_factors = factors.data_ptr()
    ATTENTION(self, call)


def other_experts(self: Kernels, block: Any, x: Tensor, **more: Any) -> Tensor:
    return EXPERTS(self, block, -x, **more)


WRONG: dict[str, tuple[list[str], str, Callable[..., Any]]] = {
    "one output": (["adapters", "products"], "linear", one_output),
    "the residual": (["adapters", "products"], "linear", without_residual),
    "the experts": (["experts"], "experts", other_experts),
    "B of an adapter": (["adapters"], "linear", without_adapters),
    "the noise": (["sampling"], "sample", constant_noise),
}


@pytest.mark.each
@pytest.mark.parametrize("scheme", COMPILED)
@pytest.mark.parametrize("name", WRONG)
def test_kernels_that_are_broken(name: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, method, broken = WRONG[name]
    monkeypatch.setattr(Kernels, method, broken)
    assert list(found(tiny((None,), **WIDE), scheme)) == kinds


@pytest.mark.parametrize("broken", [swapped_pages, times_100])
def test_attention_that_is_broken(broken: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernels, "attention", broken)
    backend = PagedAttention(native.needed())
    assert attention_fault(backend, SHAPES[0], torch.bfloat16, FLOAT32, CPU) is not None


# What serves instead


def chosen(**options: Any) -> setup.Setup:
    return setup.choose(
        checkpoint(tiny((None,), **WIDE)), RunnerOptions("", device="cpu", cache_memory=2**22, **options)
    )


def test_pytorch_serves_for_broken_products(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert chosen().scheme.compiled
    monkeypatch.setattr(Kernels, "linear", one_output)
    made = chosen()
    assert (made.kernels, made.scheme.name, made.attention_name) == (None, "none", "sdpa")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"the compiled kernels, {native.needed().variant}, do not work on this processor, " in record.message
    assert "products: its numbers are wrong, by " in record.message
    for wanted in ({"quantize": "int8"}, {"deterministic": True}):
        with pytest.raises(
            OptionError, match=r"do not work on this processor, .* name another variant in NORIA_KERNELS"
        ):
            chosen(**wanted)


def test_sdpa_serves_for_broken_attention(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(Kernels, "attention", times_100)
    made = chosen()
    assert made.attention_name == "sdpa"
    assert made.scheme.compiled
    (record,) = caplog.records
    assert "--attention paged does not work here for 4 query heads and 2 key heads of 8 (its nu" in record.message
    with pytest.raises(OptionError, match=r"^--attention paged does not work here .*; use --attention sdpa$"):
        chosen(attention="paged")


def test_a_test_without_real_kernels_replaces_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernels, "linear", one_output)
    monkeypatch.setattr(Kernels, "attention", times_100)
    monkeypatch.setattr(selftest, "failing", lambda checks: {})
    made = chosen()
    assert made.scheme.compiled
    assert made.attention_name == "paged"
