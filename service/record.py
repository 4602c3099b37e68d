"""What is known of one HTTP request when it ends: the log line and the counters come from here."""

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestRecord:
    """Filled while the request is served. Times are seconds; None: it did not get that far."""

    id: str
    method: str
    path: str
    started: float = field(default_factory=time.perf_counter)
    status: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    queue_seconds: float | None = None
    first_token_seconds: float | None = None
    outcome: str | None = None

    @property
    def age(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self.started
