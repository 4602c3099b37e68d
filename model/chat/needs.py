"""The needs of a chat template, found by trial renderings of small conversations."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from model.chat.conversation import Message
from model.chat.media import IMAGE
from model.chat.order import Order, order_of, texts_beside_calls
from model.chat.reasoning import EFFORT, EFFORTS, PARTS, check_thought
from model.tokenizers.template import FAULTS

Render = Callable[..., str]
USER = {"role": "user", "content": "Hello"}


class ImageForm(NamedTuple):
    """How a template takes a content with images: the part of an image, and the key of the text in a part of text."""

    image: Mapping[str, Any]
    key: str

    def part(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a part as the template takes it."""
        if part["type"] == "image":
            return self.image
        return {"type": "text", self.key: part["text"]} if part["type"] == "text" else part


IMAGE_FORMS = (
    ImageForm({"type": "image"}, "text"),
    ImageForm({"type": "image_url", "image_url": {"url": ""}}, "text"),
    ImageForm({"type": "image"}, "content"),  # the first template of Pixtral 12B for transformers
)
"""The forms of published templates; the first that a template writes is used."""


class Needs(NamedTuple):
    """How a template differs from those that take every message as OpenAI's clients write it.

    `order`: the roles that it takes one after another.
    `text_arguments`: it takes the arguments of calls as JSON text, not as objects.
    `undefined_tools`: it fails on `tools=None`; the variable is left undefined instead.
    `single_call`: it takes one call in a message, not two.
    `calls_or_text`: it leaves out the text of a message with calls.
    `parts`: it loses contents that are strings; each becomes a list with one part, as for models with images.
    `efforts`: the values of `reasoning_effort` that it takes, empty if it takes any.
    `system_thoughts`: it writes the thinking parts of a system message.
    `images`: the role of each message in which it writes images as `[IMG]` -> the form in which it takes them.
    """

    order: Order = Order()
    text_arguments: bool = False
    undefined_tools: bool = False
    single_call: bool = False
    calls_or_text: bool = False
    parts: bool = False
    efforts: tuple[str, ...] = ()
    system_thoughts: bool = False
    images: Mapping[str, ImageForm] = MappingProxyType({})

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """Fit the messages to the template. Raises ParameterError("messages") for parts that it cannot write."""
        for index, message in enumerate(messages):
            allowed = self.system_thoughts and message["role"] == "system"
            check_thought(message, index, "this model's chat template", allowed=allowed)
        fitted = [self._with_images(message) for message in self.order.fitted(messages)]
        return [*map(_with_text_arguments, fitted)] if self.text_arguments else fitted

    def left_out(self, messages: Sequence[Message]) -> list[int]:
        """Return the indices of messages whose text the template leaves out."""
        return texts_beside_calls(messages, merges="assistant" in self.order.merged) if self.calls_or_text else []

    def _with_images(self, message: Message) -> Message:
        """Return the message with its images, and the text beside them, as the template takes them."""
        form = self.images.get(message["role"])
        if form is None or PARTS not in message:
            return message
        return {**message, PARTS: [*map(form.part, message[PARTS])]}


def needs_of(render: Render, tools: Any = None) -> Needs:
    """Find the needs of a template. `render` takes its variables; `tools` are those of the trials.

    A template that cannot render a single user message has no needs that are known: requests get its error.
    """
    parts = not _writes(render, tools) and _writes(in_parts(render), tools)
    if parts:
        render = in_parts(render)
    undefined = tools is None and _rendered(render, [USER], tools=None) is None
    values = {} if undefined else {"tools": tools}
    if _rendered(render, [USER], **values) is None:
        return Needs()
    text = _takes_text(render, values)
    arguments = json.dumps({}) if text else {}
    single = _takes_one_call(render, values, arguments)
    order = order_of(lambda messages: _rendered(render, messages, **values), _called(arguments))
    efforts, thinks = _efforts(render, values), _takes_system_thoughts(render, values)
    leaves, forms = _leaves_out_text(render, values, arguments), _image_forms(render, values, arguments)
    return Needs(order, text, undefined, single, leaves, parts, efforts, thinks, forms)


def in_parts(render: Render) -> Render:
    """Return a `render` that takes each string of a content as a list with one part."""

    def rendered(*, messages: Sequence[Message], **values: Any) -> str:
        return render(messages=[_in_parts(message) for message in messages], **values)

    return rendered


def _in_parts(message: Message) -> Message:
    content = message["content"]
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _writes(render: Render, tools: Any) -> bool:
    """Return whether the content of a user's message is in the rendering."""
    secret = secrets.token_hex(8)
    text = _rendered(render, [{"role": "user", "content": secret}], tools=tools)
    return text is not None and secret in text


def _efforts(render: Render, values: Mapping[str, Any]) -> tuple[str, ...]:
    def takes(effort: str) -> bool:
        return _rendered(render, [USER], **values, **{EFFORT: effort}) is not None

    return () if takes(secrets.token_hex(8)) else tuple(filter(takes, EFFORTS))


def _takes_system_thoughts(render: Render, values: Mapping[str, Any]) -> bool:
    """Return whether a system message may be text, thought, text; some templates write such parts as JSON."""
    before, thought, after = (secrets.token_hex(8) for _ in range(3))
    content = [
        {"type": "text", "text": before},
        {"type": "thinking", "thinking": thought, "closed": True},
        {"type": "text", "text": after},
    ]
    text = _rendered(render, [{"role": "system", "content": content}, USER], **values) or ""
    places = [text.find(secret) for secret in (before, thought, after)]
    return -1 < places[0] < places[1] < places[2] and "closed" not in text


def _image_forms(render: Render, values: Mapping[str, Any], arguments: Any) -> Mapping[str, ImageForm]:
    """Return the roles in which the template writes images -> the form in which it takes them."""
    trials: Mapping[str, Sequence[Message]] = {"user": [USER], "tool": _called(arguments)}
    return {
        role: form
        for role, messages in trials.items()
        for form in reversed(IMAGE_FORMS)
        if _writes_image(render, messages, form, values)
    }


def _writes_image(render: Render, messages: Sequence[Message], form: ImageForm, values: Mapping[str, Any]) -> bool:
    """Return whether an image in the last of the messages is one `[IMG]` between the texts beside it."""
    before, after = (secrets.token_hex(8) for _ in range(2))
    parts = ({"type": "text", "text": before}, {"type": "image"}, {"type": "text", "text": after})
    content = [*map(form.part, parts)]
    text = _rendered(render, [*messages[:-1], {**messages[-1], "content": content}], **values)
    return text is not None and f"{before}{IMAGE}{after}" in text


def _takes_text(render: Render, values: Mapping[str, Any]) -> bool:
    """Return whether arguments must be text: the template fails on objects, or writes them as Python would."""
    key = secrets.token_hex(8)
    as_text = _rendered(render, _called(json.dumps({key: 1})), **values)
    as_object = _rendered(render, _called({key: 1}), **values)
    written = as_text is not None and f'"{key}"' in as_text
    return written and (as_object is None or f"'{key}'" in as_object)


def _takes_one_call(render: Render, values: Mapping[str, Any], arguments: Any) -> bool:
    one, two = (_rendered(render, _called(arguments, n_calls), **values) for n_calls in (1, 2))
    return one is not None and two is None


def _leaves_out_text(render: Render, values: Mapping[str, Any], arguments: Any) -> bool:
    secret = secrets.token_hex(8)
    user, call, result = _called(arguments)
    text = _rendered(render, [user, {**call, "content": secret}, result], **values)
    return text is not None and secret not in text


def _called(arguments: Any, n_calls: int = 1) -> list[Message]:
    ids = [f"abcdefgh{number}" for number in range(n_calls)]
    function = {"name": "f", "arguments": arguments}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    results = [{"role": "tool", "content": "1", "name": "f", "tool_call_id": call_id} for call_id in ids]
    return [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]


def _rendered(render: Render, messages: Sequence[Message], **values: Any) -> str | None:
    """Render; None if the template raises an error."""
    from jinja2 import TemplateError

    try:
        return render(messages=messages, documents=None, add_generation_prompt=True, **values)
    except (TemplateError, *FAULTS):
        return None


def _with_text_arguments(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
