"""How modules load the short model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.loading import create
from model.step.runner import ModelRunner
from tests.e2e.nvfp4_model import in_nvfp4

Load = Callable[..., ModelRunner]


@pytest.fixture(scope="session")
def short_nvfp4(short_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first layers of the embedded model with their projections in NVFP4."""
    return in_nvfp4(short_model, tmp_path_factory.mktemp("nvfp4"))


@pytest.fixture(scope="session")
def load_short(short_model: Path, request: pytest.FixtureRequest) -> Load:
    """Load the first layers of the embedded model in this process, with these options; `weights` may be "nvfp4"."""

    def load(weights: str = "", **options: Any) -> ModelRunner:
        model = request.getfixturevalue(f"short_{weights}") if weights else short_model
        chosen = {"max_model_len": 256, "cache_memory": 128 * 2**20, **options}
        return create(lambda stage, done: None, model=str(model), device="cpu", **chosen)

    return load
