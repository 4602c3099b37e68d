"""The results of a batch: a file that only grows, one line for each request that is finished.

A line is written in one piece. After a crash the file has the finished lines and perhaps the beginning of another one,
which is cut off. The other lines say which requests need no answer any more.
"""

import fcntl
import io
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from model.errors import OptionError
from service.commands.batch.lines import Line, Refusal, key_of

FIELDS = {"custom_id", "response", "error"}
GOOD = range(200, 300)
PREFIX = "batch_req_"
START = f'{{"id":"{PREFIX}'.encode()
"""The first bytes of every result: `id` is the first field."""


class Results:
    """The open file, which may also have results of lines that the batch does not have."""

    def __init__(self, path: Path, file: io.FileIO) -> None:
        self._good: dict[bytes, bool] = {}
        self.path = path
        self._file = file

    def remember(self, result: dict[str, Any]) -> None:
        """Keep whether a line of the file is a good answer."""
        self._good[key_of((result["error"] or {}).get("line"), result["custom_id"])] = not is_failure(result)

    def has(self, line: Line) -> bool:
        return self.good(line) is not None

    def good(self, line: Line) -> bool | None:
        """Return whether the result of this line is a good answer, None without a result."""
        return self._good.get(key_of(line.line, line.custom_id))

    def write(self, result: dict[str, Any]) -> None:
        """Append a result. Raises OptionError if the file cannot take it."""
        data = orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise OptionError(f"{self.path} cannot be written: {error.strerror}") from error
        self.remember(result)


def is_failure(result: dict[str, Any]) -> bool:
    return result["response"] is None or result["response"]["status_code"] not in GOOD


def answered(line: Line, status: int, request_id: str | None, body: object) -> dict[str, Any]:
    """Make the result of a request that the server answered, well or not."""
    return _result(line, {"status_code": status, "request_id": request_id, "body": body}, None)


def failed(line: Line, code: str, message: str) -> dict[str, Any]:
    """Make the result of a line that got no answer."""
    return _result(line, None, {"code": code, "message": message, "line": line.line})


def refused(refusal: Refusal) -> dict[str, Any]:
    return failed(refusal, "invalid_line", refusal.message)


def _result(line: Line, response: dict[str, Any] | None, error: dict[str, Any] | None) -> dict[str, Any]:
    name = f"{PREFIX}{uuid.uuid4().hex}"
    return {"id": name, "custom_id": line.custom_id, "response": response, "error": error}


@contextmanager
def opened(path: Path, *, retry_failed: bool) -> Iterator[Results]:
    """Open the file of results, with those of an earlier run. With `retry_failed` its failures are removed first.

    Raises OptionError for a file that cannot be written, that is no file of results, or that another batch writes.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OptionError(f"{path} is not a regular file; a batch goes on from what the file already has")
    if retry_failed:
        with _locked(path) as file:
            _write_good(path, file)
    with _locked(path) as file:
        results, end = Results(path, file), 0
        for line, result in _read(path, file):
            results.remember(result)
            end += len(line)
        try:
            file.truncate(end)
        except OSError as error:
            raise OptionError(f"{path} cannot be written: {error.strerror}") from error
        yield results


@contextmanager
def _locked(path: Path) -> Iterator[io.FileIO]:
    try:
        file = path.open("ab+", buffering=0)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OptionError(f"another noria batch writes {path}; wait for it, or name another file") from error
        yield file


def _read(path: Path, file: io.FileIO) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the lines of the file and their results, without a torn last line. Raises OptionError for other content."""
    file.seek(0)
    lines = io.BufferedReader(file)
    for number, line in enumerate(lines, 1):
        begin = line.replace(b" ", b"")[: len(START)]  # another program may have written spaces
        if not line.endswith(b"\n") and START.startswith(begin):
            break
        try:
            result = orjson.loads(line)
        except ValueError:
            result = None
        if not is_result(result):
            raise OptionError(f"{path} line {number} is no result of a batch; name a new file for the results")
        yield line, result
    lines.detach()


def is_result(value: Any) -> bool:
    """Return whether `value` has what `_result` writes."""
    if not isinstance(value, dict) or not value.keys() >= FIELDS:
        return False
    response, error = value["response"], value["error"]
    has_status = isinstance(response, dict) and "status_code" in response
    return (response is None or has_status) and (error is None or isinstance(error, dict))


def _write_good(path: Path, file: io.FileIO) -> None:
    """Replace the file by one without failures."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as good:
            good.writelines(line for line, result in _read(path, file) if not is_failure(result))
        partial.replace(path)
    except OSError as error:
        raise OptionError(f"{partial} cannot be written: {error.strerror}") from error
