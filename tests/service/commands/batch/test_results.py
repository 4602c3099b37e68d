"""The file of results: what a crash leaves, what is no such file, and which lines count as failed."""

import json
from pathlib import Path

import pytest

from model.errors import OptionError
from service.commands.batch.lines import Refusal, Request
from service.commands.batch.results import Results, answered, failed, opened, refused

LINES = [Request(number, f"id-{number}", "/v1/completions", b"{}") for number in range(1, 5)]
BAD = Refusal(9, None, "line 9 is not JSON")


def fill(path: Path) -> list[str]:
    """Write three answers, of which one is an error, and the result of a bad line; returns the lines."""
    with opened(path, retry_failed=False) as results:
        results.write(answered(LINES[0], 200, "r1", {"x": "é" * 40_000}))
        results.write(answered(LINES[1], 400, "r2", {"error": {}}))
        results.write(refused(BAD))
        results.write(answered(LINES[2], 200, "r3", {}))
        assert [results.good(line) for line in (*LINES, BAD)] == [True, False, True, None, False]
    return path.read_text().splitlines(keepends=True)


def test_a_result_has_the_shape_that_openai_documents(tmp_path: Path) -> None:
    first, second, third, _ = map(json.loads, fill(tmp_path / "out.jsonl"))
    assert first.pop("id").startswith("batch_req_")
    body = {"x": "é" * 40_000}
    assert first == {
        "custom_id": "id-1",
        "response": {"status_code": 200, "request_id": "r1", "body": body},
        "error": None,
    }
    assert (second["response"]["status_code"], second["error"]) == (400, None)
    assert (third["custom_id"], third["response"]) == (None, None)
    assert third["error"] == {"code": "invalid_line", "message": "line 9 is not JSON", "line": 9}


@pytest.mark.parametrize("cut", [1, 2, 70_000])
def test_a_torn_line_is_cut_and_the_rest_is_done(cut: int, tmp_path: Path) -> None:
    """The file may end at any byte: also before the last line's end alone, and in the middle of a long line."""
    lines = fill(tmp_path / "out.jsonl")
    data = "".join([*lines[1:], lines[0]]).encode()[:-cut]
    (tmp_path / "out.jsonl").write_bytes(data)
    whole = data[: data.rfind(b"\n") + 1]
    assert len(whole) < len(data)
    with opened(tmp_path / "out.jsonl", retry_failed=False) as results:
        assert (tmp_path / "out.jsonl").read_bytes() == whole
        assert [results.has(line) for line in (*LINES, BAD)] == [False, True, True, False, True]
        results.write(failed(LINES[3], "connection_error", "it broke"))
    assert (tmp_path / "out.jsonl").read_bytes().startswith(whole)


def test_failures_are_computed_again_if_wanted(tmp_path: Path) -> None:
    lines = fill(tmp_path / "out.jsonl")
    with opened(tmp_path / "out.jsonl", retry_failed=True) as results:
        assert [results.good(line) for line in (*LINES, BAD)] == [True, None, True, None, None]
    assert (tmp_path / "out.jsonl").read_text() == lines[0] + lines[3]
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize(
    "content",
    [
        "hello\n",
        "[]\n",
        json.dumps({"custom_id": "a", "body": {}}) + "\n",
        '{"custom_id": "a", "response": 5, "error": null}\n',
        '{"custom_id": "a", "response": null, "error": "x"}\n',
        "notes\nthe last line has no end",
        '{"custom_id": "a"}',
    ],
)
def test_another_file_is_never_written(content: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(content)
    for retry in (False, True):
        with pytest.raises(OptionError, match=r"line .*is no result of a batch"), opened(path, retry_failed=retry):
            pass
    assert path.read_text() == content


def test_two_batches_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with opened(path, retry_failed=False), pytest.raises(OptionError, match="another noria batch writes"):
        opened(path, retry_failed=False).__enter__()


def test_a_folder_or_a_device_is_no_file_of_results(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "cannot be written: Is a directory"), (Path("/dev/full"), "not a regular file")):
        with pytest.raises(OptionError, match=reason):
            opened(path, retry_failed=False).__enter__()


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("wb", buffering=0) as file:
        results = Results(Path("out.jsonl"), file)
        with pytest.raises(OptionError, match=r"out\.jsonl cannot be written: No space left on device"):
            results.write(answered(LINES[0], 200, None, {}))
