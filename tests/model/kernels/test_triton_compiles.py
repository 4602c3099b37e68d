"""Every Triton kernel compiles for GPUs, also on a machine without one: the interpreter accepts more than compilers."""

import pytest

from model.kernels.cuda.limits import LEAST_SHARED, shared_bytes
from tests.model.kernels import compiling
from tests.model.kernels.compiling import Compiled, launches

MODULES = ("attention",)
CASES = [
    (name, capability)
    for module in MODULES
    for name, (_, capabilities) in launches(module).items()
    for capability in capabilities
]


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    pytest.importorskip("triton")
    return compiling.compiled(*MODULES)


@pytest.mark.timeout(600)  # of all of them; what has been compiled once is in Triton's cache
@pytest.mark.parametrize(("name", "capability"), CASES, ids=str)
def test_compiles(compiled: list[Compiled], name: str, capability: int) -> None:
    made = [one for one in compiled if (one.launch, one.capability) == (name, capability)]
    assert made
    assert not [one.error for one in made if one.error]
    assert all(one.shared <= shared_bytes(divmod(capability, 10)) for one in made)
    if name.startswith("attention"):
        assert {one.kernel for one in made if one.tensor_cores} == {"attend_parts", "attend_tiles"}


def test_what_is_not_known_has_the_least() -> None:
    assert shared_bytes((13, 0)) == LEAST_SHARED == 99 * 1024


def test_pending_copies() -> None:
    ttgir = """
      ttg.async_wait {num = 7 : i32}
      %1 = scf.for %i = %a to %b step %c iter_args(%x = %y) -> (f32)  : i32 {
        %2 = ttg.async_wait %x {num = 0 : i32}
        scf.for %j = %a to %b {
          ttg.async_wait {num = 2 : i32}
        }
        ttg.async_wait {num = 4 : i32}
      } {tt.warp_specialize}
      ttg.async_wait {num = 9 : i32}
    """
    assert compiling.pending_copies(ttgir) == (0, 2, 4)
