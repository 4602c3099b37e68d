"""The embedded model's tokenizer, ours and that of transformers."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer


@pytest.fixture(scope="session")
def directory(embedded_files: Path) -> Path:
    return embedded_files


@pytest.fixture(scope="session")
def tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


@pytest.fixture(scope="session")
def oracle(directory: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(directory)
