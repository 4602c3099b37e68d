"""The embedded model's tokenizer, ours and that of transformers."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from model.checkpoint.resolve import resolve
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer


@pytest.fixture(scope="session")
def directory() -> Path:
    return resolve("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


@pytest.fixture(scope="session")
def oracle(embedded_files: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(embedded_files)
