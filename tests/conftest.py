"""Shared by all tests: the embedded model's directory, converted once into the user's cache."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """SmolLM2-135M-Instruct as a directory."""
    from model.checkpoint.resolve import resolve

    return resolve("smollm2-135m-instruct")
