"""Processors of other years, which qemu emulates: the whole server runs in it, every child process too."""

from pathlib import Path

import pytest

from tests.machines.environments import emulated
from tests.machines.serving import ANSWER, served


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("processor", "variant"), [("Haswell", "avx2"), ("Nehalem", "baseline")])
def test_x86(processor: str, variant: str, tmp_path: Path) -> None:
    """Haswell has no AVX-512, Nehalem no AVX: an instruction that the processor does not have ends the process."""
    python = emulated(tmp_path / "environment", processor)
    # The default --step-timeout holds however slow the machine is.
    with served([str(python), "-m", "service", "serve"], patience=900) as server:
        assert server.answer() == ANSWER
        assert server.version()["engine"]["kernels"] == f"native {variant}"
