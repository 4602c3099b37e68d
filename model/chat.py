"""Messages -> token ids: a checkpoint's Jinja template in a sandbox, or mistral-common for native checkpoints.

What a person wrote is text, whatever it spells: a control token's name inside a message's content never becomes that
token. Contents are marked with unguessable markers while the template runs, so that the rendering can be told apart
into the template's own words and the messages' (`JinjaChat`); mistral-common encodes contents as text by itself.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from model.checkpoint.files import layout, read_json
from model.errors import ModelError, ParameterError
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import sentencepiece_file
from model.tokenizers.pieces import control_pattern

Message = Mapping[str, Any]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatFormat(Protocol):
    """How a model wants a conversation written."""

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Ids of the conversation, and of the words that open the model's answer.

        `messages` have `role` (system, developer, user, assistant) and `content` (text).
        Raises ParameterError("messages") for what the format cannot express.
        """
        ...

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as text, control tokens by name, for people and for raw completions. Raises as `encode`."""
        ...


def load_chat(directory: Path, tokenizer: Tokenizer, template: str | None = None) -> ChatFormat | None:
    """The chat format of a model directory; `template` is Jinja source that goes before the directory's own.

    None when the model has no chat format. Raises ModelError for a template that is no Jinja.
    """
    path = directory / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    source = template or _template(directory, config)
    if source is not None:
        special = {"bos_token": _name(tokenizer, tokenizer.bos_id), "eos_token": _name(tokenizer, tokenizer.eos_id)}
        for role in _SPECIAL_TOKENS:
            value = config.get(role)
            special[role] = (value.get("content") if isinstance(value, dict) else value) or special.get(role)
        return JinjaChat(source, tokenizer, {role: name for role, name in special.items() if name is not None})
    if layout(directory) == "native" and (file := sentencepiece_file(directory)):
        return MistralChat(file, tokenizer)
    return None


class JinjaChat:
    """A chat template as transformers runs it: same environment, same functions, same ids for harmless contents."""

    def __init__(self, source: str, tokenizer: Tokenizer, special_tokens: Mapping[str, str]) -> None:
        self._template = _compile(source)
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        self._control = control_pattern(tokenizer.control)

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        checked = _checked(messages)
        plain = self._render(checked, add_generation_prompt)
        for mark in (_mark_whole, self._mark_control):
            secret = secrets.token_hex(16)
            opening, closing = f"\ue000{secret}\ue001", f"\ue002{secret}\ue003"
            marked = [{**message, "content": mark(message["content"], opening, closing)} for message in checked]
            texts = _split(self._render(marked, add_generation_prompt), opening, closing)
            if texts is not None and "".join(texts) == plain:
                return self._encode(plain, texts)
        # The template looks into contents or rewrites them, and one of them spells a control token.
        raise ParameterError(
            "messages", "a message contains the name of a control token, which this chat template mixes up"
        )

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        return self._render(_checked(messages), add_generation_prompt)

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
            ids += self._continue(text, parse_control=index % 2 == 0, first=not ids)
        return ids

    def _continue(self, text: str, *, parse_control: bool, first: bool) -> list[int]:
        """Ids of a text that others precede: without the space that SentencePiece puts before a first word."""
        if first or not self._tokenizer.strips_leading_space:
            return self._tokenizer.encode(text, add_bos=False, parse_control=parse_control)
        newline = self._tokenizer.encode("\n", add_bos=False, parse_control=False)
        ids = self._tokenizer.encode("\n" + text, add_bos=False, parse_control=parse_control)
        return ids[len(newline) :]

    def _mark_control(self, content: str, opening: str, closing: str) -> str:
        return self._control.sub(lambda match: opening + match[0] + closing, content)

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        from jinja2 import TemplateError

        try:
            return self._template(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except TemplateError as error:
            raise ParameterError("messages", f"the chat template refuses these messages: {error}") from error
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ParameterError("messages", f"the chat template cannot render these messages: {error}") from error


class MistralChat:
    """mistral-common's encoding for the version that the tokenizer file's name carries."""

    def __init__(self, file: Path, tokenizer: Tokenizer) -> None:
        from mistral_common.exceptions import MistralCommonException
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

        self._tokenizer = tokenizer
        try:
            self._format = MistralTokenizer.from_file(file)
        except (MistralCommonException, ImportError, ValueError) as error:
            raise ModelError(f"mistral-common cannot read {file.name}: {_one_line(error)}") from error

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        from mistral_common.exceptions import MistralCommonException
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        checked = _checked(messages)
        if not add_generation_prompt and checked[-1]["role"] == "assistant":
            checked[-1]["prefix"] = True
        try:
            request = ChatCompletionRequest.model_validate({"messages": checked})
            return self._format.encode_chat_completion(request).tokens
        except (MistralCommonException, ValueError) as error:
            raise ParameterError(
                "messages", f"the model's chat format refuses these messages: {_one_line(error)}"
            ) from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        ids = self.encode(messages, add_generation_prompt=add_generation_prompt)
        return self._tokenizer.decode(ids, keep_control=True)


def _template(directory: Path, config: Mapping[str, Any]) -> str | None:
    if (path := directory / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template


def _compile(source: str) -> Callable[..., str]:
    from jinja2 import TemplateError, TemplateSyntaxError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the assistant's words for training; it writes nothing."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": _strftime_now}
    try:
        return environment.from_string(source).render
    except TemplateSyntaxError as error:
        raise ModelError(f"the chat template is no valid Jinja, line {error.lineno}: {error.message}") from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """Jinja's own escapes HTML, which models were not trained with."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if not messages:
        raise ParameterError("messages", "messages must hold at least one message")
    for index, message in enumerate(messages):
        if message.get("role") not in _ROLES:
            raise ParameterError(
                "messages", f"messages[{index}].role must be one of {', '.join(_ROLES)}, got {message.get('role')!r}"
            )
        if not isinstance(message.get("content"), str):
            raise ParameterError("messages", f"messages[{index}].content must be text")
    return [{"role": _ROLES[message["role"]], "content": message["content"]} for message in messages]


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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
