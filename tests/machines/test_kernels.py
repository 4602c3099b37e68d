"""Each variant of the CPU kernels by NORIA_KERNELS: it serves where the processor has it, else one line refuses it."""

import pytest

from model.kernels.cpu.native import ENVIRONMENT, LEVELS, available
from tests.machines.serving import ANSWER, SERVE, refused, served


@pytest.mark.parametrize("name", [*LEVELS, "torch", "none"])
def test_variants(name: str) -> None:
    if name in (*available(), "torch"):
        with served(SERVE, {ENVIRONMENT: name}) as server:
            assert server.answer() == ANSWER
            assert server.version()["engine"]["kernels"] == ("torch" if name == "torch" else f"native {name}")
    else:
        others = ", ".join((*available(), "torch"))
        assert (
            refused(SERVE, {ENVIRONMENT: name}) == f"noria: {ENVIRONMENT}={name} is not there, choose one of: {others}"
        )
