"""What a chat template needs from its caller, found by trial renderings of small conversations."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from model.chat.conversation import Message
from model.chat.template import FAULTS

Render = Callable[..., str]
USER = {"role": "user", "content": "Hello"}


class Needs(NamedTuple):
    """How a template differs from those that take every message as OpenAI's clients write it.

    `merged_system`: it refuses or leaves out system messages; their text goes into the first user message.
    `text_arguments`: it takes the arguments of calls as JSON text, not as objects.
    `undefined_tools`: it fails on `tools=None`; the variable is left undefined instead.
    `single_call`: it takes one call in a message, not two.
    """

    merged_system: bool = False
    text_arguments: bool = False
    undefined_tools: bool = False
    single_call: bool = False

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as the template takes them."""
        fitted = _merged(messages) if self.merged_system else [*messages]
        return [*map(_with_text_arguments, fitted)] if self.text_arguments else fitted


def needs_of(render: Render, tools: Any = None) -> Needs:
    """The needs of a template. `render` takes its variables; `tools` are those of the trials.

    A template that cannot render a single user message has no needs that are known: requests get its error.
    """
    undefined = tools is None and _rendered(render, [USER], tools=None) is None
    values = {} if undefined else {"tools": tools}
    if _rendered(render, [USER], **values) is None:
        return Needs()
    secret = secrets.token_hex(8)
    system = _rendered(render, [{"role": "system", "content": secret}, USER], **values)
    text = _takes_text(render, values)
    single = _takes_one_call(render, values, json.dumps({}) if text else {})
    return Needs(system is None or secret not in system, text, undefined, single)


def _takes_text(render: Render, values: Mapping[str, Any]) -> bool:
    """Whether arguments have to be text: the template fails on objects, or writes them as Python does, in quotes."""
    key = secrets.token_hex(8)
    as_text = _rendered(render, _called(json.dumps({key: 1})), **values)
    as_object = _rendered(render, _called({key: 1}), **values)
    written = as_text is not None and f'"{key}"' in as_text
    return written and (as_object is None or f"'{key}'" in as_object)


def _takes_one_call(render: Render, values: Mapping[str, Any], arguments: Any) -> bool:
    one, two = (_rendered(render, _called(arguments, n_calls), **values) for n_calls in (1, 2))
    return one is not None and two is None


def _called(arguments: Any, n_calls: int = 1) -> list[Message]:
    ids = [f"abcdefgh{number}" for number in range(n_calls)]
    function = {"name": "f", "arguments": arguments}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    results = [{"role": "tool", "content": "1", "name": "f", "tool_call_id": call_id} for call_id in ids]
    return [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]


def _rendered(render: Render, messages: Sequence[Message], **values: Any) -> str | None:
    """The rendering; None if the template raises an error."""
    from jinja2 import TemplateError

    try:
        return render(messages=messages, documents=None, add_generation_prompt=True, **values)
    except (TemplateError, *FAULTS):
        return None


def _merged(messages: Sequence[Message]) -> list[Message]:
    """The messages with the system messages at the beginning merged into the user message that follows them."""
    n_system = next((n for n, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if n_system == len(messages) or messages[n_system]["role"] != "user":
        return [*messages]
    first = messages[n_system]
    contents = [message["content"] for message in messages[: n_system + 1]]
    return [{**first, "content": "\n\n".join(filter(None, contents))}, *messages[n_system + 1 :]]


def _with_text_arguments(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
