"""`noria pull`, `noria list` and `noria rm` against a local hub, as a user runs them."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save as save_tensors
from typer.testing import CliRunner

from model.errors import OptionError
from model.machine.gpu import gpu_memory
from service.cli import build
from service.commands.models.command import ModelRow, _table, this_machine
from tests.model.checkpoint.fake_hub import SHA, Hub, serving
from tests.model.checkpoint.gguf_files import save
from tests.waiting import PATIENCE

CONFIG = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "sliding_window": None,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def repos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("gguf")
    save("llama", folder / "m-F32.gguf")
    gguf = (folder / "m-F32.gguf").read_bytes()
    plain = {"config.json": json.dumps(CONFIG).encode(), "tokenizer.json": b"{}"}
    weights = save_tensors({"model.layers.0.mlp.up_proj.weight": np.zeros((300, 500), np.float16)})
    return {
        "org/plain": plain | {"model.safetensors": weights},
        "org/kinds": {"m-F32.gguf": gguf, "m-Q8_0.gguf": gguf + bytes(64), "README.md": b"hi"},
        "org/bert": {"config.json": b'{"model_type": "bert"}', "model.safetensors": bytes(1000)},
        "org/gated": plain | {"model.safetensors": bytes(1000)},
    }


@pytest.fixture
def hub(repos: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    with serving(repos) as hub:
        yield hub


class User:
    """Runs commands with caches of its own: `pull` in a process of its own, because the hub's client needs one."""

    def __init__(self, hub: Hub, home: Path) -> None:
        plain = {key: value for key, value in os.environ.items() if not key.startswith("NORIA_")}
        self.variables = plain | hub.variables(home)
        self.hub, self.home = hub, home

    def pull(self, *arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "service", "pull", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self.variables, timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    def have(self, name: str, *files: str) -> Path:
        """Files of a repository in the cache, as a pull leaves them; returns their folder."""
        repository = self.home / "hub" / f"models--{name.replace('/', '--')}"
        folder = repository / "snapshots" / SHA
        folder.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(SHA)
        for file, data in self.hub.repos[name].items():
            if not files or file in files:
                (folder / file).write_bytes(data)
        return folder

    def run(self, *arguments: str, say: str = "") -> str:
        """The output of a command, which must end well, to a user who says something."""
        command = build(list(arguments))
        done = CliRunner(env={"COLUMNS": "200"}).invoke(command, arguments, input=say, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    def list(self) -> dict[str, dict[str, Any]]:
        """The rows of the list, by name, without the embedded model, which is always there."""
        first, *rows = json.loads(self.run("list", "--json"))
        assert (first["name"], first["fits"]) == ("smollm2-135m-instruct", True)
        return {row.pop("name"): row for row in rows}


@pytest.fixture
def user(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return User(hub, tmp_path)


def test_pull_list_rm(user: User) -> None:
    code, said, _ = user.pull("org/plain")
    assert code == 0
    assert said.startswith("org/plain is here: 293.4 KiB on the disk, ")
    assert said.endswith("which fits here now (cpu); noria serve org/plain serves it\n")
    (row,) = user.list().values()
    (folder,) = user.home.glob("hub/models--org--plain/snapshots/*")
    plan = json.loads(user.run("plan", str(folder), "--device", "cpu", "--json"))
    assert row["memory"] == plan["weights"] + plan["step"] + plan["fits"][-1]["n_bytes"]
    assert (row["context"], row["device"], row["fits"], row["note"]) == (4096, "cpu", True, "")
    assert "org/plain" in user.run("list")
    with pytest.raises(OptionError, match="nobody answered the question; --yes removes without it"):
        user.run("rm", "org/plain")
    with pytest.raises(AssertionError, match="Remove org/plain and free"):
        user.run("rm", "org/plain", say="n\n")
    assert user.list()
    assert user.run("rm", "org/plain", say="y\n").endswith(
        f"removed org/plain: {row['disk'] / 1024:.1f} KiB are free again\n"
    )
    assert not user.list()
    assert not list(user.home.rglob("model.safetensors"))


def test_a_long_name_is_not_cut() -> None:
    """The user must be able to type what the list shows."""
    name = "organization/A-Model-With-A-Long-Name-24B-Instruct-2501-GGUF:Q4_K_M"
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(
        _table([ModelRow(name, 98362432, 62101156500, 131072, "cpu", False), ModelRow("org/bert", 1, note="why " * 50)])
    )
    column = [line.split("│")[1].strip() for line in console.export_text().splitlines() if line.startswith("│")]
    assert "".join(column) == f"{name}org/bert"


@pytest.mark.parametrize(("visible", "device"), [("1,0", "cuda"), ("", "cpu")])
def test_the_gpu_is_the_one_that_this_process_may_use(
    visible: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the driver's tool: it has 3 MiB free of 7 on GPU 1."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$*" in *memory.free*--id=1) echo 3;; *memory.total*--id=1) echo 7;; esac\n')
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    this_machine.cache_clear()
    found = this_machine()
    this_machine.cache_clear()
    assert found[0] == device
    assert (gpu_memory("free"), gpu_memory()) == ((3 * 2**20, 7 * 2**20) if device == "cuda" else (None, None))


def test_a_repository_goes_as_a_whole(user: User) -> None:
    user.have("org/kinds")
    assert set(user.list()) == {"org/kinds:F32", "org/kinds:Q8_0"}
    with pytest.raises(OptionError, match="whole repositories: org/kinds in place of org/kinds:F32"):
        user.run("rm", "org/kinds:F32", "--yes")
    assert len(user.list()) == 2
    user.run("rm", "org/kinds", "--yes")
    assert not user.list()
    assert not list(user.home.glob("hub/models--*"))


def test_what_noria_cannot_serve_is_listed_with_the_reason(user: User) -> None:
    folder = user.have("org/bert")
    assert "'bert'" in user.list()["org/bert"]["note"]
    (folder / "model.safetensors").unlink()
    row = user.list()["org/bert"]
    assert (row["memory"], row["note"]) == (None, "no weights here; noria pull org/bert fetches them")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/gated", "org/gated needs your consent on the hub: accept its licence there and set HF_TOKEN"),
        ("/models", "'/models' is no name on the hub; expected org/name or org/name:Q4_K_M"),
    ],
)
def test_what_cannot_be_pulled_is_one_line(name: str, message: str, hub: Hub, user: User) -> None:
    hub.gated.add("org/gated")
    code, _, errors = user.pull(name)
    assert code == 1
    assert errors.splitlines()[-1].startswith(f"noria: {message}")
    assert "Traceback" not in errors


def test_a_name_that_is_not_there_gets_the_nearest(user: User) -> None:
    def refused(name: str) -> str:
        with pytest.raises(OptionError) as caught:
            user.run("rm", name, "--yes")
        return str(caught.value)

    assert refused("org/plain") == "there is no org/plain in the hub's cache; it has no model"
    user.have("org/plain")
    assert refused("org/plian") == "there is no org/plian in the hub's cache; there is org/plain"
    assert refused("smollm2-135m-instruct").startswith("smollm2-135m-instruct is a part of the installation; pip")


def test_a_download_that_does_not_fit_the_disk_is_refused_before_it_begins(hub: Hub, user: User) -> None:
    hub.claimed["model.safetensors"] = 2**60
    code, _, errors = user.pull("org/plain")
    assert code == 1
    assert "org/plain needs 1073741824.00 GiB more in the hub's cache, whose disk has " in errors
    assert errors.endswith("free; free some (noria list, noria rm NAME), or move the cache with HF_HOME\n")
    assert "model.safetensors" not in hub.fetched
