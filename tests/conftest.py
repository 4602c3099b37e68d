"""Shared by all tests: the embedded model's directory, converted once into the user's cache."""

import signal
from pathlib import Path

import pytest

# Where a shell runs the tests in the background it has SIGINT ignored, and the programs they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["clients"]  # they run in environments of their own: tests/clients/run.py


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """SmolLM2-135M-Instruct as a directory."""
    from model.checkpoint.resolve import resolve

    return resolve("smollm2-135m-instruct")
