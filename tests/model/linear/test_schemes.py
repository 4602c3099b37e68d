"""The table of schemes: each row agrees with the stored weights, the choice and the promises."""

import subprocess
import sys

import pytest
import torch

from model import loading, setup
from model.checkpoint.stored import Stored
from model.errors import OptionError
from model.kernels.cpu import native
from model.linear import schemes
from model.linear.compiled import Compiled
from model.linear.floats import Floats, WeightsOnly
from model.linear.schemes import SCHEMES, Scheme
from model.linear.selection import PROJECTIONS, make_linear
from model.options import RunnerOptions
from tests.model.attention.attending import best
from tests.model.driving import CPU, Driver, checkpoint, quantized, random_model, tiny

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
        made.take(0, Stored(torch.randn(32, 256)))
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


TOKENS = [(7 * i) % 64 for i in range(50)]
WIDE = {"dim": 64, "hidden_dim": 128, "head_dim": 16}
"""Whole groups of 64 channels in all projections."""
LIKENESS = {"bfloat16": 0.99, "int8": 0.98, "int4": 0.7, "fp8": 0.97, "int4-weights": 0.7}


@pytest.mark.parametrize("changes", [{}, {"tied_head": True}, {"n_experts": 4, "n_experts_per_token": 2}], ids=str)
@pytest.mark.parametrize("name", LIKENESS)
def test_network_is_near_its_float32_self(name: str, changes: dict[str, object]) -> None:
    """The bits of schemes that promise them are the same in any chunks."""
    model, attention = quantized(name, **(WIDE | changes)), best()
    logits = Driver(model, attention).whole(TOKENS)
    expected = Driver(random_model(model.config), attention).whole(TOKENS)
    assert torch.nn.functional.cosine_similarity(logits, expected, dim=1).median() > LIKENESS[name]
    for chunk in (1, 7) if SCHEMES[name].compiled else ():
        assert torch.equal(Driver(model, attention, shuffle=1).whole(TOKENS, chunk), logits)


@pytest.mark.parametrize("name", [name for name, row in SCHEMES.items() if row.compiled])
def test_parts_may_come_in_any_order(name: str) -> None:
    weight, x = torch.randn(40, 64).bfloat16().float(), torch.randn(3, 64)
    made, whole = (make_linear(64, 40, scheme=name) for _ in range(2))
    assert isinstance(made, Compiled)
    assert isinstance(whole, Compiled)
    whole.take(0, Stored(weight))
    for first, stop in ((24, 40), (0, 5), (5, 24)):
        made.take(first, Stored(weight[first:stop].bfloat16()))
    assert torch.equal(made(x), whole(x))


def test_auto_is_int8_or_a_files_own_blocks_on_a_cpu_unless_a_format_is_requested() -> None:
    for arguments, compiled, kind, expected in (
        (("auto", "auto", "cpu"), True, "floats", "int8"),
        (("auto", "auto", "cpu"), True, "blocks", "int4"),
        (("auto", "float32", "cpu"), True, "floats", "none"),
        (("auto", "auto", "cuda"), True, "floats", "none"),
        (("int4", "auto", "cuda"), True, "floats", "int4-weights"),
        (("auto", "auto", "cpu"), False, "floats", "none"),
    ):
        assert schemes.choose(*arguments, kind=kind, compiled=compiled).name == expected


@pytest.mark.parametrize(
    ("name", "device", "compiled", "message"),
    [
        ("int8", "cuda", True, "int8 is for a CPU only, on a GPU choose one of: auto, none, fp8, int4"),
        ("int8", "cpu", False, "--quantize int8 on a CPU needs the compiled kernels, .* build them"),
        ("int4", "cpu", False, "--quantize int4 on a CPU needs the compiled kernels, .* build them"),
        ("int3", "cpu", True, "--quantize int3 is not known, choose one of: auto, none, fp8, int8, int4, int4-weights"),
        ("bfloat16", "cpu", True, "--quantize bfloat16 is not known, choose one of: auto, none, fp8"),
    ],
)
def test_names_that_cannot_be_chosen(name: str, device: str, compiled: bool, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        schemes.choose(name, "auto", device, compiled=compiled)


@pytest.mark.parametrize(
    ("arguments", "compiled", "expected"),
    [
        (("none", "bfloat16", "cpu"), True, "bfloat16"),
        (("none", "bfloat16", "cpu"), False, "none"),
        (("none", "float32", "cpu"), True, "none"),
        (("none", "bfloat16", "cuda"), True, "none"),
        (("int8", "bfloat16", "cpu"), True, "int8"),
    ],
)
def test_bfloat16_is_what_none_is_on_a_cpu(arguments: tuple[str, str, str], compiled: bool, expected: str) -> None:
    scheme, *more = arguments
    assert schemes.serving(SCHEMES[scheme], *more, compiled=compiled).name == expected


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
        assert setup.choose(checkpoint(tiny()), options).scheme.compiled


def test_names() -> None:
    assert schemes.QUANTIZE_NAMES == ("auto", "none", "fp8", "int8", "int4")


def test_the_table_needs_no_torch() -> None:
    code = "import sys, model.linear.schemes; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
