"""Shared by all tests: threads, garbage collection, and the embedded model's directory."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Two workers share the cores: threads that wait for each other would spin while the other worker computes.
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # it reads the variable above

from tests.crosses import left_out

ABSENT = str(Path(__file__).parent / "absent")
sys.path.insert(0, ABSENT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ABSENT, os.environ.get("PYTHONPATH")]))  # of child processes

# Where a shell runs the tests in the background it has SIGINT ignored, and the programs they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton's kernels run under its interpreter where there is no GPU. It is chosen when they are imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Every run tries the same examples. `--hypothesis-profile=default` searches at random.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

collect_ignore = ["agents", "clients", "ray"]  # in environments of their own: make test-agents, test-clients, test-ray


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and items live until the end: no garbage collection looks at them, neither now nor during the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What `make test` leaves out of crosses is marked before pytest chooses by marks."""
    for item in left_out(items):
        item.add_marker(pytest.mark.full)


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """What a module has imported lives until the end too.

    What it leaves behind is collected before the next: pytest holds the arguments of its last test until then.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """PyTorch computes on one thread, also after a test that chose another number."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The file of SmolLM2-135M-Instruct."""
    from model.checkpoint.resolve import resolve

    return resolve("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def embedded_files(embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration and the tokenizer of the embedded model in a directory, for `transformers`."""
    from tests.gguf_models import extracted

    return extracted(embedded_model, tmp_path_factory.mktemp("embedded") / "files")


@pytest.fixture(scope="session")
def short_model(embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 4 of SmolLM2's 30 layers, with its embeddings, head and tokenizer: for a fraction of the time."""
    from tests.gguf_models import shortened

    return shortened(embedded_model, tmp_path_factory.mktemp("short") / "smollm2-short.gguf", n_layers=4)
