"""How modules load the short model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.loading import create
from model.step.runner import ModelRunner

Load = Callable[..., ModelRunner]


@pytest.fixture(scope="session")
def load_short(short_model: Path) -> Load:
    """Load the first layers of the embedded model in this process, with these options."""

    def load(**options: Any) -> ModelRunner:
        chosen = {"max_model_len": 256, "cache_memory": 128 * 2**20, **options}
        return create(lambda stage, done: None, model=str(short_model), device="cpu", **chosen)

    return load
