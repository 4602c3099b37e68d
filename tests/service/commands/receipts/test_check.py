"""`noria check`: recorded answers, what differs, and the report that CI reads."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from service.commands.receipts.check import code_of
from service.commands.receipts.golden import Line
from service.commands.receipts.junit import Result
from service.receipts.compare import Difference
from tests.service.command_line import Done, noria
from tests.service.live import USER, Live, answer, running
from tests.service.receipts.signing import signing

CHAT = "/v1/chat/completions"
REQUESTS = {
    "plain": ("/v1/completions", {"prompt": "a wheel", "max_tokens": 4}),
    "two": (CHAT, {"messages": USER, "max_tokens": 4, "n": 2, "temperature": 0.7}),
    "message": ("/v1/messages", {"messages": USER, "max_tokens": 4, "model": "fake"}),
    "<response>": ("/v1/responses", {"input": "hi", "max_output_tokens": 4, "seed": 5}),
}

ROW = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with signing(tmp_path_factory.mktemp("check")) as server:
        yield server


@pytest.fixture(scope="module")
def golden(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded file."""
    folder = tmp_path_factory.mktemp("golden")
    source, path = folder / "requests.jsonl", folder / "golden.jsonl"
    rows = [{"custom_id": name, "method": "POST", "url": url, "body": body} for name, (url, body) in REQUESTS.items()]
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = check(live, path, "--record", source)
    assert (done.returncode, done.stdout) == (0, f"recorded 4 answers in {path}\n"), done.stderr
    return path


def check(live: Live, golden: Path, *more: str | Path) -> Done:
    return noria("check", "--golden", golden, "--url", live.url, *more)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def changed(golden: Path, target: Path, index: int, **content: Any) -> Path:
    """A copy of the file whose first receipt of one line has another content."""
    lines = lines_of(golden)
    lines[index]["receipts"][0]["content"] |= content
    target.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return target


def test_a_recorded_file_holds_requests_with_their_answers(golden: Path) -> None:
    first, second, *_ = lines_of(golden)
    assert first["receipts"][0]["content"] == {
        "body": "",
        "text": answer("a wheel", 4),
        "token_ids": [*answer("a wheel", 4).encode()],
    }
    assert (first["receipts"][0]["signature"], first["receipts"][0]["key"]) == ("", "")
    assert second["body"]["seed"] == int(second["receipts"][0]["seed"])
    assert len(second["receipts"]) == 2


def test_the_same_answers_pass_and_the_report_says_so(live: Live, golden: Path, tmp_path: Path) -> None:
    done = check(live, golden, "--junit", tmp_path / "report.xml")
    assert (done.returncode, done.stdout) == (0, "check: 4 of 4 answers are the same\n")
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "4",
        "failures": "0",
        "errors": "0",
    }
    assert [case.get("name") for case in suite] == [*REQUESTS]
    assert not [*suite.iter("failure")]


def test_the_first_token_that_differs_is_named(live: Live, golden: Path, tmp_path: Path) -> None:
    """Exit code 4: the fake engine promises no bits."""
    expected = [*answer("u:hi;a:", 4).encode()]
    target = changed(golden, tmp_path / "changed.jsonl", 1, token_ids=[*expected[:2], 65, 66])
    done = check(live, target, "--junit", tmp_path / "report.xml")
    words = f"two: tokens: token 3 of 4 differs: 65 'A' in the receipt, {expected[2]} {chr(expected[2])!r} here"
    assert done.returncode == 4
    assert done.stdout.splitlines()[0] == words
    assert done.stdout.splitlines()[-1] == "check: 3 of 4 answers are the same"
    cases = {case.get("name"): case for case in ElementTree.parse(tmp_path / "report.xml").iter("testcase")}
    assert [name for name, case in cases.items() if len(case)] == ["two"]
    assert f"two: {cases['two'][0].get('message')}" == words
    assert cases["two"][0].tag == "failure"


def test_an_edited_text_differs(live: Live, golden: Path, tmp_path: Path) -> None:
    done = check(live, changed(golden, tmp_path / "changed.jsonl", 0, text="edited"))
    assert done.returncode == 4
    assert done.stdout.startswith("plain: text: sha256:")
    assert "after the same tokens" in done.stdout


@pytest.mark.parametrize("flag", ["--junit", "--record"])
def test_where_nothing_can_be_written_nothing_is_computed(live: Live, golden: Path, flag: str, tmp_path: Path) -> None:
    target = tmp_path / "gone" / "file"
    before = live.metric("noria_generated_tokens_total")
    if flag == "--junit":
        done = check(live, golden, "--junit", target)
    else:
        (tmp_path / "requests.jsonl").write_text(json.dumps(ROW))
        done = check(live, target, "--record", tmp_path / "requests.jsonl")
    assert (done.returncode, done.stdout, f"{target} cannot be written" in done.stderr) == (1, "", True)
    assert live.metric("noria_generated_tokens_total") == before


def test_other_weights_with_the_same_answers_pass(live: Live, golden: Path, tmp_path: Path) -> None:
    text = golden.read_text()
    weights = lines_of(golden)[0]["receipts"][0]["weights"]
    (tmp_path / "other.jsonl").write_text(text.replace(weights, "sha256:00"))
    assert check(live, tmp_path / "other.jsonl").returncode == 0


def test_a_promised_difference_counts_more_than_others() -> None:
    """Exit code 3, whatever else differs where nothing is promised."""
    line, found = Line("a", CHAT, {}, []), [Difference("tokens", "token 1 differs")]
    results = [Result(line, found, promised, "", 0.0) for promised in (False, True)]
    assert [code_of(results[:1]), code_of(results[1:]), code_of(results)] == [4, 3, 3]
    assert code_of([*results, Result(line, [], True, "no answer", 0.0)]) == 1


def test_a_recording_has_no_report(live: Live, golden: Path, tmp_path: Path) -> None:
    done = check(live, golden, "--record", golden, "--junit", tmp_path / "report.xml")
    assert (done.returncode, "--record and --junit exclude each other" in done.stderr) == (1, True)


def test_a_request_without_an_answer_is_an_error(golden: Path, tmp_path: Path) -> None:
    with running() as without_key:
        done = check(without_key, golden, "--junit", tmp_path / "report.xml")
    assert done.returncode == 1
    assert "plain: it cannot be computed again: receipt needs a server with a key" in done.stdout
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()[0]
    assert (suite.get("errors"), suite.get("failures")) == ("4", "0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no line"),
        ('{"custom_id": "a"}\n', "line 1 is no request with receipts; noria check --record writes such lines"),
        ("[]\n", "line 1 is no request with receipts"),
        (f"{json.dumps({**ROW, 'receipts': []})}\n", "line 1 has no receipts"),
    ],
)
def test_other_files_are_refused(live: Live, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "golden.jsonl").write_text(text)
    done = check(live, tmp_path / "golden.jsonl")
    assert (done.returncode, words in done.stderr) == (1, True), done.stderr


def test_a_failed_recording_leaves_the_old_file(live: Live, golden: Path, tmp_path: Path) -> None:
    bad = {"custom_id": "bad", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "temperature": 9}}
    (tmp_path / "requests.jsonl").write_text(json.dumps(bad))
    (tmp_path / "golden.jsonl").write_text("old")
    done = check(live, tmp_path / "golden.jsonl", "--record", tmp_path / "requests.jsonl")
    assert (done.returncode, "bad: it cannot be computed again: temperature" in done.stderr) == (1, True)
    assert (tmp_path / "golden.jsonl").read_text() == "old"
    (tmp_path / "requests.jsonl").write_text(json.dumps({**bad, "url": "/v1/embeddings", "body": {"input": "x"}}))
    done = check(live, tmp_path / "golden.jsonl", "--record", tmp_path / "requests.jsonl")
    assert "line 1: /v1/embeddings has no receipts" in done.stderr
