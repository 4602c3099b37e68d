"""What the code would launch on an absent GPU, against arithmetic."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from benchmarks.gpu import absent
from benchmarks.gpu.absent import Launch
from benchmarks.gpu.estimate import HEADINGS, MISTRAL_7B, Case, row, table
from benchmarks.gpu.shapes import decode_bytes, prefill_flops
from benchmarks.gpu.times import CARDS, Assumptions, Estimator, Times
from model.batch import StepBatch
from model.options import RunnerOptions

pytestmark = pytest.mark.tools

TWO_LAYERS = replace(MISTRAL_7B, n_layers=2, windows=(None,) * 2)
H100 = CARDS["h100"]
DECODE, PROMPT = Case("", 32, 2048), Case("", prompt=2048)

Found = dict[tuple[str, Case], tuple[list[Launch], StepBatch]]


@pytest.fixture(scope="module")
def found() -> Found:
    """The launches of steps of the 7B's shape with two layers."""
    launches: Found = {}
    for scheme in ("none", "int4"):
        with absent.absent(H100.capability, H100.n_sms) as recorder:
            options = RunnerOptions("", quantize=scheme, cache_memory=2**34)
            runner = absent.load(TWO_LAYERS, recorder, options)
            for case in (DECODE, PROMPT):
                (batch,) = case.batches(2048)
                launches[scheme, case] = absent.step(runner, recorder, batch), batch
    return launches


def times(found: Found, scheme: str, case: Case) -> Times:
    return Estimator(H100, TWO_LAYERS).times(*found[scheme, case])


@pytest.mark.parametrize("scheme", ["none", "int4"])
def test_a_step_reads_its_weights_and_its_keys_once(found: Found, scheme: str) -> None:
    """The least by arithmetic; activations and logits add up to 15 % where there are only two layers."""
    least = decode_bytes(TWO_LAYERS, scheme, [2048] * 32)
    assert least <= times(found, scheme, DECODE).n_bytes < 1.15 * least


def test_a_prompt_computes_what_the_arithmetic_says(found: Found) -> None:
    assert times(found, "none", PROMPT).operations == pytest.approx(prefill_flops(TWO_LAYERS, 2048), rel=0.01)


def test_decoding_is_in_a_graph_and_prompts_are_not(found: Found) -> None:
    """A layer has two norms; the head has one more."""
    names = {case: Counter(one.name for one in found["none", case][0] if one.in_graph) for case in (DECODE, PROMPT)}
    assert names[DECODE]["_rms_norm"] == 5
    assert not names[PROMPT]
    assert Counter(one.name for one in found["none", PROMPT][0])["_rms_norm"] == 5


def test_no_step_has_the_launches_of_a_capture(found: Found) -> None:
    """Outside of its graph a step copies its inputs and samples. Only a capture clears the inputs."""
    outside = Counter(one.name for one in found["none", DECODE][0] if not one.in_graph)
    assert outside == {"copy_": 4, "_to_copy": 1, "_sample": 1, "cat": 1}


def test_a_launch_takes_as_long_as_its_slowest_part() -> None:
    """A copy of 1 GB at 80 % of 3.35 TB/s; a product of 8192 x 8192 at 60 % of 989 TFLOP/s."""
    batch, estimator = StepBatch(()), Estimator(H100, TWO_LAYERS)
    half = torch.empty(5 * 10**8, dtype=torch.uint8)
    copy = estimator.times([Launch("copy_", [half, half], True)], batch)
    assert copy.device == pytest.approx(1e9 / (0.8 * 3.35e12) + 1e-6)
    square = torch.empty(8192, 8192, dtype=torch.bfloat16, device="meta")
    product = estimator.times([Launch("mm", [square] * 3, False)], batch)
    assert product.device == pytest.approx(2 * 8192**3 / (0.6 * 989e12) + 3e-6)
    assert product.host == Assumptions().host


def test_the_slower_of_device_and_host_gives_the_step() -> None:
    cells = row(DECODE, Times(1e9, 1e12, 10, 5, 2e-3, 25e-6))
    assert cells[1:6] == ["1.0", "1.00", "10", "5", "2.00"]
    assert float(cells[-1]) == max(2.0, float(cells[-2]) + 0.03)
    assert table([HEADINGS, cells]).count("\n") == 2
