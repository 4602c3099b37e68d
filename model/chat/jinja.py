"""The chat format of a model with a Jinja template; contents of messages stay plain text.

While the template runs, each content is between random marks. The marks divide the rendering into the template's own
words, where the names of control tokens become those tokens, and contents, where they remain text.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from model.chat.conversation import NOTHING, TEXTS, Message, checked
from model.chat.media import ImageTokens, check_media
from model.chat.needs import Needs, in_parts, needs_of
from model.chat.reasoning import EFFORT, SWITCHES, check_effort, style_of_template, way_of_template, with_thought
from model.chat.schema import FIELD, response_format
from model.chat.variables import RESERVED, check_variables
from model.errors import ParameterError, one_line
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import control_pattern, encode_inner
from model.tokenizers.template import FAULTS, TRIAL_TOOL, compile_template


class _Template(NamedTuple):
    """A compiled template. `render` takes all variables but the special tokens."""

    render: Callable[..., str]
    variables: frozenset[str]
    needs: Needs

    @classmethod
    def of(cls, source: str, special_tokens: Mapping[str, str], tools: Sequence[Any] | None = None) -> "_Template":
        render, declared = compile_template(source)
        complete = partial(render, **special_tokens)
        needs = needs_of(complete, tools)
        return cls(in_parts(complete) if needs.parts else complete, declared, needs)


class JinjaChat:
    """A chat template as transformers runs it: with the same environment and functions.

    The ids are those of transformers too, unless a content contains the name of a control token. `tool_source` is the
    template for conversations with tools, None if it is the same.
    """

    may_strip = True

    def __init__(
        self, source: str, tokenizer: Tokenizer, special_tokens: Mapping[str, str], tool_source: str | None = None
    ) -> None:
        self.source: str | None = source
        self._template = _Template.of(source, special_tokens)
        self._tool_template = _Template.of(tool_source, special_tokens, [TRIAL_TOOL]) if tool_source else self._template
        known = self._tool_template.variables
        self._variables = (self._template.variables | known).difference(RESERVED)
        single = self._tool_template.needs.single_call
        style = call_style(tool_source or source, tokenizer, single=single)
        self.call_style = style if "tools" in known else None
        self.reasoning_style = style_of_template(source, tokenizer)
        self.efforts = self._template.needs.efforts
        self.switches = self._variables.intersection((*SWITCHES, EFFORT))
        self.tells_schema = FIELD in known
        in_both = self._template.needs.images.keys() & self._tool_template.needs.images.keys()
        self.media_roles: Mapping[str, frozenset[str]] = (
            {"image": frozenset(in_both)} if in_both and ImageTokens.of(tokenizer) else {}
        )
        self._thoughts = way_of_template(source, self.reasoning_style)
        self._tokenizer = tokenizer
        self._control = control_pattern(tokenizer.control)

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        schema: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[int]:
        known = self._fitted(messages, tools)
        plain = self._renderer(tools=tools, schema=schema, **options)(known)
        for mark in (_mark_whole, self._mark_control):
            secret = secrets.token_hex(16)
            opening, closing = f"\ue000{secret}\ue001", f"\ue002{secret}\ue003"
            marked = [
                {
                    key: mark(value, opening, closing) if key in TEXTS else self._marked(value, opening, closing)
                    for key, value in message.items()
                }
                for message in known
            ]
            inner = {"tools": self._marked(tools, opening, closing), "schema": self._marked(schema, opening, closing)}
            render = self._renderer(**inner, **options)
            texts = _split(render(marked), opening, closing)
            if texts is not None and "".join(texts) == plain:
                return self._encode(plain, texts)
        # The template reads or rewrites contents, and one of them contains the name of a control token.
        raise ParameterError(
            "messages",
            "a message contains the name of a control token; this chat template cannot keep it as text",
        )

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        return self._renderer(**options)(self._fitted(messages, options.get("tools")))

    def written_end(self) -> str:
        """Return the name of the control token that the template writes after an answer; empty if there is none."""
        secret = secrets.token_hex(16)
        messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": secret}]
        try:
            words = self.render(messages, add_generation_prompt=False)
        except ParameterError:
            return ""
        found = self._control.match(words.rpartition(secret)[2].lstrip()) if secret in words else None
        return found[0] if found else ""

    def left_out(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> list[int]:
        found = self._template_for(tools).needs.left_out(messages)
        secret = {index: secrets.token_hex(16) for index in found}
        told = [{**message, "content": secret.get(n, message["content"])} for n, message in enumerate(messages)]
        try:
            words = self.render(told, tools=tools) if found else ""
        except ParameterError:  # without the variables of the request
            return found
        return [index for index in found if secret[index] not in words]

    def _fitted(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> list[Message]:
        known = checked(messages)
        check_media(known, self.media_roles)
        return self._template_for(tools).needs.fitted(known)

    def _template_for(self, tools: Sequence[Any] | None) -> _Template:
        return self._tool_template if tools else self._template

    def _renderer(
        self,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = NOTHING,
        tools: Sequence[Any] | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> Callable[[Sequence[Message]], str]:
        check_variables(variables, self._variables, self._control)
        check_effort(variables.get(EFFORT), self.efforts)
        render = self._render_open if continue_final_message else self._render
        told = {} if schema is None or not self.tells_schema else {FIELD: response_format(schema)}
        own = {"add_generation_prompt": add_generation_prompt, "tools": tools}
        return partial(render, values={**variables, **own, **told})

    def _encode(self, plain: str, texts: Sequence[str]) -> list[int]:
        """Encode the rendering `plain`, divided into `texts`: the template's own words and contents, alternating.

        If no content contains a control token, the rendering is encoded as a whole. Merges then cross the borders of
        contents, as in training.
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
        """Return JSON-like data with marks around the names of control tokens in all its strings."""
        if isinstance(value, str):
            return self._mark_control(value, opening, closing)
        if isinstance(value, Mapping):
            parts = ((self._marked(key, opening, closing), item) for key, item in value.items())
            return {key: self._marked(item, opening, closing) for key, item in parts}
        return [self._marked(item, opening, closing) for item in value] if isinstance(value, list) else value

    def _render_open(self, messages: Sequence[Message], values: Mapping[str, Any]) -> str:
        """Render up to the end of the last content, cut as transformers does. A final space may remain."""
        *others, last = messages
        mark = f"\ue004{secrets.token_hex(16)}\ue005"
        text = self._render([*others, {**last, "content": f"{last['content']}{mark} "}], values)
        before, found, after = text.rpartition(mark)
        if not found:
            raise ParameterError("messages", "the chat template leaves out the last message, which is to be continued")
        return before if after.startswith(" ") else before.rstrip()

    def _render(self, messages: Sequence[Message], values: Mapping[str, Any]) -> str:
        from jinja2 import TemplateError

        template = self._template_for(values["tools"])
        if template.needs.undefined_tools and values["tools"] is None:
            values = {name: value for name, value in values.items() if name != "tools"}
        try:
            known = [with_thought(message, self._thoughts) for message in messages]
            return template.render(messages=known, documents=None, **values)
        except TemplateError as error:
            raise ParameterError("messages", f"the chat template refuses these messages: {one_line(error)}") from error
        except FAULTS as error:
            raise ParameterError(
                "messages", f"the chat template cannot render these messages: {one_line(error)}"
            ) from error


def call_style(source: str, tokenizer: Tokenizer, *, single: bool = False) -> str | None:
    """Return the style of tool calls, found by what the template writes before a call; None if it is not known.

    `single`: the template takes one call in a message.
    """
    if "[TOOL_CALLS]" in source and "[TOOL_CALLS]" in tokenizer.control:
        if "[ARGS]" not in source:
            return "mistral"
        return "mistral-v11" if "[CALL_ID]" in source else "mistral-args"
    if "<tool_call>" in source:
        return None if "<function=" in source or "<arg_key>" in source else "hermes"
    if '"parameters": ' in source and "ipython" in source:
        return "llama-single" if single else "llama"
    return None


def _mark_whole(content: str, opening: str, closing: str) -> str:
    """Put marks around the content, inside its surrounding white space, which templates may remove."""
    core = content.strip()
    return content.replace(core, opening + core + closing, 1) if core else content


def _split(marked: str, opening: str, closing: str) -> list[str] | None:
    """Split into texts outside and inside the marks, alternating. None if the template separated a pair of marks."""
    parts = re.split(f"({opening}|{closing})", marked)
    marks = parts[1::2]
    if marks != [opening, closing] * (len(marks) // 2):
        return None
    return parts[0::2]
