"""One request: its facts, its model, what it holds, and where its answer goes."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from model.errors import quoted
from service.access.objective import Objective
from service.access.record import RequestRecord
from service.api.places import Places
from service.api.run import Failed, Run
from service.api.state import State
from service.engine.messages import FINISHES
from service.errors.errors import ApiError, Cancelled, InvalidRequest
from service.generation.served import ServedModel
from service.hosting.hosted import HostedModel, ModelChanged
from service.http.sse import ClientGone, EventWriter, Framing, Watch
from service.observe.view.live import LiveRequest, WaitReason
from service.receipts.maker import ReceiptField
from service.schema.fields import ModelBody
from service.schema.generation import GenerationBody, ResumeBody, StreamBody

T = TypeVar("T")
Late = tuple[float | None, int, int]
LARGE_ANSWER = 2**20
"""Bytes from which on an answer counts as a large body."""


class Begun(Framing, Protocol):
    """The format of an answer, which learns of the model once it is loaded. Requests call the model by `name`."""

    def identify(self, unique: str, created: int) -> None:
        """Take the name and the time of an answer that may have begun elsewhere: all ids follow from the name."""
        ...

    def begin(self, served: ServedModel, name: str) -> None: ...


Answer = Response | Callable[[], Coroutine[Any, Any, None]] | None
"""A handler returns a whole answer, or a function that writes a stream: the body of the request is gone when it runs.

None: the handler has written a stream itself."""


class Call(LiveRequest):
    """One request, from its body to the last byte of its answer. It is a context, whose end closes all that it holds.

    `name` is that of its model; None: the first one that its key may use. `served` is how that serves the request, once
    it is admitted.
    `sink` takes the frames of a stream: a writer to the client, or the run that computes the answer. `places` gives ids
    to the events of a stream that resumes. `receipt` and `resume` are the body's fields. `late` is for an answer whose
    time ends before it is submitted: its time limit, its number of prompts and that of choices for each.
    """

    served: ServedModel
    sink: EventWriter | Run

    def __init__(self, scope: Scope, receive: Receive, send: Send, run: Run | None = None) -> None:
        super().__init__(scope["noria.record"])
        self.request = Request(scope, receive)
        self.name: str | None = None
        self.state: State = scope["app"].state.noria
        self.writer: EventWriter | None = None
        self.watch = Watch()
        self.late: Late = (None, 1, 1)
        self.receipt: ReceiptField = False
        self.resume: ResumeBody | None = None
        self.places: Places | None = None
        self._model: HostedModel | None = None
        self._receive = receive
        self._send = send
        self._concluded = False
        self._run = run
        self._guards = ExitStack()
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.writer is not None:
            self.writer.close()
        self._conclude(failure)
        self.release()
        self._guards.__exit__(kind, failure, traceback)

    def _conclude(self, failure: BaseException | None) -> None:
        """Abort what is unfinished, and record the outcome."""
        if self._concluded or self.generation is None:
            return
        self._concluded = True
        self.generation.close()
        if self.record.submitted is not None:
            _note_outcome(self.record, failure)

    async def watched(self, answer: Coroutine[Any, Any, None], *, expires: bool = True) -> None:
        """Work on the answer. Raises ClientGone when the client leaves, Unavailable at the end of a drain."""
        expired = self.state.drain.expired if expires else asyncio.get_running_loop().create_future()
        await self.watch.while_connected(self._receive, expired, answer)

    async def sent(self, handling: Awaitable[Answer]) -> None:
        """Send the answer of a handler. Nothing follows its last byte here: the client may be gone then.

        A whole answer leaves the model before it is sent: its client may read slowly.
        """
        answer = await handling
        if isinstance(answer, Response):
            self._conclude(None)
            self._guards.close()
            await answer(self.request.scope, self.request.receive, self._send)
        elif answer is not None:  # in a task of its own: in that of the request each update would wake all middlewares
            await asyncio.create_task(answer())
        if self.writer is not None:
            await self.writer.end()

    def open(self, framing: Framing, silence: float | None = None) -> None:
        """Let the answer be a stream: from now on the client gets signs of life, after `silence` seconds of it."""
        self.watch.allow()
        self.record.streams = True
        if self._run is not None:
            self._run.open(framing)
            self.sink = self._run
        else:
            directly, media_type = self.request.scope["noria.send"], self.record.policy.dialect.stream
            self.sink = self.writer = EventWriter(self._send, directly, framing, media_type, silence)

    async def fail(self, failure: ApiError) -> None:
        """End a stream that has begun with an error."""
        assert self.writer is not None, "it has begun"
        self.record.note_error(failure)
        await self.writer.fail(failure)

    def detached(self, run: Run) -> "Call":
        """Return the call of work for this request that `run` is to do."""
        scope = {**self.request.scope, "noria.record": replace(self.record)}
        work = Call(scope, never, self._send, run)
        work.name = self.name
        return work

    def hand_over(self, work: "Call", answer: Coroutine[Any, Any, None], failed: Failed) -> None:
        """Let a run compute the answer. From its first event on it is in flight in place of this request."""
        assert work._run is not None, "only a detached call has a run"

        def begun() -> None:
            self.generates_nothing()
            self.record.ignored = work.record.ignored
            if work.record.key is not None:
                work._guards.enter_context(work.record.key.running())
            self.record.place.close()

        work._run.start(work, work.request.scope, work._served(answer), failed, begun)

    def generates_nothing(self) -> None:
        """Count the request among those that need no model."""
        self.record.policy = replace(self.record.policy, operation=None)

    async def _served(self, answer: Coroutine[Any, Any, None]) -> None:
        with self:
            await self.watched(answer)

    def hold(self, n_bytes: int, *, refuses: bool = True) -> None:
        """Count bytes of a large body or answer until `release`, or the end. Raises Overloaded, unless told not to."""
        self.state.bodies.add(self.record.sender, n_bytes, refuses=refuses)
        self._held += n_bytes

    def release(self) -> None:
        self.state.bodies.add(self.record.sender, -self._held)
        self._held = 0

    def respond(self, content: bytes, *, computed: bool = False) -> Response:
        """Return the response with a whole answer in JSON. A large one counts as a large body until the client has it.

        Raises Overloaded. A `computed` answer is sent all the same: a refusal would lose it.
        """
        if len(content) > LARGE_ANSWER:
            self.hold(len(content), refuses=not computed)
        return Response(content, media_type="application/json")

    async def on_lane(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which a thread for long work does."""
        return await self.state.work.run(work, self.record.body_bytes)

    @property
    def model(self) -> HostedModel:
        """Return the model that it names. Raises ModelNotFound."""
        if self._model is None:
            self._model = self.state.models.find(self.name, self.record.key)
        return self._model

    async def loaded(self) -> ServedModel:
        """Return the model that it names, or the one that has the name by then, once that is loaded and takes it.

        Raises ModelNotFound, what `Admission.admitted` raises, Unavailable if the model cannot be loaded, and Cancelled
        if a client cancels the request meanwhile.
        """
        model = self.model
        self.watch.allow()
        self.record.served = model.name
        try:
            model.check_present()
            with model.counted_waiting(self.record.tenant):
                while model.entry.on_demand and model.waits_for is not None:  # somebody may have unloaded it again
                    with self.record.waiting_for_model(lambda: model.wait):
                        await self.wait(self.state.models.until_loaded(model))
                self.served = self._guards.enter_context(model.admission.admitted(self.record, self.name))
                return self.served
        except ModelChanged:
            self._model = None
            return await self.loaded()

    async def admitted(self, body: ModelBody, shape: Begun | None = None) -> ServedModel:
        """Return the model as `loaded` does, for a request with this body, which generates.

        If the body says so, the answer is a stream in this shape. Raises InvalidRequest for what the key may not send.
        """
        assert self.record.policy.generates, f"the route of {self.record.path} must declare an operation"
        model = self.model
        self.record.name_user(body.end_user)
        self.record.shares_cache = self.state.settings.cache_isolation == "none"
        self.has_reason = isinstance(body, GenerationBody)
        if isinstance(body, GenerationBody):
            _check_priority(body.priority or 0, self.record)
            self.late = (body.timeout, body.n_prompts, body.n_choices)
        if isinstance(body, StreamBody):
            self.receipt, self.resume = body.receipt, body.resume
            model.receipts.check(body.receipt)
            if body.resume is not None:
                self.receipt = _no_receipt(body.receipt)
            if body.stream and shape is not None:
                self.open(shape)
        self._guards.enter_context(self.state.requests.serving(self))
        served = await self.loaded()
        targets = served.info.target_first_token, served.info.target_inter_token
        known = self.state.settings.objective_priorities
        self.record.objective = Objective.of(self.request.headers, known, self.record.least_priority, targets)
        if shape is not None:
            if self.places is not None:
                shape.identify(self.places.origin.unique, self.places.origin.created)
            shape.begin(served, self.name or served.names[0])
        return served

    @property
    def waits_for(self) -> WaitReason | None:
        return self.model.waits_for

    def seconds_to_start(self, place: int) -> float:
        return self.model.admission.seconds_to_start(place)


async def never() -> Any:
    """Wait for a message of a client that sends none and does not leave."""
    await asyncio.get_running_loop().create_future()


def _check_priority(priority: int, record: RequestRecord) -> None:
    """Raise InvalidRequest for a priority that the request's key, or a request without one, may not send."""
    if priority < (least := record.least_priority):
        whose = "without a key" if record.key is None else f"for the key {record.tenant}"
        how = "the server's --api-key-file can allow lower values to a key"
        raise InvalidRequest(f"priority must be at least {least} {whose}, got {priority}: {how}", param="priority")


def _no_receipt(receipt: ReceiptField) -> ReceiptField:
    """Return that an answer which goes on after a client's tokens gets no receipt. Raises InvalidRequest if it must."""
    if receipt:
        message = f"receipt must be false with resume, got {quoted(receipt)}: the server did not compute those tokens"
        raise InvalidRequest(message, param="receipt")
    return False


def _note_outcome(record: RequestRecord, failure: BaseException | None) -> None:
    if failure is None:
        record.outcome = next((name for name in FINISHES if name in record.generation.finishes), "stop")
    elif isinstance(failure, ClientGone | asyncio.CancelledError | Cancelled):
        record.outcome = "abort"
    else:
        record.outcome, record.failure = "error", type(failure).__name__
        if isinstance(failure, ApiError):
            record.note_error(failure)
