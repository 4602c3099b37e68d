"""How far a batch is, in numbers and words."""

from typing import Any

from service.commands.batch.results import Results
from service.commands.pulse import Pace


class Progress:
    """Counts lines and tokens of a batch with `total` lines while results are written."""

    def __init__(self, total: int, results: Results) -> None:
        self._total = total
        self._results = results
        self._tokens = 0
        self.start()

    def start(self) -> None:
        """Begin to measure the rate here: the server is ready."""
        self._pace = Pace()
        self._before = len(self._results.done)

    def write(self, result: dict[str, Any]) -> None:
        """Write a result and count it."""
        self._results.write(result)
        self._tokens += output_tokens(result)

    def report(self) -> tuple[float, str]:
        """The part that is done, and its line."""
        done = len(self._results.done)
        left = self._pace.left(done - self._before, self._total - self._before)
        return done / self._total, f"{self.counts()}, {self._pace.rate(self._tokens):.0f} tokens/s{left}"

    def counts(self) -> str:
        """The lines that are done: "1200 of 10000 lines (12%), 3 failed"."""
        done, failed = len(self._results.done), self._results.failed
        bad = f", {failed} failed" if failed else ""
        return f"{done} of {self._total} lines ({done / self._total:.0%}){bad}"

    def summary(self) -> str:
        """The line at the end of the batch."""
        rate = f", {self._tokens} tokens at {self._pace.rate(self._tokens):.0f} tokens/s" if self._tokens else ""
        return f"batch: {self.counts()}{rate}"


def output_tokens(result: dict[str, Any]) -> int:
    """The generated tokens that an answer reports, under the name of either API."""
    body = (result["response"] or {}).get("body")
    usage = body.get("usage") if isinstance(body, dict) else None
    counts = usage if isinstance(usage, dict) else {}
    return int(counts.get("completion_tokens") or counts.get("output_tokens") or 0)
