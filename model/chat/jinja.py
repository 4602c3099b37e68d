"""Conversations rendered by a checkpoint's Jinja template, and encoded so that contents stay plain text.

Contents are put between unguessable marks while the template runs. The marks divide the rendering into the template's
own words, in which names of control tokens are those tokens, and contents, in which they are text.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from model.chat.conversation import NOTHING, TEXTS, Message, checked
from model.chat.template import call_style, compile_template
from model.chat.variables import RESERVED, check_variables
from model.errors import ParameterError
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import control_pattern, encode_inner


class JinjaChat:
    """A chat template as transformers runs it: same environment, same functions, same ids for harmless contents.

    `tool_source` is the template of conversations with tools, where it is another.
    """

    def __init__(
        self, source: str, tokenizer: Tokenizer, special_tokens: Mapping[str, str], tool_source: str | None = None
    ) -> None:
        self._template, declared = compile_template(source)
        self._tool_template, known = compile_template(tool_source) if tool_source else (self._template, declared)
        self._variables = (declared | known).difference(RESERVED)
        self.call_style = call_style(tool_source or source, tokenizer) if "tools" in known else None
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
        check_variables(variables, self._variables, self._control)
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
