"""The record of one request."""

import time
from dataclasses import dataclass, field

from service.http.keys.key import Key
from service.http.policy import Policy


@dataclass(slots=True)
class RequestRecord:
    """The facts of one request, for its log line and the metrics. They are added while the request is served.

    `client` is the address of its sender. `key` is None without keys too. `ignored` are fields of the
    body that passed without effect. Times are in seconds. None: the request did
    not get that far.
    """

    id: str
    method: str
    path: str
    policy: Policy
    client: str | None = None
    started: float = field(default_factory=time.perf_counter)
    body_bytes: int = 0
    status: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    queue_seconds: float | None = None
    first_token_seconds: float | None = None
    outcome: str | None = None
    user: str | None = None
    ignored: tuple[str, ...] = ()
    key: Key | None = None

    @property
    def tenant(self) -> str:
        """The name under which the engine accounts the request."""
        return "" if self.key is None else self.key.name

    def charge_prompt(self, n_tokens: int) -> None:
        """Record the tokens of all prompts. They are part of what the key has used from now on."""
        self.prompt_tokens = n_tokens
        if self.key is not None:
            self.key.charge(n_tokens)

    @property
    def waits_for(self) -> str:
        """What a request waits for that is not finished."""
        if self.prompt_tokens is None:
            return "its body or the tokenizer"
        if self.queue_seconds is None:
            return "a place among the running sequences"
        return "its first token" if self.first_token_seconds is None else "its last token"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of every response: the id, and, where they are known, the wait for the engine and ignored fields."""
        headers = [(b"x-request-id", self.id.encode())]
        if self.queue_seconds is not None:
            headers.append((b"x-queue-ms", b"%.1f" % (self.queue_seconds * 1000)))
        if self.ignored:
            headers.append((b"x-noria-ignored", ", ".join(self.ignored).encode()))
        return headers
