"""The objective of a request, in the headers of llm-d's router: its priority, its share of the queue, its targets."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from model.errors import quoted
from service.engine.messages import Submit
from service.errors.errors import InvalidRequest

NAME, FAIRNESS = "x-llm-d-inference-objective", "x-llm-d-inference-fairness-id"
FIRST, BETWEEN = "x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms"
MAX_CHARS = 128
MAX_MS = 86_400_000


class Objective(NamedTuple):
    """The objective. `priority` None: the body's. `share` divides the queue where no key does. Targets are in seconds.

    A target of 0 is that of the server.
    """

    priority: int | None = None
    share: str = ""
    first: float = 0.0
    between: float = 0.0

    @classmethod
    def of(
        cls, headers: Mapping[str, str], priorities: Mapping[str, int], least: int, targets: tuple[float, float]
    ) -> "Objective":
        """Read the headers. `priorities` are those of names, `least` is the lowest that the sender may have.

        Only who may have one below 0 has stricter `targets` than these, the server's. Raises InvalidRequest.
        """
        share, priority = headers.get(FAIRNESS, ""), priorities.get(headers.get(NAME, ""))
        if len(share) > MAX_CHARS:
            message = f"the header {FAIRNESS} must have at most {MAX_CHARS} characters, got {len(share)}"
            raise InvalidRequest(message, param=FAIRNESS)
        own = [_seconds(headers, name) for name in (FIRST, BETWEEN)]
        if least >= 0:
            own = [seconds and max(seconds, ours) for seconds, ours in zip(own, targets, strict=True)]
        return cls(None if priority is None else max(priority, least), share, *own)

    def applied(self, submit: Submit) -> Submit:
        """Return the message with this objective. The body's priority takes precedence."""
        priority = submit.priority or self.priority or 0
        share = submit.tenant or self.share
        return replace(submit, tenant=share, priority=priority, first=self.first, between=self.between)


def _seconds(headers: Mapping[str, str], name: str) -> float:
    """Return the seconds in a header of milliseconds; 0 without it."""
    if (value := headers.get(name)) is None:
        return 0.0
    if not (value.isascii() and value.isdigit() and 0 < int(value[:9]) <= MAX_MS and len(value) < 9):
        message = f"the header {name} must be a whole number of milliseconds, 1 to {MAX_MS}, got {quoted(value)}"
        raise InvalidRequest(message, param=name)
    return int(value) / 1000
