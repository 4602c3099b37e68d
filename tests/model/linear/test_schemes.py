"""The table of schemes and cache formats: each row agrees with the stored weights, the choice and the promises."""

import subprocess
import sys

import pytest
import torch

from model import loading, setup
from model.attention import BACKENDS
from model.attention.paged import PagedAttention
from model.errors import OptionError
from model.kernels.cpu import native
from model.linear import schemes
from model.linear.compiled import Compiled
from model.linear.floats import Floats, WeightsOnly
from model.linear.schemes import CACHE_FORMATS, SCHEMES, CacheFormat, Scheme
from model.linear.selection import PROJECTIONS, make_linear
from model.network import weights
from model.network.transformer import Transformer
from model.options import RunnerOptions
from model.sharding.shard import shard_of
from tests.model.driving import CPU, Driver, checkpoint, random_tensors, tiny

every_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda scheme: scheme.name)


def test_every_row_has_a_projection() -> None:
    assert list(PROJECTIONS) == list(SCHEMES)


@every_scheme
def test_where_it_runs(scheme: Scheme) -> None:
    projection = PROJECTIONS[scheme.name]
    assert scheme.compiled == issubclass(projection, Compiled) != issubclass(projection, Floats)


@every_scheme
def test_layout_and_bits_of_what_is_stored(scheme: Scheme) -> None:
    made = make_linear(256, 32, scheme=scheme.name)
    if isinstance(made, WeightsOnly):
        stored = made.allocate((), torch.bfloat16, CPU)
        assert stored.layout == scheme.layout
        n_bytes = sum(tensor.nbytes for tensor in (stored.values, *stored.tables))
        assert n_bytes == 256 * 32 * (scheme.bits(256) or 0) / 8
    elif isinstance(made, Compiled) and native.kernels() is not None:
        made.take(0, torch.randn(32, 256))
        assert made.packed is not None
        n_bytes = sum(tensor.nbytes for tensor in (made.packed.packed, made.packed.scales) if tensor is not None)
        assert n_bytes == 256 * 32 * (scheme.bits(256) or 0) / 8


@every_scheme
def test_widths(scheme: Scheme) -> None:
    if scheme.multiple == 1:
        make_linear(33, 8, scheme=scheme.name)
        return
    with pytest.raises(OptionError, match=f"--quantize {scheme.quantize} needs projections of multiples of"):
        make_linear(3 * scheme.multiple // 2, 8, scheme=scheme.name)
    assert scheme.fits(tiny(dim=64, hidden_dim=128, head_dim=16))
    assert not scheme.fits(tiny(dim=64, hidden_dim=72, head_dim=16))


@pytest.mark.parametrize("scheme", [row for row in SCHEMES.values() if row.bit_identical], ids=lambda row: row.name)
@pytest.mark.skipif(native.kernels() is None, reason="promises are those of compiled kernels")
def test_what_is_promised_bit_identical_is(scheme: Scheme) -> None:
    config = tiny((None, 9), hidden_dim=64)
    with torch.device("meta"):
        model = Transformer(config, scheme.name)
    weights.load(
        model, shard_of(config), "half", random_tensors(config), torch.float32, CPU, lambda _: None, torch.bfloat16
    )
    tokens = [(7 * i) % 64 for i in range(50)]
    logits = Driver(model.eval(), PagedAttention()).whole(tokens)
    for chunk in (1, 7):
        assert torch.equal(Driver(model, PagedAttention(), shuffle=1).whole(tokens, chunk), logits)


@pytest.mark.parametrize("compiled", [True, False])
def test_deterministic_is_refused_where_pytorch_computes_on_a_cpu(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any weight is read. bfloat16, which --dtype names, and int8 run in the compiled kernels."""
    if not compiled:
        monkeypatch.setenv("NORIA_KERNELS", "torch")
    monkeypatch.setattr(loading, "read", lambda *_: pytest.fail("weights are read"))
    remedy = "other rows; choose --quantize int8" if compiled else "other rows; build the compiled kernels"
    for changes in ({"dtype": "float32"}, {"dtype": "float16"}, {"dtype": "float32", "quantize": "fp8"}):
        options = RunnerOptions("", device="cpu", deterministic=True, **changes)
        with pytest.raises(OptionError, match=f"--deterministic is not for what PyTorch computes on a CPU.*{remedy}"):
            loading.load_from(checkpoint(tiny()), options, lambda *_: None)
    for changes in ({"dtype": "bfloat16"}, {"quantize": "int8"}) if compiled else ():
        options = RunnerOptions("", device="cpu", deterministic=True, **changes)
        assert setup.choose(checkpoint(tiny()), options).scheme.bit_identical


@pytest.mark.parametrize("row", CACHE_FORMATS.values(), ids=lambda row: row.name)
def test_cache_formats_take_what_backends_allocate(row: CacheFormat) -> None:
    dtype = getattr(torch, row.dtype)
    backends = {name: kind for name, kind in BACKENDS.items() if dtype in kind.dtypes}
    assert backends
    assert not row.needs or [f"--attention {name}" for name in backends] == [row.needs.partition(" (")[0]]
    for kind in backends.values():
        backend = kind.__new__(kind)  # memory needs none of what kernels do
        cache = backend.allocate((3, 2, 24), dtype, CPU)
        assert cache.k.nbytes + cache.v.nbytes == 2 * 3 * backend.page_size * 2 * row.head_bytes(24)


def test_names() -> None:
    assert schemes.QUANTIZE_NAMES == ("auto", "none", "fp8", "int8", "int4")
    assert schemes.KV_DTYPES == ("auto", "int8", "fp8")


def test_the_table_needs_no_torch() -> None:
    code = "import sys, model.linear.schemes; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
