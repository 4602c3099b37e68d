"""`POST /v1/responses/compact`: the model summarizes a conversation."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from starlette.responses import Response

from service.access.record import Policy
from service.api.answering import generated, whole_response
from service.api.call import Call
from service.api.prompt import Chat, of_chat
from service.api.responses.answer_types import CompactedResponse
from service.api.responses.body import CompactBody, chat_of
from service.api.responses.history import history_of, item_json
from service.api.responses.items import SUMMARY, AnyItem, CompactionItem, InputMessage
from service.api.responses.shape import usage_json
from service.api.responses.truncation import fitted
from service.api.routes import post
from service.generation.choice import Delta
from service.generation.request import ModelRequest
from service.generation.usage import Timings, Usage
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
async def compact(call: Call, body: CompactBody) -> Response:
    """Let the model summarize a conversation

    The output is the input of the next request: the messages of the user, and an item with the summary. The first
    messages are not summarized if the conversation is longer than the context.
    """
    conversation: list[AnyItem] = []

    served = await call.admitted(body)

    async def make() -> ModelRequest:
        history = await history_of(call, body)

        def chat() -> Chat:
            conversation[:] = [*history.items(), *history.resolved(body.input)]
            whole = chat_of([*conversation, InputMessage(role="user", content=SUMMARIZE)], body.instructions)
            space = max(1, served.info.max_model_len // SUMMARY_SHARE)
            return replace(whole, max_tokens=space, names=replace(whole.names, max_tokens="input"))

        return await of_chat(call, chat, partial(fitted, least=2))

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

    return await whole_response(call, await generated(call, make()), write)
