"""The sequences that were submitted and have not ended. The engine has them, or they wait for the next one.

A sequence outlives its engine. The next one gets the prompt and the output so far, and goes on as after a preemption:
noise, penalties, grammars and ends depend on nothing else. Tokens that an engine could not report are computed again.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import replace

from model.errors import counted
from service.engine.mailbox import EngineDied, Mailbox, Restore
from service.engine.messages import AGAIN, Abort, Submit, ToEngine, Update

log = logging.getLogger("noria.engine")

Send = Callable[[ToEngine], None]

WAIT_SECONDS = 30.0
"""Sequences wait at least so long for the next engine."""
LOADS = 3
"""They wait at least this many times as long as the last load took: the disk may be slower this time."""
MAX_LOST = 3
"""Engines that a sequence may lose: it may be what kills them."""


class Submitted:
    """The mailboxes of all sequences. `send` writes to the engine, `on_continue` counts each one that goes on.

    The log has the model's `name`. Without `continues`, a sequence of which the client has a part ends with its engine.
    """

    def __init__(self, send: Send, on_continue: Callable[[], None], *, continues: bool = True, name: str = "") -> None:
        self._about = {"fields": {"model": name}}
        self._send = send
        self._on_continue = on_continue
        self._continues = continues
        self._running: dict[int, Mailbox] = {}  # the engine has these
        self._waiting: dict[int, Mailbox] = {}  # for the next engine
        self._goes_on = True  # whether the present engine gets what waits
        self._seconds = WAIT_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._restoring: set[asyncio.Task[None]] = set()
        self._decoding: dict[Restore, asyncio.Future[bytes]] = {}

    def submit(self, request: Submit, restore: Restore | None = None) -> list[Mailbox]:
        """Send a request, or let it wait for the next engine. Returns a mailbox for each of its choices.

        `restore` gives its inputs again: nobody holds them here once the engine has them.
        """
        own = (replace(request, id=id_, choice=request.choice + index, n=1) for index, id_ in enumerate(request.ids))
        mailboxes = [Mailbox(item, self._close, restore) for item in own]
        if self._goes_on:
            self._running |= {mailbox.id: mailbox for mailbox in mailboxes}
            self._send(request)
        else:
            self._wait(mailboxes)
        return mailboxes

    def deliver(self, updates: Iterable[Update]) -> None:
        for update in updates:
            mailbox = self._running.get(update.id)
            if mailbox is None:
                continue
            if update.finish == AGAIN:
                self._resubmit(mailbox)
                continue
            if update.finish is not None:
                del self._running[update.id]
            mailbox.put(update)

    def lose_engine(self, load_seconds: float) -> None:
        """Let the sequences of an engine that has ended wait for the next one, or fail with EngineDied.

        The last engine took `load_seconds` until it served.
        """
        lost, self._running, self._goes_on = self._running, {}, False
        for task in self._restoring:
            task.cancel()
        self._seconds = max(WAIT_SECONDS, LOADS * load_seconds)
        for mailbox in lost.values():
            mailbox.n_lost += 1
            if mailbox.n_lost > MAX_LOST or (mailbox.sent and not self._continues):
                mailbox.fail(EngineDied())
            else:
                self._wait([mailbox])

    def _wait(self, mailboxes: Iterable[Mailbox]) -> None:
        for mailbox in mailboxes:
            mailbox.waits = True
            self._waiting[mailbox.id] = mailbox
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.fail)

    def go_on(self, adapters: Container[int]) -> None:
        """Submit what waits to another engine, which has these adapters. Sequences of other adapters fail."""
        self._stop_timer()
        for mailbox in [item for item in self._waiting.values() if item.request.adapter not in adapters]:
            del self._waiting[mailbox.id]
            mailbox.fail(EngineDied())  # a client that tries again learns what is wrong with the adapter
        if self._waiting:
            n_tokens = sum(len(mailbox.output) for mailbox in self._waiting.values())
            what = counted(len(self._waiting), "sequence"), counted(n_tokens, "token")
            log.warning("another engine goes on with %s, after %s", *what, extra=self._about)
        self._goes_on = True
        self._submit_next()

    def fail(self) -> None:
        """Fail every sequence with EngineDied: nothing goes on."""
        self._stop_timer()
        failed, self._running, self._waiting = self._running | self._waiting, {}, {}
        for mailbox in failed.values():
            mailbox.fail(EngineDied())

    def _submit_next(self) -> None:
        """Submit the sequence that has waited longest. The event loop serves others before the next one."""
        if not (self._goes_on and self._waiting):
            return
        mailbox = self._waiting.pop(next(iter(self._waiting)))
        asyncio.get_running_loop().call_soon(self._submit_next)
        self._running[mailbox.id] = mailbox
        mailbox.waits = False
        self._resubmit(mailbox)
        self._on_continue()

    def _resubmit(self, mailbox: Mailbox) -> None:
        if mailbox.restore is None:
            self._send(mailbox.remaining)
        else:
            task = asyncio.create_task(self._restored(mailbox, mailbox.restore))
            self._restoring.add(task)
            task.add_done_callback(self._restoring.discard)

    async def _restored(self, mailbox: Mailbox, restore: Restore) -> None:
        """Submit a sequence again once its images or its audio are decoded again."""
        try:
            inputs = await self._decoded(restore)
        except Exception as error:
            if self._running.pop(mailbox.id, None) is not None:
                mailbox.fail(error)
        else:
            if mailbox.id in self._running:  # nobody has closed it meanwhile
                self._send(replace(mailbox.remaining, inputs=inputs))

    async def _decoded(self, restore: Restore) -> bytes:
        """Return the result of `restore`, once for all choices that need it at the same time."""
        if (task := self._decoding.get(restore)) is None:
            task = self._decoding[restore] = asyncio.ensure_future(restore())
            task.add_done_callback(lambda _: self._decoding.pop(restore, None))
        return await asyncio.shield(task)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _close(self, sequence_id: int) -> None:
        self._waiting.pop(sequence_id, None)
        if self._running.pop(sequence_id, None) is not None:
            self._send(Abort(sequence_id))
