"""The record of a real server: what it holds and what it must not, who may read it, when it is written."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.recording import canary
from service.recording.explain import explain
from tests import fakes
from tests.service.command_line import noria
from tests.service.live import begun, busy, hurried, sent
from tests.service.recording.sampling import later, sampled
from tests.waiting import eventually

KEY, SECRET = "key-of-the-client", "secret-of-the-client"


def test_it_has_what_the_server_did_and_nothing_of_clients() -> None:
    with sampled(api_keys=(KEY,)) as live:
        live.http.headers["authorization"] = f"Bearer {KEY}"
        live.complete(prompt=SECRET, max_tokens=5, user=SECRET)
        assert live.post("/v1/completions", {"prompt": SECRET, SECRET: SECRET}).status_code == 400
        found = later(live)
        assert live.http.get("/v1/engine/record").status_code == 403, "the key has no right"
    assert not [word for word in (KEY, SECRET) if word in json.dumps(found)]
    sample = found["samples"][-1]
    assert sample["refused"] == {"unsupported_parameter": 1}
    expected = {"state": "ready", "running": 0, "generated": 5, "preemptions": 0, "lost_tokens": 0, "blocked": None}
    assert sample["models"]["fake"].items() >= expected.items()
    assert sample["memory"]["service_anonymous"] > 2**20
    assert {"cpu_some", "descriptors", "lag", "passed"} <= sample.keys()
    assert [(event["kind"], event["reason"]) for event in found["events"]] == [("load", "ok")]


def test_a_death_is_written_and_explained(tmp_path: Path) -> None:
    with sampled(record_dir=tmp_path) as live:
        live.hosts[0].kill()
        eventually(lambda: bool([*tmp_path.glob("noria-*-death.json")]), "a record is written")
        eventually(lambda: "trouble" in live.http.get("/health").json(), "it says so")
        trouble = live.http.get("/health").json()["trouble"]
        printed = noria("explain", live.url).stdout.splitlines()
        (path,) = tmp_path.glob("noria-*-death.json")
        from_file = noria("explain", path).stdout.splitlines()
        mode = path.stat().st_mode & 0o777
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(live.state.recorder, "_limit", 1)
            live.state.recorder.write("signal")
    assert trouble == "The engine of fake ended and was replaced: thread ended."
    assert printed[0] == from_file[0] == trouble
    assert printed[1].endswith("engine: thread ended")
    assert len(printed) == 6
    assert printed[-1].startswith("More: NoriaEngineRestarting in docs/operations.md; the-engine-ended")
    assert mode == 0o600
    assert [file.name[-11:] for file in tmp_path.iterdir()] == ["signal.json"], "the older one had to go"


@pytest.mark.parametrize(
    ("options", "n_waiting", "rule"),
    [
        ({}, 0, ""),
        ({"max_sequences": 2}, 3, "as-many-run-as-may"),
        ({"max_sequences": 2, "max_queue": 1}, 3, "the-queue-is-full"),
    ],
    ids=["slow", "full", "refusing"],
)
def test_a_slow_server_is_well_and_a_full_one_is_full(options: dict[str, int], n_waiting: int, rule: str) -> None:
    with sampled(model="slow", **options) as live, ExitStack() as streams:
        assert explain(later(live)).rule.name == ""
        for _ in range(2):
            streams.enter_context(begun(live))
        for _ in range(n_waiting):
            streams.enter_context(sent(live.address))
        eventually(busy(live, 2 + min(n_waiting, options.get("max_queue", 9))), "they run and wait")
        found = explain(later(live))
        with hurried():
            streams.close()
    assert found.rule.name == rule, found


def test_a_wrong_bit_takes_the_server_out_of_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "SECONDS", 0.1)
    right = fakes.state_after
    with sampled(canary="unready") as live:
        assert live.engine.info is not None
        live.engine.info.description["arithmetic"] = "fake"
        eventually(lambda: live.metric("noria_canary_answers_total", right="true") >= 2, "it has asked twice")
        assert live.metric("noria_prefix_cache_hit_tokens_total") == 0, "each time all is computed"
        assert live.http.get("/ready").status_code == 200
        monkeypatch.setattr(fakes, "state_after", lambda state, tokens: right(state + 1, tokens))
        eventually(lambda: live.http.get("/ready").status_code == 503, "it is out of service")
        assert live.http.get("/ready").json() == {"status": "failed", "stage": "the canary got wrong bits"}
        assert explain(later(live)).rule.name == "wrong-bits"


def test_errors_of_the_command_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[]")
    for source, words in ((path, "is no record of Noria"), ("http://127.0.0.1:9", "is the server running?")):
        ran = noria("explain", source)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
        assert words in ran.stderr


def test_the_sentence_for_everyone_has_no_folders() -> None:
    with sampled() as live:
        live.state.metrics.journal.note("engine", "found nothing at /srv/models/secret", model="fake")
        eventually(lambda: "trouble" in live.http.get("/health").json(), "it says so")
        assert live.http.get("/health").json()["trouble"].endswith("was replaced: found nothing at secret.")
