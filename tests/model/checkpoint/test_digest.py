"""Digests of models are those of coreutils."""

import subprocess
from pathlib import Path

from model.checkpoint.digest import adapter_files, files_digest, network_files, stamp


def shell(command: str, folder: Path) -> str:
    return subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=True).stdout.split()[0]


def test_the_parts_of_a_gguf_model(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, part in enumerate(parts):
        part.write_bytes(bytes([number]) * 3000)
    assert network_files(parts[0]) == tuple(parts)
    expected = shell("sha256sum m-*.gguf | cut -c1-64 | sha256sum", tmp_path)
    assert files_digest(network_files(parts[0])) == f"sha256:{expected}"
    (tmp_path / "one.gguf").write_bytes(b"one")
    assert files_digest([tmp_path / "one.gguf"]) == f"sha256:{shell('sha256sum one.gguf', tmp_path)}"


def test_the_configuration_and_all_shards_of_a_directory(tmp_path: Path) -> None:
    names = ["config.json", *(f"model-0000{number}-of-00002.safetensors" for number in (1, 2))]
    for name in (*names, "tokenizer.json", "README.md"):
        (tmp_path / name).write_text(name)
    assert [path.name for path in network_files(tmp_path)] == names
    before = files_digest(network_files(tmp_path))
    expected = shell(f"sha256sum {' '.join(names)} | cut -c1-64 | sha256sum", tmp_path)
    assert before == f"sha256:{expected}"
    (tmp_path / "tokenizer.json").write_text("another")
    assert files_digest(network_files(tmp_path)) == before
    seen = stamp(network_files(tmp_path))
    (tmp_path / "config.json").write_text("another")
    assert files_digest(network_files(tmp_path)) != before
    assert stamp(network_files(tmp_path)) != seen


def test_the_files_of_an_adapter(tmp_path: Path) -> None:
    for name in ("adapter_model.safetensors", "adapter_config.json", "README.md"):
        (tmp_path / name).write_text(name)
    assert [path.name for path in adapter_files(tmp_path)] == ["adapter_config.json", "adapter_model.safetensors"]
    assert adapter_files(tmp_path / "adapter_model.safetensors") == (tmp_path / "adapter_model.safetensors",)
