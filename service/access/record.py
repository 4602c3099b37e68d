"""The record of one request."""

import time
from dataclasses import dataclass, field

from model.sampling_params import SamplingParams
from service.access.keys.key import Key
from service.access.policy import Policy

CLIENT_GONE = 499
"""The status in the log when a client disconnects before the response; nginx uses this number."""


@dataclass(slots=True)
class RequestRecord:
    """The facts of one request, for its log line, the metrics and its trace. They are added while it is served.

    `route` is the path of its route, None for a path without one. `client` is the address of its sender. `ignored` are
    fields of the body that passed without effect. `key` is None without keys too. `owner` is its key's
    identity: the key's name may later be that of another. Requests with the same `cache_owner` reuse each other's
    cached prompts. Times are in seconds. None: the request did not get that far.
    For a request to the model: `model` is the name that it uses, `adapter` that of its LoRA adapter, `finishes` the
    finish reason of each choice that ended, and `failure` the class of the error that ended it. `submitted` and
    `last_token` are by perf_counter.
    """

    id: str
    method: str
    path: str
    route: str | None
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
    owner: str = ""
    shares_cache: bool = False
    model: str | None = None
    adapter: str | None = None
    streams: bool = False
    params: SamplingParams | None = None
    n_choices: int = 1
    submitted: float | None = None
    last_token: float | None = None
    reasoning_tokens: int | None = None
    finishes: tuple[str, ...] = ()
    failure: str | None = None

    @property
    def tenant(self) -> str:
        """The name under which the engine accounts the request."""
        return "" if self.key is None else self.key.name

    @property
    def cache_owner(self) -> str:
        return "" if self.shares_cache else self.owner

    @property
    def sender(self) -> str:
        """Whose request it is as far as one can tell: the tenant, or without keys the client's address."""
        return self.tenant or self.client or ""

    def charge_prompt(self, n_tokens: int) -> None:
        """Record the tokens of all prompts. They are part of what the key has used from now on."""
        self.prompt_tokens = n_tokens
        if self.key is not None:
            self.key.charge(n_tokens)

    @property
    def waits_for(self) -> str:
        """What a request waits for that is not finished."""
        if self.prompt_tokens is None:
            return "its body, its images or the tokenizer"
        if self.queue_seconds is None:
            return "the queue or the prefill of its prompt"
        return "its first token" if self.first_token_seconds is None else "its last token"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of every response: the id, and, where they are known, the wait for the engine and ignored fields."""
        headers = [(b"x-request-id", self.id.encode())]
        if self.queue_seconds is not None:
            headers.append((b"x-queue-ms", b"%.1f" % (self.queue_seconds * 1000)))
        if self.ignored:
            headers.append((b"x-noria-ignored", ", ".join(self.ignored).encode()))
        return headers
