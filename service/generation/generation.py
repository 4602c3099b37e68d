"""The generation of one request: all its choices, from submission to the last token."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Protocol, cast

from model.tokenizers.base import Tokenizer
from service.access.keys import Share
from service.access.record import GenerationFacts, RequestRecord
from service.engine.client import EngineClient
from service.engine.mailbox import Mailbox, split
from service.engine.messages import Submit, Update
from service.generation.choice import Choice, Delta
from service.generation.request import ModelRequest
from service.generation.text import TextStream
from service.generation.thinking import CountingStream, ThinkingStream
from service.generation.usage import CacheMiss, Timings, Usage, timings

log = logging.getLogger("noria.request")

Event = tuple[Choice, Delta]


class Observed(Protocol):
    """What counts tokens and times: the metrics of the server."""

    def observe_prompt(self, n_tokens: int) -> None: ...
    def observe_queue(self, seconds: float) -> None: ...
    def observe_first_token(self, seconds: float) -> None: ...
    def observe_tokens(self, n_tokens: int, seconds: float | None) -> None: ...
    def observe_thought(self, n_tokens: int) -> None: ...


class Backlog:
    """What waits for the engine: choices without a first step, and the tokens of prompts without one.

    `media` are bytes of decoded images and audio, of requests without a first token.
    """

    def __init__(self) -> None:
        self.tokens = Share()
        self.choices = Share()
        self.media = Share()

    def add(self, tenant: str, tokens: int, choices: int, media: int) -> None:
        """Count more; negative numbers count what waits no longer."""
        self.tokens.add(tenant, tokens)
        self.choices.add(tenant, choices)
        self.media.add(tenant, media)


class Generation:
    """The choices of a request, once `submit` has sent them.

    `close` must be called at the end. `backlog` counts what waits, of all requests.
    """

    def __init__(
        self,
        request: ModelRequest,
        client: EngineClient,
        tokenizer: Tokenizer,
        metrics: Observed,
        record: RequestRecord,
        backlog: Backlog,
    ) -> None:
        self.usage = Usage.of(request.submits)
        self.facts = GenerationFacts()
        self.choices: list[Choice] = []
        self._request = request
        self._client = client
        self._cancelled = False
        self._refusal: Exception | None = None  # the error of a cancelled request, if it ends with one
        self._n = request.n
        self._n_best = request.n if request.n_best is None else request.n_best
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._record = record
        self._backlog = backlog
        self._waiting = (0, 0, 0)  # this request's part of the backlog: tokens, choices, bytes of decoded media
        self.submitted = time.perf_counter()
        self._first: float | None = None
        self._miss: CacheMiss | None = None
        self._finishes: dict[int, str] = {}  # choice -> why it ended
        self._deadline: asyncio.TimerHandle | None = None
        self._pumps: list[asyncio.Task[None]] = []

    @property
    def request(self) -> ModelRequest:
        return self._request

    @property
    def client(self) -> EngineClient:
        """Return the client of the engine that computes it."""
        return self._client

    async def submit(self) -> None:
        """Send each prompt to the engine, once for all its choices. The event loop serves others after each prompt.

        Raises EngineUnavailable.
        """
        submits, timeout = self._request.submits, self._request.timeout
        echoes = self._request.echoes or (None,) * len(submits)
        self._wait(self.usage.prompt, self._request.n_choices, sum(len(submit.inputs) for submit in submits))
        request = self._request = replace(self._request, submits=tuple(replace(item, inputs=b"") for item in submits))
        try:
            for sent, submit, echo in zip(submits, request.submits, echoes, strict=True):
                for mailbox in self._mailboxes(sent):
                    text = self._text()
                    self.choices.append(Choice(len(self.choices), submit, echo, request, mailbox, text))
                if sent is not submits[-1]:
                    await asyncio.sleep(0)
        except BaseException:
            self.close()
            raise
        if timeout is not None:
            left = timeout - (time.perf_counter() - self._record.started)
            self._deadline = asyncio.get_running_loop().call_later(max(0.0, left), self._expire)
        self._metrics.observe_prompt(self.usage.prompt)
        if log.isEnabledFor(logging.DEBUG):
            sequences = [choice.mailbox.id for choice in self.choices]
            fields = {"id": self._record.id, "sequences": sequences, "prompt_tokens": self.usage.prompt}
            log.debug("submitted", extra={"fields": fields})

    def _mailboxes(self, submit: Submit) -> list[Mailbox]:
        """Return a mailbox for each choice of a prompt."""
        if self._refusal is not None:
            raise self._refusal
        if self._cancelled or not submit.prompt:
            return [Mailbox.late("abort" if self._cancelled else "timeout") for _ in range(self._n)]
        sent = replace(submit, tenant=self._record.tenant, cache_owner=self._record.cache_owner)
        return self._client.submit_choices(sent, self._request.restore)

    def _text(self) -> TextStream | ThinkingStream:
        params, reasoning = self._request.params, self._request.reasoning
        text = TextStream(
            self._tokenizer,
            params.stop,
            min_tokens=params.min_tokens,
            include_stop=params.include_stop_str_in_output,
            strip_leading_space=self._request.starts_message and self._tokenizer.strips_leading_space,
            keep_control=self._request.visible_control,
        )
        if reasoning is None:
            return text
        return ThinkingStream(reasoning, text) if reasoning.apart else CountingStream(reasoning, text, self._tokenizer)

    def _wait(self, tokens: int, choices: int, media: int = 0) -> None:
        self._waiting = (self._waiting[0] + tokens, self._waiting[1] + choices, self._waiting[2] + media)
        self._backlog.add(self._record.tenant, tokens, choices, media)

    def _expire(self) -> None:
        for choice in self.choices:
            choice.mailbox.expire()

    def cancel(self, error: Exception | None) -> None:
        """End all choices, whether submitted or not: with finish reason "abort", or with this error."""
        self._cancelled, self._refusal = True, error
        for choice in self.choices:
            if error is None:
                choice.mailbox.expire("abort")
            else:
                choice.mailbox.close()
                choice.mailbox.fail(error)

    def best(self) -> list[Choice]:
        """Return the choices of the answer: all, or the likeliest for each prompt, the likeliest first."""
        if self._n_best == self._n:
            return self.choices
        prompts = [self.choices[first : first + self._n] for first in range(0, len(self.choices), self._n)]
        ranked = (sorted(prompt, key=lambda choice: -choice.mean_logprob) for prompt in prompts)
        return [choice for prompt in ranked for choice in prompt[: self._n_best]]

    def note_sent(self) -> None:
        """Take note that the client has a part of the answer."""
        for choice in self.choices:
            choice.mailbox.sent = True

    def events(self) -> AsyncIterator[Event]:
        """Yield the deltas of all choices as they arrive, in order for each choice. Raises what the engine raises."""
        return self._follow(self.choices[0]) if len(self.choices) == 1 else self._merged()

    def timings(self) -> Timings:
        """Return the times of all choices: the first token of all ends the prompt's time, the last one the answer's."""
        first = self._first or time.perf_counter()
        last = max((choice.last_token or first for choice in self.choices), default=first)
        queue = self.facts.queue_seconds or 0.0
        prompt = max(0.0, first - self.submitted - queue)
        return timings(self.usage, self._miss, queue, prompt, last - first, self._record.load_seconds)

    async def _merged(self) -> AsyncIterator[Event]:
        queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue(maxsize=1)  # a slow reader slows the pumps
        self._pumps = [asyncio.create_task(self._pump(choice, queue)) for choice in self.choices]
        unfinished = len(self._pumps)
        while unfinished:
            item = await queue.get()
            if item is None:
                unfinished -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item

    async def _pump(self, choice: Choice, queue: "asyncio.Queue[Event | Exception | None]") -> None:
        try:
            async for event in self._follow(choice):
                await queue.put(event)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    async def _follow(self, choice: Choice) -> AsyncIterator[Event]:
        updates = _by_token(choice.mailbox) if self._request.by_token else choice.mailbox
        async for update in updates:
            before, thought = choice.n_generated, choice.n_thought
            delta = choice.absorb(update)
            self._count_thought(choice.n_thought - thought)
            self._measure(choice, update, choice.n_generated - before)
            if delta.progress is not None:
                delta.progress["time_ms"] = round((time.perf_counter() - self.submitted) * 1000)
            if delta:
                yield choice, delta
            if delta.finish is not None:
                self._finishes[choice.index] = delta.finish
                return

    def _measure(self, choice: Choice, update: Update, n_tokens: int) -> None:
        """Count an update."""
        if (admitted := update.admitted) is not None:
            choice.admitted = True
            self._wait(-len(choice.submit.prompt) if choice.index % self._n == 0 else 0, -1)
            self._metrics.observe_queue(admitted.queued)
            if self.facts.queue_seconds is None:  # of several choices the first that is admitted counts
                self.facts.queue_seconds = admitted.queued
            if choice.index % self._n == 0:
                self.usage.cached += admitted.cached
                self.usage.from_disk += admitted.from_disk
            if admitted.miss is not None and not choice.index:
                self._miss = cast(CacheMiss, admitted.miss._asdict())
        if not n_tokens:
            return
        now = time.perf_counter()
        if choice.last_token is None:
            self._first = self._first or now
            self._wait(0, 0, -self._waiting[2])
            seconds = now - self._record.started - self._record.load_seconds
            self._metrics.observe_first_token(seconds)
            if self.facts.first_token_seconds is None:
                self.facts.first_token_seconds = seconds
                log.debug("first token", extra={"fields": {"id": self._record.id}})
        self._metrics.observe_tokens(n_tokens, None if choice.last_token is None else now - choice.last_token)
        self.usage.completion += n_tokens
        choice.last_token = now

    def _count_thought(self, n_tokens: int) -> None:
        if n_tokens:
            self.usage.reasoning += n_tokens
            self._metrics.observe_thought(n_tokens)

    def close(self) -> None:
        """Abort unfinished choices, and complete the facts."""
        if self._deadline is not None:
            self._deadline.cancel()
        for pump in self._pumps:
            pump.cancel()
        for choice in self.choices:
            choice.mailbox.close()
        self._wait(*(-part for part in self._waiting))
        facts, usage = self.facts, self.usage
        facts.cached_tokens, facts.generated_tokens = usage.cached, usage.completion
        facts.reasoning_tokens = usage.reasoning
        facts.last_token = max((choice.last_token or 0.0 for choice in self.choices), default=0.0) or None
        facts.finishes = tuple(self._finishes[index] for index in sorted(self._finishes))


async def _by_token(mailbox: Mailbox) -> AsyncIterator[Update]:
    """Yield the updates of a mailbox, each with one token."""
    async for update in mailbox:
        for part in split(update):
            yield part
