"""Whole answers that are large: they count as large bodies do."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.state import State

LARGE_ANSWER = 2**20
"""Bytes from which on an answer counts as a large body."""


class LargeAnswer(Response):
    """A whole answer in JSON. Beyond `LARGE_ANSWER` it counts as a large body does, until its client has it.

    Raises Overloaded where the budget is full. A `computed` answer is sent all the same: a refusal would lose it.
    """

    def __init__(self, content: bytes, *, computed: bool = False) -> None:
        super().__init__(content, media_type="application/json")
        self._computed = computed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state: State = scope["app"].state.noria
        n_bytes = len(self.body)
        with state.bodies.holding(scope["noria.record"].sender) as take:
            if n_bytes > LARGE_ANSWER:
                take(n_bytes, refuses=not self._computed)
            await super().__call__(scope, receive, send)
