"""Messages -> token ids: a checkpoint's Jinja template in a sandbox, or mistral-common for native checkpoints.

What a person wrote is text, whatever it spells: a control token's name inside a message's content never becomes that
token. Contents are marked with unguessable markers while the template runs, so that the rendering can be told apart
into the template's own words and the messages' (`JinjaChat`); mistral-common encodes contents as text by itself.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from model.chat.conversation import NOTHING, TEXTS, Message, checked
from model.chat.mistral import MistralChat
from model.chat.template import compile_template
from model.checkpoint.files import layout, read_json
from model.errors import ParameterError
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import sentencepiece_file
from model.tokenizers.pieces import control_pattern, encode_inner

MAX_VARIABLE = 2**31
MAX_VARIABLE_CHARS = 1024
_OWN_VARIABLES = ("messages", "add_generation_prompt", "tools", "documents")
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatFormat(Protocol):
    """How a model wants a conversation written.

    `call_style` says how it writes calls of functions: "mistral", "mistral-v3", "mistral-args", "hermes", "llama";
    None: not at all.
    """

    call_style: str | None

    def encode(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = NOTHING,
        tools: Sequence[Any] | None = None,
    ) -> list[int]:
        """Ids of the conversation, and of the words that open the model's answer.

        `messages` have `role` (system, developer, user, assistant, tool), `content` (text) and perhaps `name`,
        `tool_calls` (OpenAI's, with `arguments` as an object) and `tool_call_id`. `tools` are OpenAI's. With
        `continue_final_message` the ids end with the last content. `variables` are for the template.
        Raises ParameterError("messages") for what the format cannot express, ParameterError("chat_template_kwargs").
        """
        ...

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        """The conversation as text, control tokens by name, for people and for raw completions. All as in `encode`."""
        ...


def load_chat(directory: Path, tokenizer: Tokenizer, template: str | None = None) -> ChatFormat | None:
    """The chat format of a model directory; `template` is Jinja source that goes before the directory's own.

    None when the model has no chat format. Raises ModelError for a template that is no Jinja.
    """
    path = directory / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    sources = {"default": template} if template else _templates(directory, config)
    if "default" in sources:
        special = {"bos_token": _name(tokenizer, tokenizer.bos_id), "eos_token": _name(tokenizer, tokenizer.eos_id)}
        for role in _SPECIAL_TOKENS:
            value = config.get(role)
            special[role] = (value.get("content") if isinstance(value, dict) else value) or special.get(role)
        named = {role: name for role, name in special.items() if name is not None}
        return JinjaChat(sources["default"], tokenizer, named, sources.get("tool_use"))
    if layout(directory) == "native" and (file := sentencepiece_file(directory)):
        return MistralChat(file, tokenizer)
    return None


class JinjaChat:
    """A chat template as transformers runs it: same environment, same functions, same ids for harmless contents.

    `tool_source` is the template of conversations with tools, where it is another.
    """

    def __init__(
        self, source: str, tokenizer: Tokenizer, special_tokens: Mapping[str, str], tool_source: str | None = None
    ) -> None:
        self._template, declared = compile_template(source)
        self._tool_template, known = compile_template(tool_source) if tool_source else (self._template, declared)
        self._variables = (declared | known).difference(_OWN_VARIABLES, _SPECIAL_TOKENS)
        self.call_style = _call_style(tool_source or source, tokenizer) if "tools" in known else None
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        self._control = control_pattern(tokenizer.control)

    def encode(self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, **options: Any) -> list[int]:
        turns = checked(messages)
        plain = self._renderer(tools=tools, **options)(turns)
        for mark in (_mark_whole, self._mark_control):
            secret = secrets.token_hex(16)
            opening, closing = f"\ue000{secret}\ue001", f"\ue002{secret}\ue003"
            marked = [
                {
                    key: mark(value, opening, closing) if key in TEXTS else self._marked(value, opening, closing)
                    for key, value in message.items()
                }
                for message in turns
            ]
            render = self._renderer(tools=self._marked(tools, opening, closing), **options)
            texts = _split(render(marked), opening, closing)
            if texts is not None and "".join(texts) == plain:
                return self._encode(plain, texts)
        # The template looks into contents or rewrites them, and one of them spells a control token.
        raise ParameterError(
            "messages", "a message contains the name of a control token, which this chat template mixes up"
        )

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        return self._renderer(**options)(checked(messages))

    def _renderer(
        self,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = NOTHING,
        tools: Sequence[Any] | None = None,
    ) -> Callable[[Sequence[Message]], str]:
        self._check_variables(variables)
        render = self._render_open if continue_final_message else self._render
        return partial(render, values={**variables, "add_generation_prompt": add_generation_prompt, "tools": tools})

    def _encode(self, plain: str, texts: Sequence[str]) -> list[int]:
        """Ids of a rendering whose odd `texts` are contents, the even ones the template's own words.

        Where all control tokens of the whole are the template's, the whole is encoded at once, with the merges across
        the seams that the model was trained with.
        """
        own = [name for text in texts[0::2] for name in self._control.findall(text)]
        if self._control.findall(plain) == own:
            return self._tokenizer.encode(plain, add_bos=False, parse_control=True)
        ids: list[int] = []
        for index, text in enumerate(texts):
            own_words = index % 2 == 0
            if ids:
                ids += encode_inner(self._tokenizer, text, parse_control=own_words)
            else:
                ids += self._tokenizer.encode(text, add_bos=False, parse_control=own_words)
        return ids

    def _mark_control(self, content: str, opening: str, closing: str) -> str:
        return self._control.sub(lambda match: opening + match[0] + closing, content)

    def _marked(self, value: Any, opening: str, closing: str) -> Any:
        """Control tokens' names marked in all the strings of JSON-like data."""
        if isinstance(value, str):
            return self._mark_control(value, opening, closing)
        if isinstance(value, Mapping):
            parts = ((self._marked(key, opening, closing), item) for key, item in value.items())
            return {key: self._marked(item, opening, closing) for key, item in parts}
        return [self._marked(item, opening, closing) for item in value] if isinstance(value, list) else value

    def _check_variables(self, variables: Mapping[str, Any]) -> None:
        """A value is no way to say a control token: the template's own words may."""
        for name, value in variables.items():
            if name not in self._variables:
                known = ", ".join(sorted(self._variables)) or "none"
                message = f"chat_template_kwargs has {name[:80]!r}, this model's chat template declares: {known}"
                raise ParameterError("chat_template_kwargs", message)
            if not _simple(value) or (isinstance(value, str) and self._control.search(value)):
                raise ParameterError(
                    "chat_template_kwargs",
                    f"chat_template_kwargs.{name} must be true, false, null, a number up to {MAX_VARIABLE} or a "
                    f"string of up to {MAX_VARIABLE_CHARS} characters without control tokens",
                )

    def _render_open(self, messages: Sequence[Message], values: Mapping[str, Any]) -> str:
        """Up to the end of the last content, as transformers cuts it: its last space stays if the template keeps it."""
        *others, last = messages
        mark = f"\ue004{secrets.token_hex(16)}\ue005"
        text = self._render([*others, {**last, "content": f"{last['content']}{mark} "}], values)
        before, found, after = text.rpartition(mark)
        if not found:
            raise ParameterError("messages", "this chat template does not show the last message, which is to go on")
        return before if after.startswith(" ") else before.rstrip()

    def _render(self, messages: Sequence[Message], values: Mapping[str, Any]) -> str:
        from jinja2 import TemplateError

        template = self._tool_template if values["tools"] else self._template
        try:
            return template(
                messages=messages,
                documents=None,
                **values,
                **self._special_tokens,
            )
        except TemplateError as error:
            raise ParameterError("messages", f"the chat template refuses these messages: {error}") from error
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ParameterError("messages", f"the chat template cannot render these messages: {error}") from error


def _templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name; a single one is the default."""
    if (path := directory / "chat_template.jinja").is_file():
        return {"default": path.read_text(encoding="utf-8")}
    template = config.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}
    return {} if template is None else {"default": template}


def _call_style(source: str, tokenizer: Tokenizer) -> str | None:
    """By what a template that knows tools writes before a call."""
    if "[TOOL_CALLS]" in source and "[TOOL_CALLS]" in tokenizer.control:
        return "mistral-args" if "[ARGS]" in source else "mistral"
    if "<tool_call>" in source:
        return None if "<function=" in source else "hermes"
    return "llama" if '"parameters": ' in source and "ipython" in source else None


def _simple(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_VARIABLE_CHARS
    return value is None or (isinstance(value, int | float) and abs(value) <= MAX_VARIABLE)


def _mark_whole(content: str, opening: str, closing: str) -> str:
    """Marks inside the surrounding white space, which templates may trim."""
    core = content.strip()
    return content.replace(core, opening + core + closing, 1) if core else content


def _split(marked: str, opening: str, closing: str) -> list[str] | None:
    """Texts outside and, at odd places, inside the marks; None when the template tore a pair of marks apart."""
    parts = re.split(f"({opening}|{closing})", marked)
    marks = parts[1::2]
    if marks != [opening, closing] * (len(marks) // 2):
        return None
    return parts[0::2]


def _name(tokenizer: Tokenizer, token: int | None) -> str | None:
    return None if token is None else tokenizer.name(token)
