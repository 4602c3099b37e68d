"""`noria verify` of a batch: recorded answers, what differs, and the report that CI reads."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from service.commands.receipts.again import exit_code
from service.commands.receipts.cases import Case
from service.receipts.compare import Difference
from service.receipts.keys import make_key, read_key
from service.receipts.receipt import digest, token_bytes
from tests.service.command_line import Done, noria
from tests.service.live import USER, Live, answer, running
from tests.service.receipts.signing import lie, signing

CHAT = "/v1/chat/completions"
REQUESTS = {
    "plain": ("/v1/completions", {"prompt": "a wheel", "max_tokens": 4}),
    "two": (CHAT, {"messages": USER, "max_tokens": 4, "n": 2, "temperature": 0.7}),
    "message": ("/v1/messages", {"messages": USER, "max_tokens": 4, "model": "fake"}),
    "<response>": ("/v1/responses", {"input": "hi", "max_output_tokens": 4, "seed": 5}),
}
Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    with signing(folder) as server:
        yield server


def recorded(live: Live, folder: Path, requests: dict[str, tuple[str, dict[str, Any]]], *, good: bool = True) -> Path:
    """A file of answers with full receipts, in the order of the requests."""
    source, path = folder / "requests.jsonl", folder / "golden.jsonl"
    rows = [
        {"custom_id": name, "method": "POST", "url": url, "body": {"receipt": "full", **body}}
        for name, (url, body) in requests.items()
    ]
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = noria("batch", source, path, "--url", live.url, "--concurrency", "1")
    assert done.returncode == (0 if good else 1), done.stderr
    return path


@pytest.fixture(scope="module")
def golden(live: Live, folder: Path) -> Path:
    return recorded(live, folder, REQUESTS)


def verify(live: Live, golden: Path, *more: str | Path) -> Done:
    return noria("verify", golden, "--url", live.url, *more)


def changed(golden: Path, target: Path, index: int, change: Change) -> Path:
    """A copy of the file with another first receipt in one line."""
    lines = [json.loads(line) for line in golden.read_text().splitlines()]
    receipts = lines[index]["response"]["body"]["receipts"]
    receipts[0] = change(receipts[0])
    target.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return target


def counts(report: Path) -> list[str | None]:
    suite = ElementTree.parse(report).getroot()[0]
    return [suite.get(name) for name in ("tests", "failures", "errors")]


@pytest.mark.parametrize("how", [(), ("--answers-only",), ("--signature-only",)])
def test_the_same_answers_pass_and_the_report_says_so(
    live: Live, folder: Path, golden: Path, how: tuple[str, ...], tmp_path: Path
) -> None:
    public = read_key(folder / "key.pem").public
    done = verify(live, golden, "--junit", tmp_path / "report.xml", "--key", public, *how)
    assert (done.returncode, done.stdout) == (0, "verify: 4 of 4 answers passed\n")
    assert counts(tmp_path / "report.xml") == ["4", "0", "0"]
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()[0]
    assert [case.get("name") for case in suite] == [*REQUESTS]
    assert [case.get("classname") for case in suite] == [url for url, _ in REQUESTS.values()]
    assert not [*suite.iter("failure")]


def test_one_answer_has_a_report_too(live: Live, tmp_path: Path) -> None:
    found = live.complete(prompt="a", max_tokens=4, receipt="full")
    (tmp_path / "answer.json").write_text(json.dumps(found))
    done = verify(live, tmp_path / "answer.json", "--junit", tmp_path / "report.xml")
    assert (done.returncode, counts(tmp_path / "report.xml")) == (0, ["1", "0", "0"])
    found["choices"][0]["text"] = "another"
    (tmp_path / "answer.json").write_text(json.dumps(found))
    done = verify(live, tmp_path / "answer.json", "--junit", tmp_path / "report.xml")
    assert (done.returncode, counts(tmp_path / "report.xml")) == (3, ["1", "1", "0"])


def claim(receipt: dict[str, Any], folder: Path, ids: list[int]) -> dict[str, Any]:
    """The receipt of a server that says that it has generated these tokens."""
    content = {**receipt["content"], "token_ids": ids}
    return lie(receipt, folder, tokens=digest(token_bytes(ids)), content=content)


@pytest.mark.parametrize(("signed", "code"), [(True, 4), (False, 3)])
def test_the_first_token_that_differs_is_named(
    live: Live, folder: Path, golden: Path, signed: bool, code: int, tmp_path: Path
) -> None:
    """Exit code 4: the fake engine promises no bits. A file that somebody has edited is wrong in any case."""
    expected = [*answer("u:hi;a:", 4).encode()]
    ids = [*expected[:2], 65, 66]

    def change(receipt: dict[str, Any]) -> dict[str, Any]:
        return claim(receipt, folder, ids) if signed else {**claim(receipt, folder, ids), "signature": "00"}

    target = changed(golden, tmp_path / "changed.jsonl", 1, change)
    done = verify(live, target, "--answers-only", "--junit", tmp_path / "report.xml")
    first, *_, last = done.stdout.splitlines()
    words = f"tokens: token 3 of 4 differs: 65 'A' in the receipt, {expected[2]} {chr(expected[2])!r} here"
    assert (done.returncode, last) == (code, "verify: 3 of 4 answers passed")
    assert first.startswith("two: ")
    assert first.endswith(words)
    assert ("two: signature: a field of the receipt" in first) is not signed
    assert "no proof of a fault" in done.stdout
    cases = {case.get("name"): case for case in ElementTree.parse(tmp_path / "report.xml").iter("testcase")}
    assert [name for name, case in cases.items() if len(case)] == ["two"]
    assert f"two: {cases['two'][0].get('message')}" == first
    assert cases["two"][0].tag == "failure"


def test_an_edited_text_differs(live: Live, golden: Path, tmp_path: Path) -> None:
    def change(receipt: dict[str, Any]) -> dict[str, Any]:
        return {**receipt, "content": {**receipt["content"], "text": "edited"}}

    done = verify(live, changed(golden, tmp_path / "changed.jsonl", 0, change))
    assert (done.returncode, "plain: " in done.stdout) == (3, True)
    assert "content.text: its hash is not that of the field text" in done.stdout
    lines = [json.loads(line) for line in golden.read_text().splitlines()]
    lines[0]["response"]["body"]["choices"][0]["text"] = "edited"
    (tmp_path / "around.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = verify(live, tmp_path / "around.jsonl")
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        3,
        "plain: choices[0]: its text is not the signed one",
    )


def test_where_no_report_can_be_written_nothing_is_computed(live: Live, golden: Path, tmp_path: Path) -> None:
    before = live.metric("noria_generated_tokens_total")
    for target in (tmp_path / "gone" / "file", tmp_path):
        done = verify(live, golden, "--junit", target)
        assert (done.returncode, done.stdout, f"{target} cannot be written" in done.stderr) == (1, "", True)
    assert live.metric("noria_generated_tokens_total") == before


@pytest.mark.parametrize("field", ["weights", "windows"])
def test_other_weights_with_the_same_answer_pass_where_answers_count(
    live: Live, folder: Path, golden: Path, field: str, tmp_path: Path
) -> None:
    """Where the answer differs too, they are its likely cause."""
    other = {"weights": "sha256:00", "windows": [7]}[field]
    target = changed(golden, tmp_path / "other.jsonl", 0, lambda receipt: lie(receipt, folder, **{field: other}))
    assert verify(live, target, "--answers-only").returncode == 0
    done = verify(live, target)
    assert (done.returncode, done.stdout.startswith(f"plain: {field}: the ")) == (3, True)
    target = changed(target, tmp_path / "both.jsonl", 0, lambda receipt: claim(receipt, folder, [1, 2, 3, 4]))
    done = verify(live, target, "--answers-only")
    assert (done.returncode, done.stdout.startswith("plain: tokens: token 1 of 4 differs: ")) == (3, True)
    assert f"; {field}: the " in done.stdout


def test_other_defaults_pass_where_answers_count(live: Live, folder: Path, golden: Path, tmp_path: Path) -> None:
    defaults = {"repetition_detection": "64,4,3", "reasoning_budget": None}
    target = changed(
        golden, tmp_path / "other.jsonl", 0, lambda receipt: lie(receipt, folder, defaults=defaults, request="sha256:0")
    )
    assert verify(live, target, "--answers-only").returncode == 0
    done = verify(live, target)
    assert (done.returncode, "plain: the defaults of the server are others" in done.stdout) == (1, True)


def test_a_promised_difference_counts_more_than_others() -> None:
    """Exit code 3, whatever else differs where nothing is promised."""
    found = [Difference("tokens", "token 1 differs")]
    cases = [Case("a", {}, found=found, promised=promised) for promised in (False, True)]
    assert [exit_code(cases[:1]), exit_code(cases[1:]), exit_code(cases), exit_code([])] == [4, 3, 3, 0]
    assert exit_code([*cases, Case("a", {}, error="no answer")]) == 1


def test_a_line_without_a_proof_is_an_error(live: Live, folder: Path, golden: Path, tmp_path: Path) -> None:
    """The others are checked all the same."""
    requests = {
        "bad": ("/v1/completions", {"prompt": "x", "temperature": 9}),
        "good": REQUESTS["plain"],
        "hashes": ("/v1/completions", {"prompt": "x", "receipt": True}),
        "none": ("/v1/completions", {"prompt": "x", "receipt": False}),
        "other": ("/v1/embeddings", {"input": "x", "receipt": None}),
    }
    path = recorded(live, tmp_path, requests, good=False)
    done = verify(live, path, "--junit", tmp_path / "report.xml")
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert lines["bad"].startswith("the batch has no answer: ")
    assert lines["hashes"].startswith("the receipt has hashes only")
    assert lines["none"].endswith('line 4 has no receipts: a request gets them with "receipt": true')
    assert lines["other"].startswith("the batch has no answer: ")
    assert (done.returncode, lines["verify"]) == (1, "1 of 5 answers passed")
    assert counts(tmp_path / "report.xml") == ["5", "0", "4"]


def test_a_server_without_a_key_is_an_error(golden: Path, tmp_path: Path) -> None:
    with running() as without_key:
        done = verify(without_key, golden, "--junit", tmp_path / "report.xml")
    assert done.returncode == 1
    assert "plain: it cannot be computed again: receipt needs a server with a key" in done.stdout
    assert counts(tmp_path / "report.xml") == ["4", "0", "4"]


def test_another_key_has_not_signed_the_lines(live: Live, golden: Path, tmp_path: Path) -> None:
    done = verify(live, golden, "--signature-only", "--key", make_key(tmp_path / "other.pem").public)
    assert (done.returncode, done.stdout.count("key: the receipt is signed with")) == (3, 5)


def test_a_request_that_needs_what_is_stored_is_refused(folder: Path, golden: Path, tmp_path: Path) -> None:
    """No server is started for it."""
    body = json.dumps({"input": "and", "conversation": "conv_1", "max_output_tokens": 4})

    def change(receipt: dict[str, Any]) -> dict[str, Any]:
        return lie(receipt, folder, content={**receipt["content"], "body": body})

    *_, line = changed(golden, tmp_path / "other.jsonl", 3, change).read_text().splitlines()
    (tmp_path / "other.jsonl").write_text(line)
    done = noria("verify", tmp_path / "other.jsonl")
    assert (done.returncode, '<response>: conversation must be null, got "conv_1"' in done.stdout) == (1, True)


def test_a_batch_has_its_requests(live: Live, golden: Path) -> None:
    done = verify(live, golden, "--request", golden)
    assert (done.returncode, "--request is for one answer" in done.stderr) == (1, True)
    done = verify(live, golden, "--model", "another")
    assert (done.returncode, "--model and --url exclude each other" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ('{"custom_id": "a"}\n', 'has no receipts: a request gets them with "receipt": true'),
        ("[]\n", "is no receipt"),
        ("GOLDEN[]\n", "line 5 is no result of a batch"),
        ('GOLDEN{"id":"batch_req', "line 5 is no result of a batch"),
    ],
)
def test_other_files_are_refused(live: Live, golden: Path, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "golden.jsonl").write_text(text.replace("GOLDEN", golden.read_text()))
    done = verify(live, tmp_path / "golden.jsonl")
    assert (done.returncode, words in done.stderr, done.stdout) == (1, True, ""), done.stderr


def test_a_failed_recording_leaves_what_is_there(live: Live, tmp_path: Path) -> None:
    """The command that failed goes on, and computes nothing twice."""
    bad = ("/v1/completions", {"prompt": "x", "temperature": 9})
    path = recorded(live, tmp_path, {"plain": REQUESTS["plain"], "bad": bad}, good=False)
    good, _ = path.read_text().splitlines()
    assert recorded(live, tmp_path, {"plain": REQUESTS["plain"]}) == path
    assert path.read_text().splitlines()[0] == good
    assert verify(live, path).stdout.splitlines()[-1] == "verify: 1 of 2 answers passed"
