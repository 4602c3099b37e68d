"""The order of roles that a chat template takes, and conversations in that order.

Equal neighbours are merged as mistral-common merges them: with a blank line between their texts.
"""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

from model.chat.conversation import Message
from model.chat.reasoning import PARTS, THOUGHT
from model.errors import ParameterError

BLANK_LINE = "\n\n"
SPOKEN = ("assistant", "tool")

START = END = ""
"""In place of the role before the first message, and after the last."""
LATE: Mapping[Sequence[str], Sequence[Sequence[str]]] = MappingProxyType(
    {
        (START,): (("system", "user"),),
        ("user",): (("user", "system", "user"), ("user", "system", "assistant", "user")),
        SPOKEN: (("user", "assistant", "system", "user"),),
    }
)
"""Roles before a system message -> the roles of conversations that have it."""
EARLY: Mapping[str, Sequence[str]] = MappingProxyType({END: (), "assistant": ("assistant", "user")})
"""The first role of a user's message or an answer -> the roles of a conversation after its system message."""
TWICE: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "system": ("system", "system", "user"),
        "user": ("user", "user"),
        "assistant": ("user", "assistant", "assistant", "user"),
    }
)
"""Roles of conversations with two messages of a role in a row."""

Rendered = Callable[[Sequence[Message]], str | None]
"""A function that renders messages, and returns None where the template raises an error."""


class Order(NamedTuple):
    """The messages that a template refuses, or leaves out, of a conversation in which any role follows any other.

    `merged`: the roles of which two messages in a row become one.
    `late_after`: the roles after which a system message becomes a user message.
    `early_before`: the role of the first user message or answer before which a system message becomes a user message.
    `answered`: a user message after a result needs an empty answer between them.
    `unsaid_before`: the roles of a last message with which the system message is left out. Its text then begins the
    last user message.
    """

    merged: Collection[str] = ()
    late_after: Collection[str] = ()
    early_before: Collection[str] = ()
    answered: bool = False
    unsaid_before: Collection[str] = ()

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        told = with_late_systems(messages, self.late_after)
        if told[0]["role"] == "system" and _first_spoken(told) in self.early_before:
            told[0] = _as_user(told[0])
        told = [each for role, same in groupby(told, _role) for each in self._joined(role, [*same])]
        told = _with_answers(told) if self.answered else told
        return _with_system_in_user(told) if told[-1]["role"] in self.unsaid_before else told

    def _joined(self, role: str, messages: list[Message]) -> list[Message]:
        return [merged(messages)] if role in self.merged and len(messages) > 1 else messages


def order_of(rendered: Rendered, called: Sequence[Message]) -> Order:
    """Find the order of a template. `called` is a user message, a call and its result, as the template takes them."""

    def takes(*roles: str, before: Sequence[Message] = ()) -> bool:
        """Return whether a text of each role is in the rendering."""
        told = [{"role": role, "content": secrets.token_hex(8)} for role in roles]
        text = rendered([*before, *told])
        return text is not None and all(message["content"] in text for message in told)

    def leaves_out_system(*others: Message) -> bool:
        secret = secrets.token_hex(8)
        text = rendered([{"role": "system", "content": secret}, *others])
        return text is not None and secret not in text

    if not takes("user"):
        return Order()
    once = {role: takes(*(each for each, _ in groupby(roles))) for role, roles in TWICE.items()}
    refused = {role for role, roles in TWICE.items() if once[role] and not takes(*roles)}
    late = {role for before, trials in LATE.items() for role in before if not all(takes(*roles) for roles in trials)}
    early = {role for role, roles in EARLY.items() if takes("user", *roles) and not takes("system", *roles)}
    silent = {"role": "assistant", "content": ""}
    answered = not takes("user", before=called) and takes("user", before=[*called, silent])
    endings = () if START in late else (called, (called[0], {"role": "assistant", "content": "Hello"}))
    unsaid = frozenset(ending[-1]["role"] for ending in endings if leaves_out_system(*ending))
    return Order(frozenset(refused), frozenset(late), frozenset(early), answered, unsaid)


def _role(message: Message) -> str:
    role: str = message["role"]
    return role


def merged(messages: Sequence[Message]) -> dict[str, Any]:
    """Merge messages of a role into one, with the texts of all, and their images and calls in this order."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    texts = {
        key: BLANK_LINE.join(filter(None, (message.get(key) for message in messages)))
        for key in ("content", THOUGHT)
        if any(key in message for message in messages)
    }
    parts = {PARTS: _parts(messages)} if any(PARTS in message for message in messages) else {}
    return {**messages[0], **texts, **parts, **({"tool_calls": calls} if calls else {})}


def _parts(messages: Sequence[Message]) -> list[Mapping[str, Any]]:
    """Join the parts of all messages, with a blank line between messages; texts that meet are one part."""
    parts: list[Mapping[str, Any]] = []
    for message in messages:
        first, *others = message.get(PARTS) or [{"type": "text", "text": message["content"]}]
        text = f"{parts.pop()['text']}{BLANK_LINE}" if parts and parts[-1].get("text") else ""
        if first["type"] == "text":
            parts += [{**first, "text": text + first["text"]}, *others]
        else:
            parts += [*([{"type": "text", "text": text}] if text else ()), first, *others]
    return parts


def texts_beside_calls(messages: Sequence[Message], *, merges: bool) -> list[int]:
    """Return the indices of messages of the assistant with text and calls.

    `merges`: neighbours become one, so that the text of one may be beside the calls of another.
    """
    groups = groupby(enumerate(messages), lambda entry: entry[1]["role"] if merges else entry[0])
    runs = [[*group] for _, group in groups]
    calling = [run for run in runs if any(message.get("tool_calls") for _, message in run)]
    return [index for run in calling for index, message in run if message["content"].strip()]


def with_late_systems(messages: Sequence[Message], after: Collection[str]) -> list[Message]:
    """Turn a system message after one of these roles into a user message.

    If no system message may be the first, its text begins the next user message. Results stay beside their calls.
    """
    told: list[Message] = []
    late: list[Message] = []
    for message in messages:
        before = told[-1]["role"] if told else START
        if message["role"] == "system" and (late or before in after):
            late.append(_as_user(message))
            continue
        if message["role"] == "user" and late and START in after:
            message, late = {**message, **merged([*late, message])}, []
        if message["role"] != "tool":
            told, late = told + late, []
        told.append(message)
    return told + late


def _first_spoken(messages: Sequence[Message]) -> str:
    """Return the role that speaks first: the user, or the assistant in an answer without calls."""
    texts = (message for message in messages if not message.get("tool_calls"))
    return next((role for role in map(_role, texts) if role in ("user", "assistant")), END)


def _as_user(message: Message) -> dict[str, Any]:
    if PARTS in message:
        raise ParameterError(
            "messages",
            "a system message that this model takes as a user message has a thinking part: send it as text, "
            "or leave it out",
        )
    return {"role": "user", "content": message["content"]}


def _with_answers(messages: Sequence[Message]) -> list[Message]:
    """Put an empty answer between a result and a user message, unless that is the user's first."""
    told: list[Message] = []
    for message in messages:
        if message["role"] == "user" and told and told[-1]["role"] == "tool" and "user" in map(_role, told):
            told.append({"role": "assistant", "content": ""})
        told.append(message)
    return told


def _with_system_in_user(messages: Sequence[Message]) -> list[Message]:
    """Move the text of the system message to the last user message, as mistral-common has it before v7."""
    system, *others = messages
    users = [index for index, message in enumerate(others) if message["role"] == "user"]
    if system["role"] != "system" or not users:
        return [*messages]
    others[users[-1]] = {**others[users[-1]], **merged([_as_user(system), others[users[-1]]])}
    return others
