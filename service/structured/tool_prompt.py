"""Tools, calls and results as plain messages, for models whose chat format has no tools."""

import json
from collections.abc import Sequence

from model.chat.reasoning import PARTS, THOUGHT
from service.schema.fields import Json
from service.schema.tools import Function

KEPT = ("role", "name", THOUGHT, PARTS)

EXPLANATION = """You may call functions to help with the request. These are their signatures:
<tools>
{tools}
</tools>
For each call answer with its name and arguments as a JSON object in these tags:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>"""


def explained(messages: Sequence[Json], functions: Sequence[Function]) -> list[Json]:
    """The messages as text alone: a system message describes the functions; calls and results are texts."""
    plain: list[Json] = []
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if plain and plain[-1].get("answers"):  # in one message: templates require alternating roles
                plain[-1]["content"] += f"\n{text}"
            else:
                plain.append({"role": "user", "content": text, "answers": True})
        else:
            calls = [_call_text(call["function"]) for call in message.get("tool_calls", ())]
            content = "\n".join(filter(None, [message["content"], *calls]))
            plain.append({key: message[key] for key in KEPT if key in message} | {"content": content})
    return _with_signatures(
        [{key: text for key, text in item.items() if key != "answers"} for item in plain], functions
    )


def _call_text(function: Json) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _with_signatures(messages: list[Json], functions: Sequence[Function]) -> list[Json]:
    if not functions:
        return messages
    signatures = [json.dumps(function.described(), ensure_ascii=False) for function in functions]
    words = EXPLANATION.format(tools="\n".join(signatures))
    first, *others = messages
    if first["role"] in ("system", "developer"):
        told = first | {"content": f"{first['content']}\n\n{words}"}
        parts = {PARTS: [*first[PARTS], {"type": "text", "text": f"\n\n{words}"}]} if PARTS in first else {}
        return [told | parts, *others]
    return [{"role": "system", "content": words}, *messages]
