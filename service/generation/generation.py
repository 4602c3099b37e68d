"""The generation of one request: all its choices, from submission to the last token."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from model.tokenizers.base import Tokenizer
from service.access.record import RequestRecord
from service.engine.client import EngineClient
from service.engine.mailbox import Mailbox
from service.engine.messages import Submit
from service.generation.choice import Choice, Delta, Event, joined
from service.generation.request import ModelRequest
from service.generation.usage import Meter


class Generation:
    """The choices of a request, once `submit` has sent them. `client` is that of the engine that computes it.

    `close` must be called at the end, also after `submit` has failed.
    """

    def __init__(
        self, request: ModelRequest, client: EngineClient, tokenizer: Tokenizer, meter: Meter, record: RequestRecord
    ) -> None:
        self.request = request
        self.client = client
        self.meter = meter
        self.choices: list[Choice] = []
        self._tokenizer = tokenizer
        self._record = record
        self._cancelled = False
        self._refusal: Exception | None = None  # the error of a cancelled request, if it ends with one
        self._deadline: asyncio.TimerHandle | None = None
        self._pumps: list[asyncio.Task[None]] = []

    async def submit(self) -> None:
        """Send each prompt to the engine, once for all its choices. The event loop serves others after each prompt.

        Raises EngineUnavailable.
        """
        submits, timeout = self.request.submits, self.request.timeout
        echoes = self.request.echoes or (None,) * len(submits)
        request = self.request = replace(self.request, submits=tuple(replace(item, inputs=b"") for item in submits))
        for sent, submit, echo in zip(submits, request.submits, echoes, strict=True):
            for mailbox in self._mailboxes(sent):
                index = len(self.choices)
                self.choices.append(Choice(index, submit, echo, request, mailbox, self._tokenizer, self.meter))
            if sent is not submits[-1]:
                await asyncio.sleep(0)
        if timeout is not None:
            left = timeout - (time.perf_counter() - self._record.started)
            self._deadline = asyncio.get_running_loop().call_later(max(0.0, left), self._expire)

    def _mailboxes(self, submit: Submit) -> list[Mailbox]:
        """Return a mailbox for each choice of a prompt."""
        if self._refusal is not None:
            raise self._refusal
        if self._cancelled or not submit.prompt:
            return [Mailbox.late("abort" if self._cancelled else "timeout") for _ in range(submit.n)]
        record = self._record
        sent = replace(submit, tenant=record.tenant, cache_owner=record.cache_owner)
        sent = record.objective.applied(sent)
        if not self.request.known:
            return self.client.submit_choices(sent, self.request.restore)
        first = len(self.choices)
        known = self.request.known[first : first + submit.n]
        alone = (replace(sent, n=1, choice=index, output=[*tokens]) for index, tokens in enumerate(known))
        return [mailbox for one in alone for mailbox in self.client.submit_choices(one, self.request.restore)]

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
        n, n_best = self.request.n, self.request.n_best
        if n_best in (None, n):
            return self.choices
        prompts = [self.choices[first : first + n] for first in range(0, len(self.choices), n)]
        ranked = (sorted(prompt, key=lambda choice: -choice.mean_logprob) for prompt in prompts)
        return [choice for prompt in ranked for choice in prompt[:n_best]]

    def note_sent(self) -> None:
        """Take note that the client has a part of the answer."""
        for choice in self.choices:
            choice.mailbox.sent = True

    def events(self) -> AsyncIterator[Event]:
        """Yield the deltas of all choices as they arrive, in order for each choice. Raises what the engine raises."""
        choice, *others = self.choices
        return self._merged() if others else choice.deltas()

    async def whole(self) -> list[Event]:
        """Return one whole delta for each choice of the answer, in their order, once all choices have ended."""
        parts: dict[Choice, list[Delta]] = {choice: [] for choice in self.choices}
        async for choice, delta in self.events():
            parts[choice].append(delta)
        answer = self.best()
        return [(choice, joined(parts[choice])) for choice in answer]

    async def _merged(self) -> AsyncIterator[Event]:
        queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue(maxsize=1)  # a slow reader slows the pumps
        self._pumps = [asyncio.create_task(_pump(choice, queue)) for choice in self.choices]
        unfinished = len(self._pumps)
        while unfinished:
            item = await queue.get()
            if item is None:
                unfinished -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item

    def close(self) -> None:
        """Abort unfinished choices, and complete the counts."""
        if self._deadline is not None:
            self._deadline.cancel()
        for pump in self._pumps:
            pump.cancel()
        for choice in self.choices:
            choice.mailbox.close()
        self.meter.close([choice.finish for choice in self.choices if choice.finish is not None])


async def _pump(choice: Choice, queue: "asyncio.Queue[Event | Exception | None]") -> None:
    try:
        async for event in choice.deltas():
            await queue.put(event)
        await queue.put(None)
    except Exception as error:
        await queue.put(error)
