"""LoRA adapters of models that are not always loaded."""

from pathlib import Path
from typing import Any

from tests.service.hosting.serving import LATE, said, serving, states, toml
from tests.service.live import answer, refused

UNLOAD = "/v1/models/unload"


def test_adapters_outlive_an_unload(tmp_path: Path) -> None:
    for name in ("sql", "law"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
    folder = str(tmp_path / "adapters")
    entries = {"a": {}, "b": {"lora": [f"law={folder}/law"], "lora_dir": folder, **LATE}}
    with serving(tmp_path, entries) as live:
        body = {"lora_name": "sql", "lora_path": "sql", "model": "b"}
        assert live.post("/v1/load_lora_adapter", body).json()["parent"] == "b", "its model is loaded for it"
        for _ in range(2):
            for name in ("sql", "law"):
                assert said(live, name, n=9) == answer("hi", 9, adapter=f"{folder}/{name}")
            assert live.post(UNLOAD, {"model": "b"}).status_code == 200
            assert states(live) == {"a": "ready", "b": "unloaded", "law": "unloaded", "sql": "unloaded"}
            assert live.http.get("/v1/models/sql").json()["parent"] == "b"
        assert live.post("/v1/unload_lora_adapter", {"lora_name": "sql", "model": "b"}).status_code == 200
        assert "sql" not in states(live)
        assert said(live, "law", n=9) == answer("hi", 9, adapter=f"{folder}/law")
        for name in ("a", "b", "law"):
            error = refused(live, "/v1/load_lora_adapter", {**body, "lora_name": name}, 409)
            assert error["code"] == "adapter_exists"


def test_a_name_is_that_of_a_model_before_that_of_an_adapter(tmp_path: Path) -> None:
    """The file of --models gets a model with the name of an adapter that was loaded meanwhile."""
    folder = tmp_path / "adapters"
    (folder / "sql").mkdir(parents=True)
    entries: dict[str, dict[str, Any]] = {"a": {"lora_dir": str(folder)}}
    with serving(tmp_path, entries) as live:
        assert live.post("/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "sql"}).status_code == 200
        assert said(live, "sql", n=9) == answer("hi", 9, adapter=f"{folder}/sql")
        live.reload(toml(entries | {"sql": {}}))
        assert said(live, "sql", n=9) == answer("hi", 9)


def test_an_adapter_may_change_until_its_model_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "law"
    folder.mkdir()
    with serving(tmp_path, {"a": {}, "b": {"lora": [f"law={folder}"], **LATE}}) as live:
        (folder / "weights").write_text("new")
        assert said(live, "law", n=9) == answer("hi", 9, adapter=str(folder))
        assert live.post(UNLOAD, {"model": "b"}).status_code == 200
        (folder / "weights").write_text("newer")
        assert refused(live, "/v1/completions", {"model": "law", "prompt": "hi"}, 503)["code"] == "adapter_lost"
        assert said(live, "b", n=9) == answer("hi", 9)
