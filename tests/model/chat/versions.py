"""Mistral's tokenizer files of every version, each in a model directory of its own."""

import shutil
from pathlib import Path

from tests.model.tokenizers.tekken_files import write_tekken
from tests.model.tokenizers.vocabularies import DATA

SENTENCEPIECE = {
    "v1": "tokenizer.model.v1",
    "v2": "mistral_instruct_tokenizer_240216.model.v2",
    "v3": "mistral_instruct_tokenizer_240323.model.v3",
    "v7": "mistral_instruct_tokenizer_241114.model.v7",
}
FILES = ("spm-v1", "spm-v2", "spm-v3", "spm-v7", "tekken-v3", "tekken-v7", "tekken-v11", "tekken-v13", "tekken-v15")


def write_directory(directory: Path, file: str) -> Path:
    """Write a native model directory without weights that has a file of `FILES`; the path of the tokenizer file."""
    kind, _, version = file.partition("-")
    (directory / "params.json").write_text("{}")
    if kind == "tekken":
        return write_tekken(directory, version)
    name = "tokenizer.model" if version == "v1" else f"tokenizer.model.{version}"
    return Path(shutil.copy(DATA / SENTENCEPIECE[version], directory / name))
