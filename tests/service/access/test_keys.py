"""API keys: their file, their limits, what is counted for each."""

import json
import logging
import textwrap
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import OptionError
from service.access.entry import KeyEntry, read_entries
from service.access.keys import Key, Keys
from service.errors.errors import RateLimited
from tests.service.live import Live, begun, busy, idle, refused, running
from tests.waiting import eventually

COMPLETIONS = "/v1/completions"
HASH = sha256(b"secret").hexdigest()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def written(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"keys": entries}))
    return path


# The file


def test_the_formats_of_the_file_are_equal(tmp_path: Path) -> None:
    toml, lines = tmp_path / "keys.toml", tmp_path / "keys"
    toml.write_text(
        f'[[keys]]\nname = "team.a"\nsha256 = "{HASH.upper()}"\nrequests_per_minute = 5\npriority = -3\n'
        'loads_adapters = true\nreasoning_format = "mistral"\nloads_models = true\nmodels = ["b", "a"]\n'
        '[[keys]]\nname = "b"\nkey = "plain"\n'
    )
    entries = [{"name": "team.a", "key": "secret", "requests_per_minute": 5, "priority": -3, "loads_adapters": True}]
    entries[0] |= {"reasoning_format": "mistral", "loads_models": True, "models": ["a", "b"]}
    entries += [{"name": "b", "sha256": sha256(b"plain").hexdigest()}]
    assert read_entries([], toml) == read_entries([], written(tmp_path / "keys.json", *entries))
    assert read_entries([], toml)[0] == KeyEntry(
        "team.a",
        bytes.fromhex(HASH),
        requests_per_minute=5,
        priority=-3,
        loads_adapters=True,
        loads_models=True,
        models=frozenset(("a", "b")),
        reasoning_format="mistral",
    )
    lines.write_text("three\n\n four \nthree\n")
    names = {entry.name: entry.digest for entry in read_entries(["one", "two"], lines)}
    assert names == {f"key-{n}": sha256(key).digest() for n, key in enumerate([b"one", b"two", b"three", b"four"], 1)}


def test_the_documented_file_is_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    example = textwrap.dedent(text[text.index("    [[keys]]") : text.index("| field | meaning")])
    path = tmp_path / "keys.toml"
    path.write_text(example)
    assert read_entries([], path) == [KeyEntry("team-a", bytes.fromhex(HASH), 60, 100_000, 8, -5)]


A = {"name": "a", "sha256": HASH}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ["not valid JSON"]),
        ("[]", ["entries named keys"]),
        ('{"keys": []}', ["entries named keys"]),
        ({"keys": [A], "more": 1}, ["nothing beside"]),
        ({"keys": [A, 5]}, ["entry 2", "int"]),
        ({"keys": [{"sha256": HASH}]}, ["entry 1", "name", "None"]),
        ({"keys": [A | {"name": "a b"}]}, ["entry 1", "name", "'a b'"]),
        ({"keys": [A | {"limit": 1}]}, ["entry 1", "a:", "unknown field 'limit'"]),
        ({"keys": [A | {"requests_per_minute": 0}]}, ["a:", "requests_per_minute", "at least 1", "0"]),
        ({"keys": [A | {"tokens_per_minute": 1.5}]}, ["a:", "tokens_per_minute", "1.5"]),
        ({"keys": [A | {"max_concurrent": True}]}, ["a:", "max_concurrent", "True"]),
        ({"keys": [A | {"priority": -11}]}, ["a:", "priority", "-10", "-11"]),
        ({"keys": [A | {"priority": None}]}, ["a:", "priority", "None"]),
        ({"keys": [A | {"loads_adapters": 1}]}, ["a:", "loads_adapters", "true or false", "1"]),
        ({"keys": [A | {"loads_models": "yes"}]}, ["a:", "loads_models", "true or false", "yes"]),
        ({"keys": [A | {"models": "chat"}]}, ["a:", "models", "list of names", "'chat'"]),
        ({"keys": [A | {"models": []}]}, ["a:", "models", "list of names", "[]"]),
        ({"keys": [A | {"models": ["chat", 1]}]}, ["a:", "models", "list of names", "1"]),
        ({"keys": [A | {"reasoning_format": "xml"}]}, ["a:", "reasoning_format", "mistral", "xml"]),
        ({"keys": [A | {"key": "x"}]}, ["a:", "either sha256 or key"]),
        ({"keys": [{"name": "a"}]}, ["a:", "either sha256 or key"]),
        ({"keys": [{"name": "a", "key": " "}]}, ["a:", "key"]),
        ({"keys": [A | {"sha256": "ab"}]}, ["a:", "sha256", "64"]),
        ({"keys": [A, A | {"name": "b"}]}, ["b:", "sha256", "of a"]),
        ({"keys": [A, {"name": "a", "key": "other"}]}, ["a:", "name"]),
        ({"keys": [{"name": "key-1", "key": "other"}]}, ["key-1:", "name"]),
        ({"keys": [{"name": "a", "key": "given"}]}, ["a:", "sha256", "key-1"]),
    ],
    ids=str,
)
def test_a_bad_file_is_one_line_that_names_entry_and_field(tmp_path: Path, content: Any, words: list[str]) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(OptionError) as caught:
        Keys(["given"], path)
    message = str(caught.value)
    assert message.startswith(f"--api-key-file {path}: ")
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_key_is_found_by_its_hash(tmp_path: Path) -> None:
    keys = Keys(["first"], written(tmp_path / "keys.json", A, {"name": "b", "key": "sécond"}))
    sent = {b"first": "key-1", b"secret": "a", "sécond".encode(): "b", b"": None, HASH.encode(): None, b"firs": None}
    for candidate, name in sent.items():
        found = keys.find([b"wrong", candidate])
        assert (found and found.name) == name
    assert keys.find([]) is None
    assert keys
    assert not Keys([], None)


def test_a_reload_keeps_what_was_used_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "keys.json", A | {"requests_per_minute": 1}, {"name": "old", "key": "old"})
    keys = Keys([], path)
    used = keys.find([b"secret"])
    assert used is not None
    with used.request():
        pass
    path.write_text("{")
    with pytest.raises(OptionError):
        keys.reload()
    assert keys.find([b"old"]) is not None
    rotated = {"name": "a", "key": "rotated", "requests_per_minute": 2}
    written(path, rotated, {"name": "new", "key": "new"})
    keys.reload()
    assert [keys.find([key]) for key in (b"old", b"secret")] == [None, None]
    assert keys.find([b"new"]) is not None
    again = keys.find([b"rotated"])
    assert again is used
    with again.request():
        assert "a has 2 requests in the last minute, the limit is 2" in str(refusal(again))


# The limits


def refusal(key: Key) -> RateLimited | None:
    """Why a request may not begin; None if it begins, and ends."""
    try:
        with key.request():
            return None
    except RateLimited as reached:
        return reached


@given(st.integers(1, 4), st.lists(st.integers(0, 300), max_size=60))
def test_no_minute_has_more_requests_than_the_limit(limit: int, pauses: list[int]) -> None:
    """A refused client that comes back after `retry_after` is served, and a second earlier it would not be."""
    clock = Clock()
    key = Key(KeyEntry("a", b"", requests_per_minute=limit), clock)
    served: list[float] = []
    for pause in pauses:
        clock.now += pause / 8
        reached = refusal(key)
        if reached is not None:
            assert 1 <= int(reached.headers["retry-after"]) <= 61
            clock.now += int(reached.headers["retry-after"]) - 1
            assert refusal(key) is not None
            clock.now += 1
            assert refusal(key) is None
        served.append(clock.now)
    for time in served:
        assert sum(time - 60 < other <= time for other in served) <= limit


def test_tokens_are_charged_when_they_are_known() -> None:
    clock = Clock()
    key = Key(KeyEntry("a", b"", tokens_per_minute=100), clock)
    for n_tokens in (60, 39):
        assert refusal(key) is None
        key.charge(n_tokens)
        clock.now += 10
    assert refusal(key) is None
    key.charge(1000)
    reached = refusal(key)
    assert "has 1099 tokens in the last minute, the limit is 100" in str(reached)
    assert reached is not None
    assert int(reached.headers["retry-after"]) == 60  # the large charge must be forgotten first
    clock.now += 59
    assert refusal(key) is not None
    clock.now += 1
    assert refusal(key) is None


# On the server


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Live]:
    path = written(
        tmp_path / "keys.json",
        {"name": "boss", "key": "b", "priority": -5},
        {"name": "few", "key": "f", "requests_per_minute": 2},
        {"name": "small", "key": "s", "tokens_per_minute": 10},
        {"name": "single", "key": "1", "max_concurrent": 1},
    )
    with running(model="slow", max_sequences=1, api_key_file=path, api_keys=("x",)) as live:
        live.http.headers["authorization"] = "Bearer x"
        yield live


def with_key(key: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {key}"}}


SHORT = {"prompt": "hi", "max_tokens": 1}


def test_requests_a_minute(keyed: Live) -> None:
    assert [keyed.post(COMPLETIONS, SHORT, **with_key("f")).status_code for _ in range(3)] == [200, 200, 429]
    response = keyed.post(COMPLETIONS, SHORT, **with_key("f"))
    assert 1 <= int(response.headers["retry-after"]) <= 61
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert all(word in error["message"] for word in ("few", "2 requests", "limit is 2"))
    assert [keyed.http.get("/metrics", **with_key("f")).status_code for _ in range(3)] == [200] * 3
    assert keyed.post(COMPLETIONS, SHORT, **with_key("b")).status_code == 200
    assert keyed.metric("noria_key_requests_total", key="few", outcome="length") == 2
    assert keyed.metric("noria_refusals_total", key="few", reason="rate_limit_exceeded") == 2
    assert keyed.metric("noria_key_requests_total", key="few", outcome="refused") == 0
    assert keyed.metric("noria_key_prompt_tokens_total", key="few") == 4
    assert keyed.metric("noria_key_generated_tokens_total", key="few") == 2
    assert keyed.metric("noria_key_generated_tokens_total", key="boss") == 1


def test_tokens_a_minute_count_prompt_and_answer(keyed: Live) -> None:
    body = {"prompt": "12345", "max_tokens": 4}
    assert [keyed.post(COMPLETIONS, body, **with_key("s")).status_code for _ in range(3)] == [200, 200, 429]
    message = keyed.post(COMPLETIONS, body, **with_key("s")).json()["error"]["message"]
    assert all(word in message for word in ("small", "18 tokens", "limit is 10"))


def test_a_prompt_is_charged_while_its_answer_is_written(keyed: Live) -> None:
    keyed.http.headers["authorization"] = "Bearer s"
    with begun(keyed, prompt="1234567890"):
        assert refused(keyed, COMPLETIONS, SHORT, 429)["code"] == "rate_limit_exceeded"


def test_concurrent_requests(keyed: Live) -> None:
    keyed.http.headers["authorization"] = "Bearer 1"
    with begun(keyed):
        for _ in range(2):
            response = keyed.post(COMPLETIONS, SHORT)
            assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    eventually(idle(keyed), "the stream has ended")
    eventually(lambda: keyed.post(COMPLETIONS, SHORT).status_code == 200, "its place is free")


def test_reload_on_a_running_server(keyed: Live, tmp_path: Path) -> None:
    written(tmp_path / "keys.json", {"name": "boss", "key": "rotated"}, {"name": "new", "key": "new"})
    assert keyed.post(COMPLETIONS, SHORT, **with_key("rotated")).status_code == 401
    keyed.server.reload()
    assert keyed.post(COMPLETIONS, SHORT, **with_key("rotated")).status_code == 200
    assert keyed.post(COMPLETIONS, SHORT, **with_key("b")).status_code == 401
    assert keyed.post(COMPLETIONS, SHORT).status_code == 200  # given on the command line
    assert keyed.metric("noria_key_requests_total", key="boss", outcome="length") == 1
    for name in ("requests", "prompt_tokens", "generated_tokens"):  # rate() counts from a 0 on
        labels = {"outcome": "error"} if name == "requests" else {}
        assert keyed.metric(f"noria_key_{name}_total", key="new", **labels) == 0


def test_a_priority_below_zero_needs_a_key_that_may_send_it(keyed: Live) -> None:
    statuses = {
        priority: keyed.post(COMPLETIONS, SHORT | {"priority": priority}, **with_key("b")) for priority in (-6, -5, 10)
    }
    assert {priority: response.status_code for priority, response in statuses.items()} == {-6: 400, -5: 200, 10: 200}
    assert "-5 for the key boss" in statuses[-6].json()["error"]["message"]
    error = refused(keyed, COMPLETIONS, SHORT | {"priority": -1})
    assert error["param"] == "priority"
    assert all(word in error["message"] for word in ("at least 0", "-1", "--api-key-file"))
    with running() as live:
        assert "without a key" in refused(live, COMPLETIONS, SHORT | {"priority": -1})["message"]
        for beyond in (-11, 11):
            message = refused(live, COMPLETIONS, SHORT | {"priority": beyond})["message"]
            assert all(word in message for word in ("priority", str(beyond), str(beyond // abs(beyond) * 10)))


def test_a_flood_of_one_key_does_not_delay_another(keyed: Live) -> None:
    done: list[str] = []

    def ask(key: str) -> None:
        assert keyed.post(COMPLETIONS, SHORT | {"max_tokens": 5}, **with_key(key)).status_code == 200
        done.append(key)

    threads = [threading.Thread(target=ask, args=[key]) for key in "xxxxxxb"]
    with begun(keyed):
        for number, thread in enumerate(threads, start=2):
            thread.start()
            eventually(busy(keyed, number), "it waits")
    for thread in threads:
        thread.join()
    assert "b" in done[:2]


def test_the_log_names_key_and_client(keyed: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="noria.access")
    keyed.post(COMPLETIONS, SHORT, **with_key("few-wrong"))
    keyed.post(COMPLETIONS, SHORT, **with_key("f"))
    eventually(lambda: len(caplog.records) == 2, "two lines")
    fields = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert [(line["key"], line["client"]) for line in fields] == [(None, "127.0.0.1"), ("few", "127.0.0.1")]
    assert "few-wrong" not in caplog.text
