"""The progress of a batch, in numbers and words."""

from typing import Any

from service.commands.batch.results import Results, is_failure
from service.commands.endpoint import error_message
from service.commands.pulse import Pace


class BatchProgress:
    """The counts of lines and tokens of a batch with `total` lines while results are written.

    `left` lines have no result yet, `failed` have one without a good answer.
    """

    def __init__(self, total: int, left: int, failed: int, results: Results) -> None:
        self._total = total
        self.failed = failed
        self._results = results
        self._tokens = 0
        self._first = ""  # failure of this run
        self._done = total - left
        self.start()

    def start(self) -> None:
        """Begin to measure the rate here: the server is ready."""
        self._pace = Pace()
        self._before = self._done

    def write(self, result: dict[str, Any]) -> None:
        self._results.write(result)
        self._done += 1
        if is_failure(result):
            self.failed += 1
            message = error_message(result["error"] or result["response"]["body"])
            words = f"{result['custom_id'] or ''} {message}".split()
            self._first = self._first or f"; first failure: {' '.join(words)}"
        self._tokens += output_tokens(result)

    def report(self) -> tuple[float, str]:
        """Return the part that is done, and its line."""
        left = self._pace.left(self._done - self._before, self._total - self._before)
        return self._done / self._total, f"{self.counts()}, {self._pace.rate(self._tokens):.0f} tokens/s{left}"

    def counts(self) -> str:
        """Count the lines that are done: "1200 of 10000 lines (12%), 3 failed"."""
        bad = f", {self.failed} failed" if self.failed else ""
        return f"{self._done} of {self._total} lines ({self._done / self._total:.0%}){bad}"

    def summary(self) -> str:
        rate = f", {self._tokens} tokens at {self._pace.rate(self._tokens):.0f} tokens/s" if self._tokens else ""
        return f"batch: {self.counts()}{rate}; results in {self._results.path}{self._first}"


def output_tokens(result: dict[str, Any]) -> int:
    """Return the generated tokens that an answer reports, under the name of either API."""
    body = (result["response"] or {}).get("body")
    usage = body.get("usage") if isinstance(body, dict) else None
    counts = usage if isinstance(usage, dict) else {}
    return int(counts.get("completion_tokens") or counts.get("output_tokens") or 0)
