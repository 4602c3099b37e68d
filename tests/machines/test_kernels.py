"""Each variant of the CPU kernels by NORIA_KERNELS: it serves where the processor has it, else one line refuses it.

`make test-arm` runs these tests on an emulated processor.
"""

import pytest

from model.kernels.cpu.native import LEVELS, available
from model.machine.host import KERNELS
from tests.machines.serving import ANSWER, SERVE, refused, served

SLOW = {"NORIA_STEP_TIMEOUT": "600"}
"""For an emulated processor: a prompt takes 40 s of it."""
PATIENT = 1800.0


@pytest.mark.parametrize("name", [*LEVELS, "torch", "none"])
def test_variants(name: str) -> None:
    if name in (*available(), "torch"):
        with served(SERVE, {KERNELS: name, **SLOW}, patience=PATIENT) as server:
            assert server.answer() == ANSWER
            assert server.version()["engine"]["kernels"] == ("torch" if name == "torch" else f"native {name}")
    else:
        others = ", ".join((*available(), "torch"))
        found = refused(SERVE, {KERNELS: name}, patience=PATIENT)
        assert found == f"noria: {KERNELS}={name} is not there, choose one of: {others}"
