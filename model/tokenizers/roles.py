"""The roles of tokens, united from all files of a model directory that name tokens by their text. No torch.

A role makes a token a control token, whatever its own flag says. Programs write a role to any of these files, often to
one only.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from model.checkpoint.files import read_json_if_any
from model.errors import ModelError, one_line, short
from model.tokenizers.base import Tokenizer
from model.tokenizers.template import written

CONFIG, SPECIAL_MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
THOUGHT_TAGS = ("<think>", "</think>")
"""Tags around a thought. They open no message, and templates look for them in the contents of earlier answers."""
_DECODER = "added_tokens_decoder"
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_IDS = range(sys.maxsize)
_MARK = re.compile(r"[^\w\s].*\w.*[^\w\s]", re.DOTALL)


class Given(NamedTuple):
    """A file's entry for a token: its role, or the id with which the token is added to the vocabulary."""

    file: str
    text: str
    role: str = ""
    id: int = -1
    special: bool = True


@dataclass(frozen=True, slots=True)
class Roles:
    """All files' entries for tokens. `named` has the token of each role, such as "bos_token", as transformers finds it.

    `templates` are the chat templates by name; a single one is called "default". `n_tokens` are those of the model.
    """

    given: tuple[Given, ...]
    named: Mapping[str, str]
    templates: Mapping[str, str]
    n_tokens: int = sys.maxsize

    @property
    def added(self) -> dict[str, Given]:
        """Return the added tokens of the model by text, in the order of their ids."""
        ordered = sorted(self.given, key=lambda given: given.id)
        return {given.text: given for given in ordered if 0 <= given.id < self.n_tokens}

    def doubts(self, tokenizer: Tokenizer) -> tuple[str, ...]:
        """Return a line for each file with added tokens that the tokenizer does not have, or has under other ids."""
        found = {given.file: given for given in self.given if given.id >= 0 and not _has(tokenizer, given)}
        why = "which is not in the tokenizer: such tokens are ignored"
        return tuple(f"{file} adds {short(token.text)} with the id {token.id}, {why}" for file, token in found.items())

    @property
    def special(self) -> frozenset[str]:
        """Return the tokens that have a role, or that a file calls special."""
        return frozenset(given.text for given in self.given if given.special)

    def in_templates(self, names: Iterable[str]) -> frozenset[str]:
        """Return the tokens that are marks in the templates' own words: a message must not spell them."""
        words = "".join(map(written, self.templates.values()))
        return frozenset(name for name in names if is_mark(name) and name in words and name not in THOUGHT_TAGS)

    def told(self, tokenizer: Tokenizer, ends: Mapping[int, str], sources: Mapping[str, str]) -> str:
        """Return a line for the log: each role and its source, a file or the name that `sources` has in its place."""
        parts = [
            f"{given.role} {short(given.text)} ({sources.get(given.file, given.file)})"
            for given in self.given
            if given.role.endswith("_token") and given.text in tokenizer.control
        ]
        begin = tokenizer.encode("", add_bos=True, parse_control=False)
        parts += [f"begin {short(tokenizer.name(token))} (tokenizer)" for token in begin]
        parts += [f"end {short(tokenizer.name(token))} ({sources.get(file, file)})" for token, file in ends.items()]
        parts += [f"mark {short(name)} (chat template)" for name in sorted(self.in_templates(tokenizer.control))]
        n_added = sum(_has(tokenizer, given) for given in self.added.values())
        return f"roles of tokens: {', '.join(parts) or 'none'}; added tokens: {n_added}"


NO_ROLES = Roles((), {}, {})


def _has(tokenizer: Tokenizer, given: Given) -> bool:
    """Return whether the tokenizer has an added token under its id."""
    return tokenizer.name(given.id) in (given.text, given.text.replace("▁", " "))


def is_mark(text: str) -> bool:
    """Return whether a token is written as a mark: `<|im_start|>` and `[INST]` are, words and white space are not."""
    return _MARK.fullmatch(text.strip()) is not None


def read_roles(directory: Traversable, template: str | None = None) -> Roles:
    """Read a model directory's roles; `template` replaces its chat templates. Raises ModelError, which names a file."""
    config, others = (read_json_if_any(directory / name) for name in (CONFIG, SPECIAL_MAP))
    known = [*_roles(CONFIG, config), *_roles(SPECIAL_MAP, others)]
    named = {given.role: given.text for given in known if given.file == CONFIG or _DECODER not in config}
    known += _added(config, read_json_if_any(directory / ADDED))
    templates = {"default": template} if template else _templates(directory, config)
    return Roles(tuple(known), named, templates, _n_tokens(directory))


def _n_tokens(directory: Traversable) -> int:
    """Return the number of the model's embeddings, where a configuration has it."""
    files = [read_json_if_any(directory / name) for name in ("config.json", "params.json")]
    sizes = [part.get("vocab_size") for file in files for part in (file, file.get("text_config") or {})]
    return min((size for size in sizes if isinstance(size, int)), default=sys.maxsize)


def _roles(file: str, content: Mapping[str, Any]) -> Iterator[Given]:
    """Yield tokens with a role, and special tokens without one. A token is a string or an object with it."""
    for role, value in content.items():
        listed = value.values() if isinstance(value, dict) else value or ()
        for item in listed if role in _LISTS else [value] if role.endswith("_token") else []:
            text = item.get("content") if isinstance(item, dict) else item
            if isinstance(text, str) and text:
                yield Given(file, text, role)


def _added(config: Mapping[str, Any], others: Mapping[str, Any]) -> Iterator[Given]:
    """Yield added tokens. Those of the configuration have flags."""
    file = ADDED
    try:
        yield from (Given(file, text, id=_IDS.index(int(token)), special=False) for text, token in others.items())
        file = CONFIG
        for token, entry in (config.get(_DECODER) or {}).items():
            yield Given(file, entry["content"], id=_IDS.index(int(token)), special=entry.get("special") is True)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{file} has an added token without a text or an id: {one_line(error)}") from error


def _templates(directory: Traversable, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the directory's templates by name. The order is that of transformers."""
    if (path := directory / TEMPLATE).is_file():
        folder = directory / TEMPLATES
        others = {file.name: file for file in (folder.iterdir() if folder.is_dir() else ())}
        named = {name.removesuffix(".jinja"): others[name] for name in sorted(others) if name.endswith(".jinja")}
        return {name: file.read_text(encoding="utf-8") for name, file in {"default": path, **named}.items()}
    # the first models with images have it in a file of its own
    template = config.get("chat_template") or read_json_if_any(directory / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}
    return {} if template is None else {"default": template}
