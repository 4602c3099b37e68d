"""Shared by all tests: the embedded model's directory, converted once into the user's cache."""

import os
import signal
from pathlib import Path

import pytest
import torch

# Where a shell runs the tests in the background it has SIGINT ignored, and the programs they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton's kernels run under its interpreter where there is no GPU. It is chosen when they are imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

collect_ignore = ["clients"]  # they run in environments of their own: tests/clients/run.py


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """PyTorch computes on one thread: two workers share the cores. The kernels' own threads are not touched."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """SmolLM2-135M-Instruct as a directory."""
    from model.checkpoint.resolve import resolve

    return resolve("smollm2-135m-instruct")
