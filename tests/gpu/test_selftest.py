"""The self-test on a GPU: all that Triton compiles there is right, for each scheme, in less than a second."""

import time

import pytest
import torch

from model import selftest
from model.attention.triton import TritonAttention
from model.config.latent import LatentConfig
from model.linear.schemes import SCHEMES
from tests.gpu.cases import DTYPES, IS_INTERPRETED, combined, sized
from tests.model.driving import tiny

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")
SIZES = sized(
    {"dim": 4096, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128},
    {"dim": 256, "hidden_dim": 384, "n_heads": 8, "n_kv_heads": 2, "head_dim": 32},
)
LARGE = sized({"dim": 7168, "n_heads": 128, "n_experts": 128}, {"dim": 256, "n_heads": 16, "n_experts": 8})
LATENT = LatentConfig(1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
MODELS = {
    "dense": tiny((None, 4096), **SIZES),
    "experts": tiny((None,), **SIZES, n_experts=8, n_experts_per_token=2),
    "latent": tiny((None,), **LARGE, latent=LATENT, n_experts_per_token=4),
}
SECONDS = 1.0


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter computes fewer tokens and rows."""
    monkeypatch.setitem(selftest.N_TOKENS, "cuda", sized(selftest.N_TOKENS["cuda"], 1100))
    monkeypatch.setitem(selftest.MOST, "cuda", sized(selftest.MOST["cuda"], (256, 8, 300, 0)))


@pytest.mark.parametrize(
    ("model", "scheme", "fixed", "dtype"),
    combined(MODELS, [name for name, scheme in SCHEMES.items() if not scheme.compiled], [False, True], DTYPES),
    ids=str,
)
def test_products(model: str, scheme: str, fixed: bool, dtype: torch.dtype) -> None:
    for _ in range(sized(2, 1)):
        started = time.perf_counter()
        assert not selftest.faults(MODELS[model], SCHEMES[scheme], dtype, GPU, None, fixed)
        seconds = time.perf_counter() - started
    assert IS_INTERPRETED or seconds < SECONDS, "once it is compiled"


def kept(dtype: torch.dtype) -> list[torch.dtype]:
    able = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)
    return [dtype, torch.float8_e4m3fn] if able else [dtype]


@pytest.mark.parametrize(("model", "deterministic", "dtype"), combined(MODELS, [False, True], DTYPES), ids=str)
def test_attention(model: str, deterministic: bool, dtype: torch.dtype) -> None:
    for stored in kept(dtype):
        backend = TritonAttention(deterministic)
        assert selftest.attention_fault(backend, MODELS[model], stored, dtype, GPU) is None
