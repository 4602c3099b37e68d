"""Environments without packages that serving does not need."""

from pathlib import Path

from tests.machines.environments import without
from tests.machines.serving import ANSWER, served

OPTIONAL = (
    *("huggingface-hub", "llguidance", "mistral-common", "pillow"),
    *("prompt-toolkit", "sentencepiece", "soundfile", "soxr", "tiktoken", "uvloop"),
)
"""Of `make serve`'s packages: for other models, images, audio, constraints, the chat in a terminal, and for speed."""


def test_what_make_serve_installs(tmp_path: Path) -> None:
    """Without what the tests need, such as triton, transformers and OpenTelemetry's SDK."""
    with served([str(without(tmp_path / "environment")), "-m", "service", "serve"]) as server:
        assert server.answer() == ANSWER


def test_without_each_optional_package(tmp_path: Path) -> None:
    with served([str(without(tmp_path / "environment", *OPTIONAL)), "-m", "service", "serve"]) as server:
        assert server.answer() == ANSWER
