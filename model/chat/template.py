"""Compilation of chat templates, in a sandbox, with the environment and the functions of transformers."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from model.errors import ModelError
from model.tokenizers.base import Tokenizer

FAULTS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""What a template may raise besides jinja2's TemplateError."""


def compile_template(source: str) -> tuple[Callable[..., str], frozenset[str]]:
    """A function that renders the template, and the variables that it reads. Raises ModelError for invalid Jinja."""
    from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`, which marks the assistant's words for training. It writes nothing."""

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
        names = meta.find_undeclared_variables(environment.parse(source))
        return environment.from_string(source).render, frozenset(names)
    except TemplateSyntaxError as error:
        raise ModelError(f"the chat template is not valid Jinja, line {error.lineno}: {error.message}") from error


def call_style(source: str, tokenizer: Tokenizer, *, single: bool = False) -> str | None:
    """The style of tool calls, found by what the template writes before a call; None if it is not known.

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


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter: models were not trained with them."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)
