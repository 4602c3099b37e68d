"""Chat formats, which encode a conversation as a model's token ids, by its Jinja template or by mistral-common.

The content of a message is always plain text: the name of a control token in it never becomes that token.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Protocol

from model.chat.conversation import NOTHING, Message
from model.chat.jinja import JinjaChat
from model.chat.mistral import MistralChat
from model.chat.variables import SPECIAL_TOKENS
from model.checkpoint.files import layout
from model.checkpoint.model_files import model_files
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import mistral_tokenizer_file
from model.tokenizers.roles import Roles, read_roles

log = logging.getLogger(__name__)
_DATED = re.compile(r"replace\(\s*['\"]\{today\}")
"""How a template fills in the date."""


class ChatFormat(Protocol):
    """The chat format of a model.

    `call_style` names how the model writes tool calls, a key of `STYLES` in `service/structured/call_style.py`. It is
    None for a model without tool calls, or in a style that is not known. With `may_strip` the format may leave out
    white space around contents, and `render` needs no tokenizing.

    `reasoning_style` names how the model writes a thought before its answer: "tokens" or "tags" (`reasoning.py`), None
    for a model without reasoning. `switches` are those variables that turn reasoning on or off, or say how much;
    `efforts` are the values of the variable `reasoning_effort`, empty where any value passes.
    `media_roles` has for "image" and "audio" the roles whose messages may have them, for a format that writes them.
    With `tells_schema` the prompt tells the model the JSON schema of its answer.
    `source` is the Jinja template, None for a format without one.
    """

    source: str | None

    call_style: str | None
    may_strip: bool
    reasoning_style: str | None
    switches: frozenset[str]
    efforts: tuple[str, ...]
    media_roles: Mapping[str, frozenset[str]]
    tells_schema: bool

    def encode(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = NOTHING,
        tools: Sequence[Any] | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids of the conversation, up to the beginning of the model's answer.

        `messages` have `role` (system, developer, user, assistant, tool), `content` (a string) and perhaps `name`,
        `tool_calls` (OpenAI's, with `arguments` as an object), `tool_call_id`, and `reasoning_content`, the thought
        before an assistant's content. `parts` of type text, thinking, image and audio (`PARTS`) take the place of the
        content; the ids have one control token `[IMG]` or `[AUDIO]` for each image or recording, in their order.
        `tools` are OpenAI's. `variables` are for the template, or settings of a Mistral tokenizer (`reasoning_effort`).
        With `continue_final_message` the ids end with the content of the last message. `schema` is the JSON schema of
        the answer, for formats that tell it.
        Raises ParameterError("messages") or ParameterError("tools") for what the format cannot express,
        ParameterError("schema") for a schema that it does not take, and ParameterError("chat_template_kwargs") or
        ParameterError("reasoning_effort") for unknown variables.
        """
        ...

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        """Render the conversation as text, with the names of control tokens. The options are those of `encode`."""
        ...

    def left_out(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> list[int]:
        """Return the indices of assistant messages whose text is not in the prompt, because they have calls, too."""
        ...


def load_chat(
    model: Traversable, tokenizer: Tokenizer, template: str | None = None, roles: Roles | None = None
) -> ChatFormat | None:
    """Load the chat format of a model directory, None if the model has none.

    The directory's template comes first, then a tokenizer file of Mistral's. In Hugging Face's layout the name
    `tokenizer.model` alone says nothing: models of other makers have such a file too.
    A template that would tell the model `{today}` in place of a date, as that of Mistral Small 4, comes last. The log
    names it.
    `template` is Jinja source that replaces the directory's; `roles` are those of its tokens, if they were read.
    Raises ModelError for a template that is not valid Jinja.
    """
    directory = model_files(model)
    roles = roles or read_roles(directory, template)
    sources = roles.templates
    file = _mistral_file(directory)
    if _is_undated(sources.get("default", "")):
        better = None if template else file
        what = f"{better.name} gives the format" if better else "the model reads that; --chat-template names another"
        log.warning("the chat template has {today} where a date belongs: %s", what)
        if better is not None:
            return MistralChat(better, tokenizer)
    if "default" in sources:
        ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        named = {role: tokenizer.name(token) for role, token in ids.items() if token is not None}
        named |= {role: name for role, name in roles.named.items() if role in SPECIAL_TOKENS}
        return JinjaChat(sources["default"], tokenizer, named, sources.get("tool_use"))
    return None if file is None else MistralChat(file, tokenizer)


def _is_undated(source: str) -> bool:
    return "{today}" in source and _DATED.search(source) is None


def _mistral_file(directory: Traversable) -> Path | None:
    """Return the tokenizer file from which mistral-common knows the format."""
    file = mistral_tokenizer_file(directory) if isinstance(directory, Path) else None
    if file is None or (file.name == "tokenizer.model" and layout(Path(str(directory))) != "native"):
        return None
    return Path(str(file))
