"""One request to `/v1/responses`, from its stored history to what is stored of its answer."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

import orjson
from fastapi import Request

from service.access.record import RequestRecord
from service.api.prompt import Chat, chat_request, of_chat
from service.api.responses.answers import RequestEcho
from service.api.responses.body import ResponsesBody
from service.api.responses.history import History, history_of, stored_input, stored_output
from service.api.responses.shape import ResponseShape
from service.api.responses.tools import functions_of
from service.api.responses.truncation import fitted
from service.api.state import State
from service.errors.errors import InvalidRequest, StoreFull, Unavailable
from service.generation.request import ModelRequest, ServedModel
from service.http.sse import Json
from service.schema.fields import Body
from service.state.stored import Owner, Stored, StoredItem, new_id
from service.state.tables import Tables
from service.structured.call_reader import reader_of

log = logging.getLogger("noria.state")


class Creation:
    """A request for a response. `items` are those of its input as they are stored, once it is read.

    `begun` is the response as it was before a restart of the server: its id and its time stay. Raises InvalidRequest
    for one in the background without a store.
    """

    def __init__(self, request: Request, body: ResponsesBody, begun: Json | None = None) -> None:
        self.state: State = request.app.state.noria
        self.record: RequestRecord = request.scope["noria.record"]
        self.owner = Owner.of(self.record)
        self.body = body
        self.items: tuple[StoredItem, ...] = ()
        self._id = new_id("resp") if begun is None else begun["id"]
        self._created = int(time.time()) if begun is None else begun["created_at"]
        self._stores = self.state.store.enabled and body.store is not False
        if body.background and not self.state.store.enabled:
            message = "background must be false: the server stores nothing (--responses-store off)"
            raise InvalidRequest(message, param="background", code="store_off")
        if body.store and not self.state.store.enabled:
            self.record.ignored += ("store",)

    async def make(self, state: State, record: RequestRecord, served: ServedModel) -> ModelRequest:
        """The engine's request, with all that was before it in the conversation."""
        work = fitted if self.body.truncation == "auto" else chat_request
        async with history_of(state, record, self.body) as history:
            made = await of_chat(partial(self._chat, history), work)(state, record, served)
        return replace(made, by_token=True) if self.body.background else made

    async def read_input(self) -> None:
        """Read the items of the input before there is a model. Raises InvalidRequest as `make`."""
        async with history_of(self.state, self.record, self.body) as history:
            items = self.state.work.run(lambda: stored_input(history.resolved(self.body.input)), self.record.body_bytes)
            self.items = await items

    def _chat(self, history: History) -> Chat:
        own = history.resolved(self.body.input)
        if self.state.store.enabled and not self.items:
            self.items = stored_input(own)
        return self.body.chat(history.items(), own)

    def shape(self, served: ServedModel | None, name: str) -> ResponseShape:
        """What writes the answer of a model; None: until it is loaded, it has the API's defaults."""
        body = self.body
        return ResponseShape(
            name,
            request_echo(body, served, stored=self._stores),
            None if served is None else reader_of(served, body.calls, Random(self._id)),
            body.custom_names,
            body.namespaces,
            None if served is None or body.n_logprobs is None else served.tokenizer,
            self._id,
            self._created,
        )

    async def save(self, events: Sequence[Json]) -> None:
        """Store the answer. One that cannot be stored says so: its `store` becomes false."""
        response = response_in(events[-1])
        if self._stores:
            try:
                await self.state.store.run(lambda tables: tables.put(self.owner, self.stored(events[-1])))
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
            if not await self.state.store.run(append):
                log.warning("a conversation is not continued: it is deleted")
        except (StoreFull, Unavailable) as error:
            log.warning("a conversation is not continued: %s", error)

    def stored(self, answer: Json, *, running: bool = False, events: bytes = b"", request: bytes = b"") -> Stored:
        """What is stored of a response, with its receipts. `answer` is the whole one, or the event that has it."""
        response = response_in(answer)
        facts = {name: part for name, part in response.items() if name != "timings"}
        receipts = {"receipts": answer["receipts"]} if "receipts" in answer else {}
        value = orjson.dumps(facts | receipts | {"output": []})
        items = (*self.items, *stored_output(response["output"]))
        return Stored(response["id"], value, items, self.body.previous_response_id, running, events, request)


def response_in(answer: Json) -> Json:
    """The response of an answer: the whole one itself, or what the last event of a stream has."""
    return answer.get("response", answer)


def request_echo(body: ResponsesBody, served: ServedModel | None, *, stored: bool) -> RequestEcho:
    """The fields of the request that its answer repeats, with defaults in place. Unsupported ones have fixed values."""
    defaults, choice = {} if served is None else served.defaults.sampling, body.tool_choice or "auto"
    return {
        "background": bool(body.background),
        "conversation": None if body.conversation_id is None else {"id": body.conversation_id},
        "error": None,
        "frequency_penalty": defaults.get("frequency_penalty", 0.0),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": defaults.get("presence_penalty", 0.0),
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": body.reasoning.effort if body.reasoning else None,
            "summary": body.reasoning.summary if body.reasoning else None,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": stored,
        "text": {"format": body.format.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": choice.model_dump(by_alias=True, exclude_none=True) if isinstance(choice, Body) else choice,
        "tools": [tool.model_dump() for tool in body.tools or () if functions_of(tool)],
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        "user": body.user,
        "temperature": defaults.get("temperature", 1.0) if body.temperature is None else body.temperature,
        "top_p": defaults.get("top_p", 1.0) if body.top_p is None else body.top_p,
    }
