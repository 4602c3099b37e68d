"""`POST /v1/responses/compact`: the model summarizes a conversation."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from fastapi import Request
from starlette.responses import Response

from service.access.record import Policy, RequestRecord
from service.api.answering import submit, whole_response
from service.api.prompt import Chat, of_chat
from service.api.responses.answers import CompactedResponse
from service.api.responses.body import CompactBody, InputBody
from service.api.responses.history import history_of, item_json
from service.api.responses.items import SUMMARY, AnyItem, CompactionItem, InputMessage
from service.api.responses.shape import usage_json
from service.api.responses.truncation import fitted
from service.api.routes import post
from service.api.state import State
from service.generation.choice import Delta
from service.generation.request import ModelRequest, ServedModel, Timings, Usage
from service.state.stored import new_id

SUMMARIZE = (
    "Summarize our conversation so far, so that it can go on from your summary alone: goals, facts, decisions, results "
    "of tools, and what is still to be done. Answer with the summary only."
)
SUMMARY_SHARE = 4
"""A summary has at most this part of the context."""


@post(
    "/v1/responses/compact",
    body=CompactBody,
    request={"model": "smollm2-135m-instruct", "input": "My name is Ada."},
    answer=CompactedResponse,
    policy=Policy(operation="chat"),
)
async def compact(request: Request, body: CompactBody) -> Response:
    """Let the model summarize a conversation

    The output is the input of the next request: the messages of the user, and an item with the summary. The first
    messages are not summarized if the conversation is longer than the context.
    """
    conversation: list[AnyItem] = []

    async def make(state: State, record: RequestRecord, served: ServedModel) -> ModelRequest:
        async with history_of(state, record, body) as history:

            def chat() -> Chat:
                conversation[:] = [*history.items(), *history.resolved(body.input)]
                asked = InputBody.model_construct(instructions=body.instructions)
                whole = asked.chat(own=[*conversation, InputMessage(role="user", content=SUMMARIZE)])
                space = max(1, served.info.max_model_len // SUMMARY_SHARE)
                return replace(whole, max_tokens=space, max_tokens_field="input")

            return await of_chat(chat, partial(fitted, least=2))(state, record, served)

    def write(parts: Sequence[Delta], usage: Usage, timings: Timings) -> CompactedResponse:
        users = [item for item in conversation if isinstance(item, InputMessage) and item.role == "user"]
        summary = CompactionItem(type="compaction", encrypted_content=SUMMARY + parts[0].text.strip())
        return {
            "id": new_id("resp"),
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": [*map(item_json, users), item_json(summary)],
            "usage": usage_json(usage),
        }

    with ExitStack() as stack:
        _, _, generation = await submit(stack, request, body, make)
        return await whole_response(request, generation, write)
