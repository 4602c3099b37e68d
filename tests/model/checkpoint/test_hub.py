"""Downloads from a local server that speaks the hub's file API, in a child: the client reads its endpoint once."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from model.checkpoint.gguf.kinds import choose, find_kinds
from model.checkpoint.gguf.parts import find_parts
from model.checkpoint.hub import OFFLINE, _bar
from model.checkpoint.resolve import default_name, ignore_progress, resolve, resolve_again
from model.errors import ModelError
from tests.model.checkpoint.fake_hub import SHA, Hub, serving
from tests.model.checkpoint.gguf_files import new_file, write

CONFIG = b'{"model_type": "llama"}'
REPOS = {  # every file differs: the client downloads equal contents once
    "org/both": {
        "config.json": CONFIG,
        "params.json": b"{}",
        "tokenizer.json": b'{"model": {}}',
        "model.safetensors": bytes(300_000),
        "consolidated.safetensors": bytes(300_000),
        "pytorch_model.bin": bytes(1000),
        "README.md": b"# hello",
        "original/consolidated.00.pth": bytes(1000),
    },
    "org/native": {
        "params.json": b'{"dim": 8}',
        "tokenizer.model.v3": b"spm",
        "consolidated-00001-of-00002.safetensors": bytes(1000),
        "consolidated-00002-of-00002.safetensors": bytes(2000),
    },
    "org/pickled": {"config.json": CONFIG, "pytorch_model.bin": bytes(1000)},
}


def ggufs() -> dict[str, bytes]:
    """Three models of different kinds, one in two parts, and files that are no model."""
    with TemporaryDirectory() as folder:
        for kind, split in (("Q4_K_M", {}), ("UD-Q4_K_XL", {}), ("Q8_0", {"split_max_tensors": 1})):
            writer = new_file(Path(folder) / f"Model-7B-{kind}.gguf", **split)
            writer.add_name(kind)
            for number in range(len(split)):
                writer.add_tensor("output_norm.weight", np.full(32, number + 1.0, np.float32))
            write(writer)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    parts = {name: f"Q8_0/{name}" for name in files if "-of-" in name}
    return {parts.get(name, name): data for name, data in files.items()}


REPOS["org/ggufs"] = {**ggufs(), "config.json": b'{"model_type": "mistral"}', "mmproj-F16.gguf": b"GGUF"}
REPOS["org/two"] = {"a-Q8_0.gguf": b"a", "b-Q8_0.gguf": b"b"}
REPOS["org/both"]["other-Q4_0.gguf"] = ggufs()["Model-7B-Q4_K_M.gguf"] + bytes(32)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(REPOS) as hub:
        yield hub


CHILD = """
import json, logging, sys
from pathlib import Path
from model.checkpoint.resolve import resolve
from model.errors import ModelError
answers, lines = [], []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("model").addHandler(handler)
logging.getLogger("model").setLevel("INFO")
for name, revision, *rest in json.loads(sys.argv[1]):
    stages = []
    lines.clear()
    try:
        note = lambda stage, fraction: stages.append((stage, fraction))
        directory = resolve(name, revision=revision, progress=note, weights=not rest)
        files = sorted(path.name for path in directory.rglob("*"))
        answers.append({"directory": str(directory), "files": files, "stages": stages, "lines": list(lines)})
    except ModelError as error:
        answers.append({"error": str(error)})
print(json.dumps(answers))
"""


def _resolve(hub: Hub, home: Path, *models: tuple[str | None, ...]) -> list[dict]:
    env = {**os.environ, **hub.variables(home)}
    command = [sys.executable, "-c", CHILD, json.dumps(models), str(home)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_fetches_what_serving_needs_and_nothing_twice(hub: Hub, tmp_path: Path) -> None:
    both, native, again = _resolve(hub, tmp_path, ("org/both", None), ("org/native", None), ("org/both", None))
    assert both["files"] == ["config.json", "model.safetensors", "params.json", "tokenizer.json"]
    assert native["files"] == [
        "consolidated-00001-of-00002.safetensors",
        "consolidated-00002-of-00002.safetensors",
        "params.json",
        "tokenizer.model.v3",
    ]
    assert again["files"] == both["files"]
    assert sorted(hub.fetched) == sorted(both["files"] + native["files"])
    fractions = [fraction for stage, fraction in both["stages"] if stage == "downloading"]
    assert fractions[0] == 0.0
    assert fractions[-1] == 1.0
    assert any(fraction == 1.0 for fraction in fractions[1:-1])  # the bytes were counted


def test_a_plan_needs_the_configuration_alone(hub: Hub, tmp_path: Path) -> None:
    both, native = _resolve(hub, tmp_path, ("org/both", None, "config"), ("org/native", None, "config"))
    assert (both["files"], native["files"]) == (["config.json"], ["params.json"])
    assert hub.fetched == ["config.json", "params.json"]


def test_what_is_not_there_is_one_line(hub: Hub, tmp_path: Path) -> None:
    models = (("org/absent", None), ("org/both", "no-such-branch"), ("org/pickled", None))
    absent, revision, pickled = (answer["error"] for answer in _resolve(hub, tmp_path, *models))
    assert absent == "org/absent is no local path and no model on the hub; for a private one set HF_TOKEN"
    assert revision == "org/both has no revision 'no-such-branch' on the hub; check --revision"
    assert pickled == (
        "org/pickled has no weights in safetensors format and no GGUF file on the hub; choose another model"
    )


def paths(answer: dict) -> list[str]:
    """The GGUF files of a model, in their snapshot."""
    files = find_parts(Path(answer["directory"]))
    return [str(file).partition(f"/snapshots/{SHA}/")[2] for file in files]


def test_a_kind_in_the_name_chooses_a_gguf_file(hub: Hub, tmp_path: Path) -> None:
    names = ("org/ggufs:Q4_K_M", "org/ggufs:q8_0", "org/ggufs:UD-Q4_K_XL", "org/both:Q4_0")
    four, eight, large, both = _resolve(hub, tmp_path, *((name, None) for name in names))
    assert paths(four) == ["Model-7B-Q4_K_M.gguf"]
    assert paths(eight) == [f"Q8_0/Model-7B-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    assert paths(large) == ["Model-7B-UD-Q4_K_XL.gguf"]
    assert paths(both) == ["other-Q4_0.gguf"]
    assert sorted(hub.fetched) == sorted(
        path.rpartition("/")[2] for answer in (four, eight, large, both) for path in paths(answer)
    )
    assert four["lines"] == []


def test_the_choice_of_a_kind_is_said_aloud(hub: Hub, tmp_path: Path) -> None:
    chosen, plan = _resolve(hub, tmp_path, ("org/ggufs", None), ("org/ggufs", None, "config"))
    assert paths(chosen) == ["Model-7B-Q4_K_M.gguf"]
    assert chosen["directory"] == plan["directory"]
    assert chosen["lines"] == [
        "org/ggufs has no safetensors: serving its GGUF file of kind Q4_K_M (org/ggufs:KIND chooses)",
        "other kinds of org/ggufs: Q8_0, UD-Q4_K_XL",
    ]


def test_a_kind_that_is_not_there_is_one_line(hub: Hub, tmp_path: Path) -> None:
    models = (("org/ggufs:Q5_K_M", None), ("org/native:Q4_0", None), ("org/two", None), ("org/absent:Q4_0", None))
    missing, none, two, absent = (answer["error"] for answer in _resolve(hub, tmp_path, *models))
    assert missing == "org/ggufs has no GGUF file of kind Q5_K_M on the hub; it has Q4_K_M, Q8_0, UD-Q4_K_XL"
    assert none == "org/native has no GGUF file of kind Q4_0 on the hub; it has no GGUF file"
    assert two == (
        "org/two has 2 models of kind Q8_0 on the hub (a-Q8_0, b-Q8_0, ...); download one of them and name its file"
    )
    assert absent == "org/absent is no local path and no model on the hub; for a private one set HF_TOKEN"


def test_names_of_files_say_their_kind() -> None:
    files = {
        "mistral-7b-instruct-v0.2.Q4_K_M.gguf": "Q4_K_M",
        "Mistral-Small-3.2-24B-Instruct-2506-UD-IQ2_XXS.gguf": "UD-IQ2_XXS",
        "ggml-model-q4_0.gguf": "Q4_0",
        "model-fp16.gguf": "F16",
        "BF16/Model-BF16-00001-of-00002.gguf": "BF16",
        "Q6_K/model-00001-of-00001.gguf": "Q6_K",
        "Ministral-3-8B-Instruct-2512-Q5_K_M.gguf": "Q5_K_M",
        "devstralQ8_0.gguf": "Q8_0",
        "devstralbf16.gguf": "BF16",
        "Mistral-7B-imatrix-Q3_K_S.gguf": "Q3_K_S",
        "mistral_Q2.gguf": "Q2",
        "Llama-3.2-1B.gguf": "",
    }
    assert {name: kind for kind, names in find_kinds(files).items() for name in names} == files
    assert not find_kinds(["mmproj-BF16.gguf", "imatrix_unsloth.gguf", "README.md", "model.Q4_0.bin"])
    assert not find_kinds(["Ministral-3-8B-Instruct-2512-BF16-mmproj.gguf", "a.MMPROJ.f16.gguf", "a-imatrix.gguf"])


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [("Q4_K_XL", "UD-Q4_K_XL"), ("ud-q4_k_xl", "UD-Q4_K_XL"), ("Q8_0", "Q8_0"), ("fp16", "F16"), (None, "Q8_0")],
)
def test_a_kind_is_chosen_by_any_of_its_names(kind: str | None, chosen: str) -> None:
    assert (
        choose("org/a", find_kinds(["a-UD-Q4_K_XL.gguf", "a-Q8_0.gguf", "a-UD-Q8_0.gguf", "a-f16.gguf"]), kind)
        == chosen
    )


@pytest.mark.parametrize(
    ("files", "kind", "message"),
    [
        (["a.gguf"], "Q4_0", "org/a has no GGUF file of kind Q4_0 on the hub; it has GGUF files of no named kind"),
        (["a.gguf", "b.gguf"], None, r"org/a has 2 models of no named kind on the hub \(a, b, \.\.\.\); download one"),
    ],
)
def test_no_message_has_an_empty_kind(files: list[str], kind: str | None, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        choose("org/a", find_kinds(files), kind)


def test_the_name_of_a_served_gguf() -> None:
    assert default_name("org/name:Q4_K_M") == "org/name:Q4_K_M"
    assert default_name("/models/Model-Q8_0-00001-of-00003.gguf") == "model-q8_0"


def test_no_connection_is_one_line_and_an_earlier_download_still_serves(hub: Hub, tmp_path: Path) -> None:
    (first,) = _resolve(hub, tmp_path, ("org/native", None))
    _resolve(hub, tmp_path, ("org/ggufs:Q8_0", None))
    unreachable = Hub("http://127.0.0.1:9")
    later, error, kind, other = _resolve(
        unreachable, tmp_path, *((name, None) for name in ("org/native", "org/both", "org/ggufs", "org/ggufs:Q4_K_M"))
    )
    assert later["files"] == first["files"]
    assert [path.rpartition("/")[2][:13] for path in paths(kind)] == ["Model-7B-Q8_0"] * 2
    assert other["error"] == "org/ggufs has no GGUF file of kind Q4_K_M on the hub; it has Q8_0"
    missing = "it is not on this machine, and http://127.0.0.1:9 does not answer: "
    assert error["error"].startswith(f"org/both cannot be downloaded from the hub: {missing}")
    assert error["error"].endswith(f"; {OFFLINE}")
    assert "ConnectError" not in error["error"]
    assert "\n" not in error["error"]


def test_another_engine_gets_the_same_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is not asked while the download is complete: its newest revision may be another model."""
    asked = []

    def download(name: str, *, revision: str | None, **options: object) -> Path:
        asked.append((name, revision))
        (tmp_path / "0123abc/model.safetensors").touch()
        return tmp_path / "0123abc"

    monkeypatch.setattr("model.checkpoint.hub.download", download)
    directory = tmp_path / "0123abc"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    for _ in range(2):
        assert resolve_again("org/name", directory, progress=ignore_progress) == directory
    assert asked == [("org/name", "0123abc")]


def test_another_engine_gets_the_same_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the file is there the hub is not asked; else it is asked for the file's revision."""
    asked = []
    blob, link = tmp_path / "blobs/abc", tmp_path / f"snapshots/{SHA}/m-Q4_K_M.gguf"

    def download(name: str, *, revision: str | None, **options: object) -> Path:
        asked.append((name, revision))
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(REPOS["org/ggufs"]["Model-7B-Q4_K_M.gguf"])
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(blob)
        return link

    monkeypatch.setattr("model.checkpoint.hub.download", download)
    directory = resolve("org/name:Q4_K_M")
    for _ in range(2):
        again = resolve_again("org/name:Q4_K_M", directory, progress=ignore_progress)
        assert again == directory
    assert asked == [("org/name:Q4_K_M", None)]
    blob.unlink()
    assert directory == resolve_again("org/name:Q4_K_M", directory, progress=ignore_progress)
    assert asked[1:] == [("org/name:Q4_K_M", SHA)]


def test_a_download_counts_its_bytes_and_not_its_files() -> None:
    """huggingface_hub makes a bar for the bytes of all files, and one for the files."""
    seen: list[tuple[float, float]] = []
    bar = _bar(lambda done, total: seen.append((done, total)))
    of_bytes, of_files = bar(total=100, unit="B"), bar(total=3, unit="it")
    for update in (30, None, 70):
        of_bytes.update(update)
        of_files.update(1)
    assert seen == [(30, 100), (30, 100), (100, 100)]
