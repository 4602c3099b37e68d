"""The mailbox that a request waits on: updates of one sequence, merged until the reader takes them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from model.sampling_params import SamplingParams
from service.engine.messages import Submit, Update

Restore = Callable[[], Awaitable[bytes]]
"""It decodes the images or the audio of a request again, and gives `Submit.inputs`."""


class EngineUnavailable(Exception):
    """The engine cannot take a request now: it is loading, restarting or stopped."""


class EngineDied(Exception):
    """The engine ended while it served this request."""


def merge(first: Update, second: Update) -> Update:
    """Return both updates as one, in order. The end of the sequence is in the second."""
    return Update(  # `_replace` takes twice as long
        first.id,
        first.tokens + second.tokens,
        first.logprobs + second.logprobs,
        first.prompt_logprobs + second.prompt_logprobs,
        second.finish,
        second.admitted or first.admitted,
        second.failure,
        second.processed or first.processed,
        second.embedding,
        second.fault,
    )


class Mailbox:
    """Async iterator over the updates of the one sequence of a request; it ends after that whose `finish` is set.

    Raises the error of `fail`. `close` tells the engine to forget an unfinished sequence. The sequence may go on with
    another engine, whose updates follow those of the first: the service submits `remaining`. If there is a `restore`,
    `remaining` has no inputs: `restore` decodes them again. Only the engine holds them.
    """

    def __init__(self, request: Submit, on_close: Callable[[int], None], restore: Restore | None = None) -> None:
        self.id = request.id
        self.request = request if restore is None else replace(request, inputs=b"")
        self.restore = restore
        self.output = [*request.output]  # all tokens so far
        self.sent = False  # whether the client has a part of the answer
        self.waits = False  # whether it waits for another engine
        self.n_lost = 0  # engines that ended before the sequence
        self._n_scored = 0  # log probabilities of the prompt
        self._n_processed = 0  # tokens of the prompt, as reported
        self._admitted = False
        self._on_close = on_close
        self._pending: Update | None = None
        self._failure: Exception | None = None
        self._finished = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, update: Update) -> None:
        """Deliver an update, at most one a step."""
        self.output += update.tokens
        if update.admitted is not None or update.processed is not None or update.prompt_logprobs:
            update = self._news(update)
        self._pending = update if self._pending is None else merge(self._pending, update)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Let the reader get the pending update, then this error. No update follows."""
        self._failure = error
        self._wake()

    def expire(self, finish: str = "timeout") -> None:
        """Abort the sequence. Its updates end with this reason unless the last one is here already."""
        self.close()
        if self._pending is None or self._pending.finish is None:
            self.put(Update(self.id, finish=finish))

    @classmethod
    def late(cls, finish: str = "timeout") -> "Mailbox":
        """Return the mailbox of a sequence that had to end before it could be submitted."""
        mailbox = cls(Submit(0, [], SamplingParams()), lambda sequence_id: None)
        mailbox.expire(finish)
        return mailbox

    def close(self) -> None:
        """Abort the sequence unless it has finished. A second call does nothing."""
        self._on_close(self.id)

    def __aiter__(self) -> "Mailbox":
        return self

    async def __anext__(self) -> Update:
        if self._finished:
            raise StopAsyncIteration
        while self._pending is None:
            if self._failure is not None:
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        update, self._pending = self._pending, None
        self._finished = update.finish is not None
        return update

    @property
    def remaining(self) -> Submit:
        """Return the request that goes on after the delivered tokens."""
        return replace(self.request, output=self.output, n_scored=self._n_scored)

    def _news(self, update: Update) -> Update:
        """Return an update without the facts on the prompt that an earlier engine has reported."""
        self._n_scored += len(update.prompt_logprobs)
        if update.processed is not None:
            if update.processed <= self._n_processed:
                update = update._replace(processed=None)
            self._n_processed = update.processed or self._n_processed
        if update.admitted is not None:
            if self._admitted:
                update = update._replace(admitted=None)
            self._admitted = True
        return update

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
