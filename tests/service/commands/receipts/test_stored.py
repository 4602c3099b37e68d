"""`noria verify` of stored responses: their server has the requests that receipts have only hashes of."""

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.command_line import Done, noria
from tests.service.live import Live
from tests.service.receipts.signing import signing, write
from tests.waiting import eventually

RESPONSES = "/v1/responses"
BODY = {"input": "And then?", "instructions": "Be brief.", "temperature": 0.8, "receipt": True, "max_output_tokens": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stored")


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    with signing(folder, responses_store=str(folder / "responses.db"), max_model_len=4096) as server:
        yield server


def verify(live: Live, folder: Path, answer: Any, *more: str | Path) -> Done:
    return noria("verify", write(folder / "answer.json", answer), "--url", live.url, *more)


def rows(folder: Path, copy: Path) -> list[Any]:
    """What the store has, read from a copy of its file: responses, conversations and their items."""
    for suffix in ("", "-wal"):
        shutil.copy(folder / f"responses.db{suffix}", f"{copy}{suffix}")
    with sqlite3.connect(copy) as database:
        found = [database.execute(f"SELECT id FROM {table} ORDER BY id").fetchall() for table in ("stored", "items")]
    database.close()
    return found


def respond(live: Live, **fields: Any) -> dict[str, Any]:
    """An answer with receipts, as a client has it."""
    body = {**BODY, **fields}
    if body.get("stream"):
        return live.events(RESPONSES, body)[-1]
    answer = live.post(RESPONSES, body).json()
    path = f"{RESPONSES}/{answer['id']}"
    eventually(lambda: live.http.get(path).json()["status"] == "incomplete", "the end")
    return live.http.get(path).json() if body.get("background") else answer


@pytest.mark.parametrize("how", [{}, {"stream": True}, {"background": True}, {"truncation": "auto"}, {"input": []}])
@pytest.mark.parametrize("receipt", [True, "full"])
def test_the_stored_response_is_the_source_of_the_request(
    live: Live, folder: Path, how: dict[str, Any], receipt: bool | str, tmp_path: Path
) -> None:
    """It continues two others. No copy is stored."""
    first = respond(live, input="My name is Ada.")["id"]
    second = respond(live, input=[{"role": "user", "content": "Who?"}], previous_response_id=first)["id"]
    answer = respond(live, **how, receipt=receipt, previous_response_id=second)
    before = rows(folder, tmp_path / "before.db")
    done = verify(live, tmp_path, answer)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["equal: 5 tokens, computed again"]), done
    assert rows(folder, tmp_path / "after.db") == before


@pytest.mark.parametrize("receipt", [True, "full"])
def test_a_conversation_is_taken_as_it_was_before_the_response(
    live: Live, folder: Path, receipt: bool | str, tmp_path: Path
) -> None:
    items = [{"role": "user", "content": "hello"}]
    conversation = live.post("/v1/conversations", {"items": items}).json()["id"]
    texts = [f"number {number}" for number in range(55)]  # more items than one page of a list
    *_, asked, empty, _ = [
        respond(live, input=text, conversation=conversation, receipt=receipt) for text in (*texts, [], "the last")
    ]
    before = rows(folder, tmp_path / "before.db")
    for answer in (asked, empty):
        done = verify(live, tmp_path, answer)
        assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["equal: 5 tokens, computed again"]), done
    assert rows(folder, tmp_path / "after.db") == before
    live.http.delete(f"/v1/conversations/{conversation}/items/{empty['output'][0]['id']}")
    done = verify(live, tmp_path, empty)
    assert (done.returncode, "its conversation does not have its items any more" in done.stderr) == (1, True), done


def test_another_request_than_the_stored_one_is_found(live: Live, tmp_path: Path) -> None:
    """The id is no part of a receipt: that of another response leads to another request."""
    one, other = respond(live), respond(live, input="another")
    done = verify(live, tmp_path, {**one, "id": other["id"]})
    assert (done.returncode, "prompt: the prompt has other tokens" in done.stdout) == (3, True)


def test_a_response_that_is_not_stored(live: Live, tmp_path: Path) -> None:
    answer = live.post(RESPONSES, {**BODY, "store": False}).json()
    done = verify(live, tmp_path, answer)
    assert (done.returncode, done.stdout) == (1, "")
    assert "without --request FILE the request is taken from the stored response, which cannot be read" in done.stderr
    assert f'no response "{answer["id"]}" of this key is stored' in done.stderr
    request = write(tmp_path / "request.json", BODY)
    assert verify(live, tmp_path, answer, "--request", request).returncode == 0


def test_a_server_that_stores_nothing(tmp_path: Path) -> None:
    with signing(tmp_path, responses_store="off") as live:
        answer = live.post(RESPONSES, BODY).json()
        assert "the server stores nothing (--responses-store off)" in verify(live, tmp_path, answer).stderr
        done = verify(live, tmp_path, answer, "--request", write(tmp_path / "request.json", BODY))
    assert done.returncode == 0, done


def test_golden_answers_are_not_stored(live: Live, folder: Path, tmp_path: Path) -> None:
    body = {"input": "hi", "max_output_tokens": 4, "receipt": "full", "store": False}
    requests = write(tmp_path / "requests.jsonl", {"custom_id": "a", "method": "POST", "url": RESPONSES, "body": body})
    before, golden = rows(folder, tmp_path / "before.db"), tmp_path / "golden.jsonl"
    assert noria("batch", requests, golden, "--url", live.url).returncode == 0
    done = noria("verify", golden, "--url", live.url)
    assert (done.returncode, done.stdout) == (0, "verify: 1 of 1 answer passed\n"), done
    assert rows(folder, tmp_path / "after.db") == before


def test_a_batch_has_stored_responses_too(live: Live, tmp_path: Path) -> None:
    """Their server has the requests, of which the lines have hashes only."""
    first = respond(live, input="My name is Ada.")["id"]
    body = {"input": "Who?", "max_output_tokens": 4, "receipt": True, "previous_response_id": first}
    requests = write(tmp_path / "requests.jsonl", {"custom_id": "a", "method": "POST", "url": RESPONSES, "body": body})
    assert noria("batch", requests, tmp_path / "golden.jsonl", "--url", live.url).returncode == 0
    assert noria("verify", tmp_path / "golden.jsonl", "--url", live.url).returncode == 0
