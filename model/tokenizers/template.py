"""Compilation of chat templates, in a sandbox, with the environment and the functions of transformers."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from itertools import product
from typing import Any

from model.errors import ModelError

FAULTS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""Errors that a template may raise besides jinja2's TemplateError."""
TRIAL_TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}


@lru_cache(maxsize=4)  # the tokenizer and the chat format need it
def compile_template(source: str) -> tuple[Callable[..., str], frozenset[str]]:
    """Return the template's renderer, and the variables that it reads. Raises ModelError for invalid Jinja."""
    from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """`{% generation %}`, which marks the assistant's words for training. It writes nothing."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": _strftime_now}
    try:
        names = meta.find_undeclared_variables(environment.parse(source))
        return environment.from_string(source).render, frozenset(names)
    except TemplateSyntaxError as error:
        raise ModelError(f"the chat template is not valid Jinja, line {error.lineno}: {error.message}") from error


def written(source: str) -> str:
    """Return the template's source and its text around short conversations: it may compose a mark of two."""
    from jinja2 import TemplateError

    texts = [source]
    trials = ("system", "user", "assistant", "tool"), ("system", "user", "assistant"), ("user", "assistant")
    for tools, roles in product((None, [TRIAL_TOOL]), trials):
        messages = [{"role": role, "content": "Hello"} for role in roles]
        with suppress(ModelError, TemplateError, *FAULTS):
            values = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
            texts.append(compile_template(source)[0](bos_token="", eos_token="", **values))
    return "\n".join(texts)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without the HTML escapes of Jinja's own filter: models were not trained with them."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)
