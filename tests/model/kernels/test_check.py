"""The comparison of two variants at start: it covers every layout, and the next variant serves where one differs."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from model.kernels.cpu import check, native
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import PackedWeights
from model.kernels.cpu.records import FORMATS


@pytest.mark.parametrize("pair", [*combinations(native.available(), 2)], ids="-".join)
def test_variants_agree(pair: tuple[str, str]) -> None:
    assert check.differing(*map(native.variant, pair)) == []


@pytest.mark.parametrize("layout", FORMATS)
def test_numbers_that_round_differ_where_no_bits_are_promised(layout: str) -> None:
    """Else the promise would be too small."""
    x = check.numbers(max(check.ROWS), check.N_IN, whole=False)
    for first, second in combinations(map(native.variant, native.available()), 2):
        mine, theirs = (kernels.linear(check.weights(kernels, layout, whole=False), x) for kernels in (first, second))
        same = torch.equal(mine, theirs)
        assert same == check.same_bits(first.variant, second.variant, layout)


class Broken:
    """Kernels whose last result is wrong by a bit for weights of one layout and `n` rows."""

    def __init__(self, kernels: Kernels, variant: str, layout: str, n: int) -> None:
        self._kernels, self.variant, self._layout, self._n = kernels, variant, layout, n
        self.quantize, self.pack, self.pack_superblocks = kernels.quantize, kernels.pack, kernels.pack_superblocks
        self.pack_fp4 = kernels.pack_fp4
        self.plan = kernels.plan

    def attention(self, call: Any) -> None:
        if self._layout == "attention":
            call.n_keys = call.n_rows
        self._kernels.attention(call)

    def linear(self, weights: PackedWeights, x: Tensor) -> Tensor:
        y = self._kernels.linear(weights, x)
        if FORMATS[weights.record.format] == self._layout and len(x) == self._n:
            y.view(torch.int32)[-1, -1] ^= 1
        return y


Choose = Callable[..., native.KernelChoice]


@pytest.fixture
def choose(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> Choose:
    """The choice on a processor that runs three variants; `broken` are layouts of the first ones with a wrong bit."""

    def chosen(name: str = "", *broken: str, n: int = check.ROWS[-1]) -> native.KernelChoice:
        names = ("avx512vnni", "avx2", "baseline")
        layouts = (*broken, "", "", "")
        made = {name: Broken(kernels, name, layouts[i], n) for i, name in enumerate(names)}
        monkeypatch.setattr(native, "available", lambda: names)
        monkeypatch.setattr(native, "variant", made.__getitem__)
        return native._choice.__wrapped__(name)

    return chosen


@pytest.mark.parametrize(("ratio", "serves"), [(2.5, "avx512vnni"), (1.1, "avx2"), (0.9, "avx2")])
def test_a_variant_that_is_measured_serves_only_if_it_is_faster(
    choose: Choose, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ratio: float, serves: str
) -> None:
    monkeypatch.setattr(check, "MEASURED", {"avx512vnni"})
    monkeypatch.setattr(check, "speed", lambda first, second: ratio)
    made = choose("")
    assert made.kernels is not None
    assert made.kernels.variant == serves
    assert f"avx512vnni is {ratio:.2f} times as fast as avx2" in made.reason
    assert len(caplog.records) == (serves == "avx2")
    named = choose("avx512vnni")  # whoever names a variant gets it
    assert named.kernels is not None
    assert named.kernels.variant == "avx512vnni"


def test_the_log_says_why_a_variant_that_is_slow_does_not_serve(
    choose: Choose, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(check, "MEASURED", {"avx512vnni"})
    monkeypatch.setattr(check, "speed", lambda first, second: 0.9)
    choose("")
    said = "kernels: avx512vnni is 0.90 times as fast as avx2; avx2 serves instead"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_the_next_variant_serves_where_attention_differs(choose: Choose) -> None:
    made = choose("", "attention")
    assert made.kernels is not None
    assert made.kernels.variant == "avx2"
    assert "avx512vnni differs from avx2 in attention" in made.reason


def test_speed_compares_the_products_of_two_variants(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"fast": 2.0, "slow": 5.0}
    monkeypatch.setattr(check, "_seconds", lambda kernels: seconds[kernels.variant])
    fast, slow = (Broken(kernels, name, "", 0) for name in seconds)
    assert check.speed(fast, slow) == 2.5
    assert check.speed(slow, fast) == 0.4


class Clipping(Broken):
    """Kernels without outliers."""

    def linear(self, weights: PackedWeights, x: Tensor) -> Tensor:
        return super().linear(weights, x.clamp(-128, 128))


@pytest.mark.parametrize("n", check.ROWS)
def test_outliers_are_compared(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(check, "ROWS", (n, max(check.ROWS)))
    assert "int8" in check.differing(kernels, Clipping(kernels, kernels.variant, "", 0))


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("n", check.ROWS)
def test_the_next_variant_serves_where_the_best_differs(
    choose: Choose, layout: str, n: int, caplog: pytest.LogCaptureFixture
) -> None:
    made = choose("", layout, n=n)
    assert made.kernels is not None
    assert made.kernels.variant == "avx2"
    differs = f"avx512vnni differs from avx2 in {layout}"
    assert made.reason == f"the best of avx512vnni, avx2, baseline; {differs}; avx2 agrees with baseline"
    assert [record.getMessage() for record in caplog.records] == [f"kernels: {differs}; avx2 serves instead"]


def test_the_last_variant_serves_where_all_differ(choose: Choose) -> None:
    made = choose("", "q4", "q8_min")
    assert made.kernels is not None
    assert made.kernels.variant == "baseline"


def test_a_variable_is_checked_too(choose: Choose) -> None:
    assert choose("avx2").reason == "NORIA_KERNELS=avx2; avx2 agrees with baseline"
    made = choose("avx512vnni", "bfloat16")
    assert made.kernels is not None
    assert made.kernels.variant == "avx2"
    assert choose("baseline").reason == "NORIA_KERNELS=baseline"
    assert choose("torch") == (None, "NORIA_KERNELS=torch")


def test_a_library_without_a_variant_of_this_processor_means_pytorch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "has", lambda compiled, name: False)
    monkeypatch.setattr(native, "available", native.available.__wrapped__)
    assert native._choice.__wrapped__("") == (None, "no compiled kernels, see the log")
    assert "no variant for this processor, PyTorch serves" in caplog.text
