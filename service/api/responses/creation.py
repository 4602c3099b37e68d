"""One request to `/v1/responses`, from its stored history to what is stored of its answer."""

import logging
from collections.abc import Sequence
from functools import partial

import orjson

from service.api.call import Call
from service.api.prompt import Chat, chat_request, of_chat
from service.api.responses.body import ResponsesBody
from service.api.responses.history import History, history_of, stored_input, stored_output
from service.api.responses.shape import ResponseShape
from service.api.responses.truncation import fitted
from service.errors.errors import InvalidRequest, StoreFull, Unavailable
from service.generation.request import ModelRequest
from service.http.sse import Json
from service.state.stored import Owner, Stored, StoredItem, new_id
from service.state.tables import Tables

log = logging.getLogger("noria.state")


class Creation:
    """A request for a response. `items` are those of its input as they are stored, once the input is read.

    Raises InvalidRequest for a response in the background without a store.
    """

    def __init__(self, call: Call, body: ResponsesBody, id: str | None = None) -> None:
        self.call = call
        self.store = call.state.store
        self.owner = Owner.of(call.record)
        self.body = body
        self.items: tuple[StoredItem, ...] = ()
        self._stores = self.store.enabled and body.store is not False
        self.shape = ResponseShape(body, call.name or call.model.name, stored=self._stores, id=id or new_id("resp"))
        if body.background and not self.store.enabled:
            message = "background must be false: the server stores nothing (--responses-store off)"
            raise InvalidRequest(message, param="background", code="store_off")
        if body.store and not self.store.enabled:
            call.record.ignored += ("store",)

    async def made(self) -> ModelRequest:
        """Return the engine's request, with all that was before it in the conversation."""
        work = fitted if self.body.truncation == "auto" else chat_request
        history = await history_of(self.call, self.body)
        return await of_chat(self.call, partial(self._chat, history), work)

    def _chat(self, history: History) -> Chat:
        own = history.resolved(self.body.input)
        if self.store.enabled and not self.items:
            self.items = stored_input(own)
        return self.body.chat(history.items(), own)

    async def save(self, events: Sequence[Json]) -> None:
        """Store the answer. One that cannot be stored says so: its `store` becomes false."""
        response = response_in(events[-1])
        if self._stores:
            try:
                await self.store.run(lambda tables: tables.put(self.owner, self.stored(events[-1])))
            except (StoreFull, Unavailable) as error:
                log.warning("a response is not stored: %s", error)
                response["store"] = False
        await self.extend_conversation(response)

    async def extend_conversation(self, response: Json) -> None:
        """Add the input and the output to the conversation, if there is one."""
        if self.body.conversation_id is None:
            return
        owner, id = self.owner, self.body.conversation_id

        def append(tables: Tables) -> bool:
            return tables.append(owner, id, (*self.items, *stored_output(response["output"])))

        try:
            if not await self.store.run(append):
                log.warning("a conversation is not continued: it is deleted")
        except (StoreFull, Unavailable) as error:
            log.warning("a conversation is not continued: %s", error)

    def stored(self, answer: Json, *, running: bool = False, events: bytes = b"") -> Stored:
        """Return what is stored of a response, with its receipts. `answer` is all of it, or the event that has it."""
        response = response_in(answer)
        facts = {name: part for name, part in response.items() if name != "timings"}
        receipts = {"receipts": answer["receipts"]} if "receipts" in answer else {}
        value = orjson.dumps(facts | receipts | {"output": []})
        items = (*self.items, *stored_output(response["output"]))
        return Stored(response["id"], value, items, self.body.previous_response_id, running, events)


def response_in(answer: Json) -> Json:
    """Return the response in an answer: the whole answer, or a part of the last event of its stream."""
    return answer.get("response", answer)
