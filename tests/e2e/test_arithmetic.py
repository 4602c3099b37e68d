"""The tokens of one version of the arithmetic are the same with every variant of the kernels, and on every machine.

If a change gives answers other bits, raise ARITHMETIC in `model/kernels/cpu/native.py` and write the new hashes here:
`python -m tests.e2e.arithmetic MODEL` prints them. Receipts of the old version then promise nothing to the new one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from model.kernels.cpu import check, native
from model.machine.host import KERNELS
from tests.e2e.arithmetic import SCHEMES, answer_hash

VERSION = 1
ANSWERS = {
    "int8": "4eea7d5aaf2bfb74",
    "int4": "a69fe363d8c870d1",
    "bfloat16": "9bdfa50daf298c34",
    "nvfp4": "1b1f00603b1ca3d2",
}
FUSED = [name for name in native.available() if name not in check.SEPARATE and "avx2" in native.LEVELS]
SEPARATE = [name for name in native.available() if name in check.SEPARATE]


@pytest.mark.each
@pytest.mark.parametrize("variant", FUSED)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_variant_gives_the_answers_of_this_version(
    short_model: Path, scheme: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert native.ARITHMETIC == VERSION
    monkeypatch.setenv(KERNELS, variant)
    assert answer_hash(short_model, scheme) == ANSWERS[scheme]
    assert native.arithmetic(native.variant(variant)) == f"x86-{VERSION}"


@pytest.mark.skipif(not SEPARATE, reason="needs the baseline of x86")
def test_the_baseline_has_other_answers_and_another_name(short_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the hashes see a change of the last bits."""
    monkeypatch.setenv(KERNELS, SEPARATE[0])
    assert answer_hash(short_model, "int8") != ANSWERS["int8"]
    assert native.arithmetic(native.variant(SEPARATE[0])) == f"x86-separate-{VERSION}"


@pytest.mark.skipif(not FUSED, reason="needs a variant of x86 with fused additions")
@pytest.mark.parametrize("schemes", [["int8"], pytest.param([*SCHEMES], marks=pytest.mark.full)], ids="-".join)
def test_pytorch_for_an_older_processor_changes_no_token(short_model: Path, schemes: list[str]) -> None:
    """PyTorch's own kernels, which a processor chooses too, compute the tables of RoPE and change logits."""
    command = [sys.executable, "-m", "tests.e2e.arithmetic", str(short_model), *schemes]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert dict(line.split() for line in done.stdout.splitlines()) == {name: ANSWERS[name] for name in schemes}
