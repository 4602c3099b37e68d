"""Attention compiles for GPUs, also on a machine without one: the interpreter accepts more than compilers."""

import pytest

from model.kernels.cuda.limits import LEAST_SHARED, shared_bytes
from tests.model.kernels import compiling
from tests.model.kernels.compiling import Compiled, launches

CASES = [(name, capability) for name, (_, capabilities) in launches("attention").items() for capability in capabilities]


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    pytest.importorskip("triton")
    return compiling.compiled("attention")


@pytest.mark.timeout(600)  # of all of them; what has been compiled once is in Triton's cache
@pytest.mark.parametrize(("name", "capability"), CASES, ids=str)
def test_compiles(compiled: list[Compiled], name: str, capability: int) -> None:
    made = [one for one in compiled if (one.launch, one.capability) == (name, capability)]
    assert made
    assert not [one.error for one in made if one.error]
    assert all(one.shared <= shared_bytes(divmod(capability, 10)) for one in made)
    attend = [one for one in made if one.kernel.startswith("attend")]
    assert attend
    assert all(one.tensor_cores for one in attend)
    assert all(one.pending and min(one.pending) >= 2 for one in attend), "a loop fetches keys and values ahead"


def test_sampling_compiles_without_a_register_in_memory() -> None:
    pytest.importorskip("triton")
    made = compiling.compiled("sampling")
    assert not [one.error for one in made if one.error]
    assert {one.capability for one in made} == {80, 86, 89, 90, 100}
    assert {one.kernel for one in made} == {"_pass", "_choose"}
    assert all(one.stack == 0 and one.shared <= LEAST_SHARED for one in made)


def of(compiled: list[Compiled], name: str, capability: int, kernel: str) -> Compiled:
    """A kernel of the launch "attention, `name`"."""
    key = (f"attention, {name}", capability, kernel)
    (found,) = (one for one in compiled if (one.launch, one.capability, one.kernel) == key)
    return found


@pytest.mark.parametrize(
    ("name", "capability", "product"),
    [("bfloat16", 89, "mma.sync"), ("bfloat16", 90, "wgmma.mma_async"), ("bfloat16, long", 100, "tcgen05.mma")],
)
def test_long_slices_use_the_tensor_cores_of_their_gpu(
    compiled: list[Compiled], name: str, capability: int, product: str
) -> None:
    made = of(compiled, name, capability, "attend_tiles")
    assert (made.instructions or {})[product]
    assert made.stack == 0, "no register is kept in memory"


def test_deterministic_long_slices_multiply_as_short_ones(compiled: list[Compiled]) -> None:
    """Equal bits need equal instructions: no wgmma, which the tiles of other long slices use."""
    kernels = (of(compiled, "deterministic", 90, name).instructions or {} for name in ("attend_parts", "attend_tiles"))
    parts, tiles = ({name: found[name] for name in ("mma.sync", "wgmma.mma_async")} for found in kernels)
    assert parts["mma.sync"] > 0
    assert parts["wgmma.mma_async"] == 0
    assert tiles == parts


def test_three_programs_of_short_slices_fit_a_multiprocessor_of_an_h100(compiled: list[Compiled]) -> None:
    """3 programs x 3 blocks of 16 KiB under way: 3.35 TB/s / 132 take 18 KiB for each 0.7 us of latency."""
    parts = of(compiled, "bfloat16", 90, "attend_parts")
    assert 3 * (parts.shared + 1024) <= 228 * 1024
    assert 3 * parts.registers * 32 * parts.warps <= 65536
    assert list(parts.pending) == [6], "of each of the next three blocks, keys and values"


def test_partial_sums_are_fetched_ahead(compiled: list[Compiled]) -> None:
    joins = [one for one in compiled if one.kernel == "join"]
    assert joins
    assert all(min(one.pending) >= 8 for one in joins)


def test_what_is_not_known_has_the_least() -> None:
    assert shared_bytes((13, 0)) == LEAST_SHARED == 99 * 1024
