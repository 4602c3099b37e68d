"""LoRA adapters over HTTP: requests that name one, what the lists say, loading and unloading while the server runs."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from service.api import lora
from service.errors.errors import ModelNotFound
from service.generation import adapters as generation_adapters
from service.generation.adapters import MAX_ADAPTERS
from tests.fakes import BROKEN_ADAPTER
from tests.service.live import USER, Live, answer, begun, hurried, ready, refused, running
from tests.waiting import PATIENCE, eventually

LOAD, UNLOAD, COMPLETIONS = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/completions"
NAMES = ("sql", "poems", "law", "maths")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters of the fake model, and what is none."""
    root = tmp_path_factory.mktemp("adapters") / "inside"
    for name in (*NAMES, "later", "damaged", "borrowed"):
        (root / name).mkdir(parents=True)
    (root / "damaged" / BROKEN_ADAPTER).touch()
    (root.parent / "outside").mkdir()
    (root / "link").symlink_to(root.parent / "outside")
    (root / "other").symlink_to(root / "sql")
    (root / "borrowed" / "adapter_config.json").symlink_to(root / "sql" / "adapter_config.json")
    (root / "borrowed" / "adapter_model.safetensors").symlink_to(root.parent / "outside" / "adapter_model.safetensors")
    (root / "loop").symlink_to(root / "loop")
    return root


@pytest.fixture(scope="module")
def live(directory: Path) -> Iterator[Live]:
    given = tuple(f"{name}={directory / name}" for name in NAMES)
    with running(lora=given, lora_dir=directory) as server:
        yield server


def said(live: Live, model: str, prompt: str = "hi", **body: Any) -> str:
    return live.complete(prompt=prompt, model=model, max_tokens=12, **body)["choices"][0]["text"]


# Requests


@pytest.mark.parametrize("name", NAMES)
def test_every_dialect_takes_the_adapters_name_as_the_model(live: Live, name: str) -> None:
    about = {"model": name, "max_tokens": 9}
    plain, chat = answer("hi", 9, adapter=name), answer("u:hi;a:", 9, adapter=name)
    reply = live.post(COMPLETIONS, {**about, "prompt": "hi"}).json()
    assert (reply["model"], reply["choices"][0]["text"]) == (name, plain)
    reply = live.post("/v1/chat/completions", {**about, "messages": USER}).json()
    assert (reply["model"], reply["choices"][0]["message"]["content"]) == (name, chat)
    reply = live.post("/v1/messages", {**about, "messages": USER}).json()
    assert (reply["model"], reply["content"][0]["text"]) == (name, chat)
    reply = live.post("/v1/responses", {"model": name, "input": "hi", "max_output_tokens": 9}).json()
    assert (reply["model"], reply["output"][0]["content"][0]["text"]) == (name, chat)
    assert live.post("/v1/embeddings", {"model": name, "input": "hi"}).json()["model"] == name
    assert live.post("/tokenize", {"model": name, "prompt": "hi"}).json()["tokens"] == [104, 105]
    events = live.events(COMPLETIONS, {**about, "prompt": "hi"})
    assert "".join(item["text"] for event in events for item in event["choices"]) == plain


def test_an_unknown_name_is_a_404_that_names_the_others(live: Live) -> None:
    error = refused(live, COMPLETIONS, {"prompt": "hi", "model": "nobody"}, 404)
    assert error["code"] == "model_not_found"
    names = ", ".join(("fake", "org/alias", *NAMES))
    assert error["message"] == f'the model "nobody" does not exist here; served: {names}'


def test_the_message_of_a_404_stays_short() -> None:
    message = ModelNotFound("nobody", tuple(f"a{n}" for n in range(20))).message
    assert message.endswith("served: a0, a1, a2, a3, a4, a5, a6, a7 and 12 more, see /v1/models")


def test_answers_with_an_adapter_have_their_own_fingerprint(live: Live) -> None:
    found = [live.complete(prompt="hi", model=name)["system_fingerprint"] for name in ("fake", "org/alias", *NAMES)]
    assert found[0] == found[1] == live.http.get("/version").json()["fingerprint"]
    assert len(set(found)) == 1 + len(NAMES)
    assert live.complete(prompt="hi", model="sql")["system_fingerprint"] == found[2]


# Lists


def test_the_model_is_first_and_the_parent_of_its_adapters(live: Live) -> None:
    listed = live.http.get("/v1/models").json()
    cards = listed["data"]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert [card["id"] for card in cards] == ["fake", "org/alias", *NAMES]
    assert (listed["first_id"], listed["last_id"]) == ("fake", "maths")
    assert [card["parent"] for card in cards] == [None, None, *["fake"] * 4]
    assert {card["root"] for card in cards} == {"fake"}
    assert [card["adapters"] for card in cards] == [[*NAMES], [*NAMES], [], [], [], []]
    for card in cards:
        assert (card["object"], card["type"], card["display_name"]) == ("model", "base", card["id"])
        assert card["created_at"].endswith("+00:00")
        assert card["max_model_len"] == 512
        assert live.http.get(f"/v1/models/{card['id']}").json() == card
    assert "inside" not in json.dumps(listed), "the card tells no path"


def test_metrics_and_the_log_name_the_adapter(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(lora=(f"sql={directory / 'sql'}",)) as live, caplog.at_level(logging.INFO, "noria.access"):
        zero = {"adapter": "sql", "outcome": "length"}
        assert live.metric("noria_lora_requests_total", **zero) == 0
        for model in ("sql", "sql", "fake"):
            said(live, model)
        assert live.metric("noria_lora_requests_total", **zero) == 2
        assert live.metric("noria_lora_generated_tokens_total", adapter="sql") == 24
        assert live.metric("noria_lora_loaded") == 1
        lines = [record.__dict__["fields"] for record in caplog.records if "completions" in record.getMessage()]
        assert [line["adapter"] for line in lines] == ["sql", "sql", None]


def test_the_engine_counts_what_runs_and_waits_by_adapter(directory: Path) -> None:
    given = (f"sql={directory / 'sql'}", f"law={directory / 'law'}")
    with running(model="slow", lora=given, max_sequences=1, max_step_tokens=64) as live, ThreadPoolExecutor(1) as pool:
        with begun(live, model="sql"):
            second = pool.submit(said, live, "law")
            eventually(lambda: live.metric("noria_lora_requests_waiting", adapter="law") == 1, "the second waits")
            assert live.metric("noria_lora_requests_running", adapter="sql") == 1
            assert live.metric("noria_lora_requests_running", adapter="law") == 0
            labels = {"max_lora": "4", "running_lora_adapters": "sql", "waiting_lora_adapters": "law"}
            assert live.metric("noria_lora_requests_info", **labels) > 1.7e9
        assert second.result() == answer("hi", 12, adapter="law")


# Loading and unloading


def test_an_adapter_is_loaded_used_and_unloaded(live: Live) -> None:
    reply = live.post(LOAD, {"lora_name": "new", "lora_path": "later"})
    assert reply.json() == {"id": "new", "object": "lora.adapter", "parent": "fake"}
    assert said(live, "new") == answer("hi", 12, adapter="later")
    assert live.http.get("/v1/models/new").json()["parent"] == "fake"
    assert live.post(UNLOAD, {"lora_name": "new"}).json() == {"id": "new", "object": "lora.unloaded"}
    assert refused(live, COMPLETIONS, {"prompt": "hi", "model": "new"}, 404)["code"] == "model_not_found"
    error = refused(live, UNLOAD, {"lora_name": "new"}, 404)
    assert (error["param"], error["code"]) == ("lora_name", "adapter_not_found")
    assert live.http.get("/v1/models/new").status_code == 404


@pytest.mark.parametrize("name", ["fake", "org/alias", "sql"])
def test_a_name_in_use_is_a_409(live: Live, name: str) -> None:
    error = refused(live, LOAD, {"lora_name": name, "lora_path": "later"}, 409)
    assert (error["param"], error["code"]) == ("lora_name", "adapter_exists")
    assert f'"{name}"' in error["message"]


@pytest.mark.parametrize(
    "path", ["link", "..", ".", "../outside", "../nowhere", "/etc", "/nowhere", "loop", "a\0b", "a" * 300]
)
def test_a_path_outside_is_refused_whether_it_exists_or_not(live: Live, path: str) -> None:
    error = refused(live, LOAD, {"lora_name": "new", "lora_path": path})
    assert error["message"].startswith("lora_path must be a directory below --lora-dir, got ")
    assert error["param"] == "lora_path"


def test_an_absolute_path_or_a_link_inside_is_followed(live: Live, directory: Path) -> None:
    for path in (str(directory / "sql"), "other"):
        assert live.post(LOAD, {"lora_name": "linked", "lora_path": path}).status_code == 200
        assert said(live, "linked") == answer("hi", 12, adapter="sql")
        assert live.post(UNLOAD, {"lora_name": "linked"}).status_code == 200


def test_files_that_are_links_out_of_the_directory_are_refused(live: Live) -> None:
    error = refused(live, LOAD, {"lora_name": "new", "lora_path": "borrowed"})
    assert error["param"] == "lora_path"
    assert '"adapter_model.safetensors" of "borrowed" is a link out of --lora-dir' in error["message"]


@pytest.mark.parametrize("path", ["damaged", "nothing"])
def test_what_the_engine_cannot_read_is_a_400_with_its_reason(live: Live, path: str) -> None:
    error = refused(live, LOAD, {"lora_name": "new", "lora_path": path})
    assert (error["param"], error["code"]) == ("lora_path", "adapter_refused")
    assert "no LoRA adapter" in error["message"]
    assert refused(live, COMPLETIONS, {"prompt": "hi", "model": "new"}, 404)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"lora_path": "later"}, "lora_name"),
        ({"lora_name": " ", "lora_path": "later"}, "lora_name"),
        ({"lora_name": "a\nb", "lora_path": "later"}, "lora_name"),
        ({"lora_name": "a" * 257, "lora_path": "later"}, "lora_name"),
        ({"lora_name": "new"}, "lora_path"),
        ({"lora_name": "new", "lora_path": ""}, "lora_path"),
        ({"lora_name": "new", "lora_path": "later", "rank": 8}, "rank"),
    ],
)
def test_bodies_are_checked(live: Live, body: dict[str, Any], param: str) -> None:
    assert refused(live, LOAD, body)["param"] == param


def test_without_the_flag_nothing_is_loaded_and_the_error_names_it(directory: Path) -> None:
    with running(lora=(f"sql={directory / 'sql'}",)) as live:
        for path, body in ((LOAD, {"lora_name": "new", "lora_path": "later"}), (UNLOAD, {"lora_name": "sql"})):
            error = refused(live, path, body)
            assert error["code"] == "no_lora_dir"
            assert "--lora-dir" in error["message"]
        assert said(live, "sql") == answer("hi", 12, adapter="sql")


def test_a_key_needs_the_permission(directory: Path, tmp_path: Path) -> None:
    """A plain key has it, an entry of a key file if it says so."""
    keys = tmp_path / "keys.json"
    entries = [("may", True), ("may-not", False), ("silent", None)]
    listed = [
        {"name": name, "sha256": sha256(name.encode()).hexdigest()} | ({} if may is None else {"loads_adapters": may})
        for name, may in entries
    ]
    keys.write_text(json.dumps({"keys": listed}))
    with running(lora_dir=directory, api_keys=("plain",), api_key_file=keys) as live:

        def status(key: str, path: str = LOAD) -> int:
            body = {"lora_name": key} | ({"lora_path": "later"} if path == LOAD else {})
            return live.post(path, body, headers={"authorization": f"Bearer {key}"}).status_code

        assert live.post(LOAD, {"lora_name": "new", "lora_path": "later"}).status_code == 401
        assert [status(key) for key in ("plain", "may", "may-not", "silent")] == [200, 200, 403, 403]
        assert [status(key, UNLOAD) for key in ("may-not", "may", "plain")] == [403, 200, 200]
        reply = live.post(LOAD, {"lora_name": "x", "lora_path": "later"}, headers={"authorization": "Bearer may-not"})
        assert reply.json()["error"]["type"] == "permission_error"
        assert "loads_adapters" in reply.json()["error"]["message"]


def test_after_the_engines_death_running_and_new_requests_get_their_adapters(directory: Path) -> None:
    """Also one that was unloaded while a request used it."""
    given = (f"sql={directory / 'sql'}",)
    with running(model="slow", lora=given, lora_dir=directory) as live, ThreadPoolExecutor(4) as pool:
        for name in ("new", "unloaded"):
            assert live.post(LOAD, {"lora_name": name, "lora_path": "later"}).status_code == 200
        paths = {"sql": "sql", "new": "later", "fake": None, "unloaded": "later"}
        asked = [pool.submit(live.complete, prompt="again", model=name, max_tokens=300) for name in paths]
        eventually(lambda: live.metric("noria_generated_tokens_total") > 12, "all have tokens")
        assert live.post(UNLOAD, {"lora_name": "unloaded"}).status_code == 200
        live.hosts[-1].kill()
        with hurried():
            answers = [future.result()["choices"][0]["text"] for future in asked]
        assert answers == [answer("again", 300, adapter=path) for path in paths.values()]
        assert live.metric("noria_engine_restarts_total") == 1
        assert said(live, "new") == answer("hi", 12, adapter="later")
        assert refused(live, COMPLETIONS, {"prompt": "hi", "model": "unloaded"}, 404)


def test_an_adapter_whose_files_are_gone_keeps_no_engine_from_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("gone", "changed", "same"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name)
    with running(lora=(f"gone={tmp_path / 'gone'}",), lora_dir=tmp_path) as live:
        for name in ("changed", "same"):
            assert live.post(LOAD, {"lora_name": name, "lora_path": name}).status_code == 200
        (tmp_path / "gone" / "weights").unlink()
        (tmp_path / "gone").rmdir()
        (tmp_path / "changed" / "weights").write_text("other")
        live.hosts[-1].kill()
        eventually(lambda: live.engine.n_lost == 1 and ready(live.http), "another engine serves")
        assert said(live, "same") == answer("hi", 12, adapter="same")
        assert said(live, "fake") == answer("hi", 12)
        for name in ("gone", "changed"):
            error = refused(live, COMPLETIONS, {"prompt": "hi", "model": name}, 503)
            assert error["code"] == "adapter_lost"
            assert f'"{name}"' in error["message"]
        assert caplog.text.count("its requests fail") == 2
        assert live.post(UNLOAD, {"lora_name": "changed"}).status_code == 200
        assert live.post(LOAD, {"lora_name": "changed", "lora_path": "changed"}).status_code == 200
        assert said(live, "changed") == answer("hi", 12, adapter="changed")


def test_a_running_request_whose_adapters_files_are_gone_gets_a_503(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    with running(model="slow", lora=(f"gone={tmp_path / 'gone'}",)) as live, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(live.post, COMPLETIONS, {"prompt": "hi", "model": "gone", "max_tokens": 3000})
        eventually(lambda: live.metric("noria_lora_requests_running", adapter="gone") == 1, "it runs")
        (tmp_path / "gone").rmdir()
        live.hosts[-1].kill()
        reply = asked.result()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_died")
        assert refused(live, COMPLETIONS, {"prompt": "hi", "model": "gone"}, 503)["code"] == "adapter_lost"


def test_an_unloading_while_no_engine_serves_reaches_the_next(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(lora=(f"sql={directory / 'sql'}",), lora_dir=directory) as live:
        monkeypatch.setattr("service.engine.supervision.supervisor.backoff", lambda failures: 1.0)
        live.hosts[-1].kill()
        eventually(lambda: live.engine.state == "restarting", "the engine is gone")
        assert live.post(UNLOAD, {"lora_name": "sql"}).status_code == 200
        eventually(lambda: ready(live.http), "another engine serves")
        assert refused(live, COMPLETIONS, {"prompt": "hi", "model": "sql"}, 404)
        assert said(live, "fake") == answer("hi", 12)
        assert live.post(LOAD, {"lora_name": "sql", "lora_path": "sql"}).status_code == 200


@pytest.mark.parametrize("name", ["nobody", "fake"])
def test_what_is_no_adapter_cannot_be_unloaded(live: Live, name: str) -> None:
    """The model is none, and it does exist."""
    error = refused(live, UNLOAD, {"lora_name": name}, 404)
    assert error["message"] == f'no adapter has the name "{name}"'
    assert (error["param"], error["code"]) == ("lora_name", "adapter_not_found")


def test_the_number_of_adapters_is_limited(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_ADAPTERS == 1024
    monkeypatch.setattr("service.generation.adapters.MAX_ADAPTERS", len(NAMES))
    message = refused(live, LOAD, {"lora_name": "new", "lora_path": "later"})["message"]
    assert message == "4 adapters are loaded, the limit is 4"


def test_a_slow_disk_does_not_hold_up_the_event_loop(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the files of an adapter waits until `/live` was answered after it began."""
    begun, answered = threading.Semaphore(0), threading.Semaphore(0)
    looks: list[bool] = []

    def slow(look: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*arguments: Any) -> Any:
            begun.release()
            looks.append(answered.acquire(timeout=PATIENCE / 4))
            return look(*arguments)

        return waiting

    with running(lora_dir=directory) as live:
        for module, name in ((lora, "path_inside"), (generation_adapters, "files_state")):
            monkeypatch.setattr(module, name, slow(getattr(module, name)))
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(live.post, LOAD, {"lora_name": "sql", "lora_path": "sql"})
            for _ in range(2):
                assert begun.acquire(timeout=PATIENCE)
                assert live.http.get("/live").status_code == 200
                answered.release()
            assert loading.result().status_code == 200
    assert looks == [True] * 2
