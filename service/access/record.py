"""The record of one request, the policy of its route, and the middleware that makes the record and checks the key."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal
from urllib.parse import quote

from starlette.routing import compile_path

from model.sampling_params import SamplingParams
from service.access.headers import ID, IGNORED, QUEUE
from service.access.keys import Key
from service.access.objective import Objective
from service.errors.dialects import OPENAI, Dialect
from service.errors.errors import ApiError

Operation = Literal["chat", "text_completion", "embeddings"]
"""What a model does for a request, as OpenTelemetry names it (`gen_ai.operation.name`)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How the server treats the requests of a route.

    `open`: they need no key. `operation`: what the model does, None if nothing; of the others, metrics count outcomes
    and durations. `quiet`: the log has them at level debug only, and traces do not. `dialect` writes their errors.
    `page`: browsers show the answer, and any site may have a link to it. `resumes`: a request with the header `LAST`
    goes on with a stream.
    """

    dialect: Dialect = OPENAI
    open: bool = False
    operation: Operation | None = None
    quiet: bool = False
    page: bool = False
    resumes: bool = False

    @property
    def generates(self) -> bool:
        return self.operation is not None


class Policies:
    """The routes of all paths, each with its policy. Raises ValueError when one path has two."""

    def __init__(self, policies: Iterable[tuple[str, Policy]]) -> None:
        self._declared: dict[str, Policy] = {}
        for path, policy in policies:
            if self._declared.setdefault(path, policy) != policy:
                raise ValueError(f"routes of {path} declare different policies")
        patterns = [path for path in self._declared if "{" in path]
        self._patterns = [(compile_path(path)[0], path) for path in patterns]

    def of(self, path: str) -> tuple[str | None, Policy]:
        """Return the route of a path, and its policy.

        An unknown path has no route. Its policy has the dialect of the route above it, and nothing else.
        """
        if (declared := self._declared.get(path)) is not None:
            return path, declared
        for pattern, route in self._patterns:
            if pattern.match(path):
                return route, self._declared[route]
        extended = [known for known in self._declared if path.startswith(f"{known}/")]
        return None, Policy(self._declared[max(extended, key=len)].dialect) if extended else Policy()


RESUME, LAST = "x-noria-resume", "last-event-id"
"""The headers of a client that will go on with a stream if it breaks, and of one that goes on."""
MAX_IGNORED = 16
"""As many ignored fields are in the header."""
MAX_PATH_CHARS = 64
ERROR_FACTS = ("code", "field", "limit", "unknown_model")
CLIENT_GONE = 499
"""The status in the log when a client disconnects before the response; nginx uses this number."""


def printable(path: str) -> str:
    """Return the path of a field, which clients choose, as headers, logs and metrics have it."""
    return quote(path, safe="[]")[:MAX_PATH_CHARS] or '""'


@dataclass(slots=True)
class GenerationFacts:
    """What is known of a generation. Times are in seconds, `last_token` is by perf_counter.

    None: it did not get that far. `finishes` has the finish reason of each choice that ended.
    """

    queue_seconds: float | None = None
    first_token_seconds: float | None = None
    last_token: float | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    reasoning_tokens: int | None = None
    finishes: tuple[str, ...] = ()


@dataclass(slots=True)
class RequestRecord:
    """The facts of one request, for its log line, the metrics and its trace. They are added while it is served.

    `route` is the path of its route, None for a path without one. `client` is the address of its sender. `ignored` are
    fields of the body that passed without effect, `refused` the one that a 400 names. `error` has the facts of the
    error that the client got. `key` is None without keys too. `owner` is its key's identity: the key's name may later
    be that of another. Requests with the same `cache_owner` reuse each other's cached prompts. Times are in seconds.
    None: the request did not get that far.
    For a request to a model: `model` is the name that it uses, `served` the model's first name, `adapter` that of its
    LoRA adapter, and `failure` the class of the error that ended it. `load_seconds` is the wait until its model was
    loaded, no part of `first_token_seconds`; meanwhile `model_wait` says why. `submitted` is by perf_counter. `body` is
    there only for a receipt that repeats it, and `body_digest`, of its JSON, only for a stream that resumes. `place` is
    that among the key's requests in flight, until it is closed. `objective` is that of a router's headers.
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
    generation: GenerationFacts = field(default_factory=GenerationFacts)
    load_seconds: float = 0.0
    outcome: str | None = None
    user: str | None = None
    ignored: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    error: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(ERROR_FACTS))
    key: Key | None = None
    owner: str = ""
    shares_cache: bool = False
    model: str | None = None
    served: str | None = None
    adapter: str | None = None
    streams: bool = False
    params: SamplingParams | None = None
    n_choices: int = 1
    submitted: float | None = None
    failure: str | None = None
    model_wait: Callable[[], str] | None = None
    body: bytes = b""
    body_digest: str = ""
    objective: Objective = Objective()  # noqa: RUF009 - frozen
    place: ExitStack = field(default_factory=ExitStack)

    @property
    def tenant(self) -> str:
        """Return the name under which the engine accounts the request."""
        return "" if self.key is None else self.key.name

    @property
    def least_priority(self) -> int:
        """Return the lowest priority that its key, or a request without one, may send."""
        return 0 if self.key is None else self.key.entry.priority

    @property
    def cache_owner(self) -> str:
        return "" if self.shares_cache else self.owner

    @property
    def has_ended(self) -> bool:
        """Return whether its key has ended meanwhile."""
        return self.key is not None and self.key.entry.end

    @property
    def sender(self) -> str:
        """Return whose request it is as far as one can tell: the tenant, or without keys the client's address."""
        return self.tenant or self.client or ""

    def name_user(self, name: str | None) -> None:
        """Record a hash of the client's name for its user, which may be logged."""
        self.user = sha256(name.encode()).hexdigest()[:16] if name else None

    def note_error(self, error: ApiError) -> None:
        """Record the facts of the error that the client gets, but not the error: it holds the frames of the request."""
        name = None if error.param is None else printable(error.param)
        facts = (error.code or error.type, name, error.limit_name, error.model)
        self.error = dict(zip(ERROR_FACTS, facts, strict=True))
        self.refused = () if name is None or error.status != 400 else (name,)

    def charge_prompt(self, n_tokens: int) -> None:
        """Record the tokens of all prompts. They are part of what the key has used from now on."""
        self.prompt_tokens = n_tokens
        if self.key is not None:
            self.key.charge(n_tokens)

    @contextmanager
    def waiting_for_model(self, why: Callable[[], str]) -> Iterator[None]:
        """Record what the request waits for inside the context, and for how long."""
        began, self.model_wait = time.perf_counter(), why
        try:
            yield
        finally:
            self.load_seconds, self.model_wait = self.load_seconds + time.perf_counter() - began, None

    @property
    def waits_for(self) -> str:
        """Say what a request that is not finished waits for."""
        if self.model_wait is not None:
            return self.model_wait()
        if self.prompt_tokens is None:
            return "its body, its images or the tokenizer"
        if self.generation.queue_seconds is None:
            return "the queue or the prefill of its prompt"
        return "its first token" if self.generation.first_token_seconds is None else "its last token"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of every response: the id and, once known, the wait for the engine and ignored fields."""
        headers = [(ID, self.id.encode())]
        if (queue := self.generation.queue_seconds) is not None:
            headers.append((QUEUE, b"%.1f" % (queue * 1000)))
        if self.ignored:
            more = ("...",) if len(self.ignored) > MAX_IGNORED else ()
            headers.append((IGNORED, ", ".join((*self.ignored[:MAX_IGNORED], *more)).encode()))
        return headers
