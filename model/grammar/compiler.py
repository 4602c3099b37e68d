"""Grammars that an output must follow, compiled by llguidance for one vocabulary. No torch.

A grammar is text: Lark as llguidance extends it, or its JSON form `{"grammars": [{"json_schema": ...}]}`
(https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md). Compiled it is a matcher, which takes tokens and
says which may come next.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from model.errors import MAX_CHARS, ParameterError
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import encode_inner

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_LEXER_STATES, MAX_GRAMMAR_SIZE, MAX_STEP_ITEMS = 10_000, 200_000, 10_000
"""Below llguidance's defaults: a state takes some 2 kB in each sequence, an item some microseconds a token."""
MAX_COMPILED = 32


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes of every token by id (of control tokens their names), the control tokens, those that end an output."""

    pieces: tuple[bytes, ...]
    control: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, ends: Sequence[int], size: int) -> "Vocabulary":
        """`size` is the width of the logits; ids beyond the tokenizer's have no bytes and are never allowed."""
        names = {token: name.encode() for name, token in tokenizer.control.items()}
        pieces = [names.get(token) or tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
        padding = [b""] * (size - len(pieces))
        return cls((*pieces, *padding), tuple(sorted(names.keys())), tuple(ends))

    def to_json(self) -> str:
        """As plain data for a pipe."""
        return json.dumps([[piece.decode("latin-1") for piece in self.pieces], self.control, self.ends])

    @classmethod
    def from_json(cls, text: str) -> "Vocabulary":
        """Inverse of `to_json`."""
        pieces, control, ends = json.loads(text)
        return cls(tuple(piece.encode("latin-1") for piece in pieces), tuple(control), tuple(ends))


class Compiler:
    """Compiles grammars for one vocabulary. `encode` tells how the model spells a text that a grammar leaves no choice.

    Without `encode`, or where it does not give the text back, such texts are spelled with the longest tokens.
    """

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]] | None = None) -> None:
        from llguidance import LLTokenizer

        self._vocabulary = vocabulary
        self._encode = encode
        self._tokenizer = LLTokenizer(_Wrapper(vocabulary, self._spell), eos_token=list(vocabulary.ends))  # type: ignore[arg-type]

    @classmethod
    def of(cls, tokenizer: Tokenizer, ends: Sequence[int], size: int) -> "Compiler":
        """For what a model was trained with; see `Vocabulary.of`."""
        return cls(Vocabulary.of(tokenizer, ends, size), partial(encode_inner, tokenizer))

    def compile(self, grammar: str) -> "LLMatcher":
        """A matcher at the start of the output, its first mask computed. Raises ParameterError("grammar")."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            max_lexer_states=MAX_LEXER_STATES,
            max_grammar_size=MAX_GRAMMAR_SIZE,
            step_max_items=MAX_STEP_ITEMS,
            verbose_errors=False,
        )
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise ParameterError("grammar", problem(matcher))
        return matcher

    def _spell(self, text: str) -> list[int]:
        ids = self._encode(text) if self._encode else []
        if b"".join(map(self._vocabulary.pieces.__getitem__, ids)) == text.encode():
            return ids
        return self._tokenizer.greedy_tokenize(text)


class CompiledGrammars:
    """Compiled grammars, the latest used. Any thread may ask."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._compiled: OrderedDict[str, LLMatcher | Exception] = OrderedDict()
        self._lock = Lock()

    def matcher(self, grammar: str) -> "LLMatcher":
        """A matcher at the start, for others to copy. Raises ParameterError; while it compiles other threads go on."""
        found = self._compiled.get(grammar) or self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = found
            self._compiled.move_to_end(grammar)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        if isinstance(found, Exception):
            raise found
        return found

    def _compile(self, grammar: str) -> "LLMatcher | Exception":
        try:
            return self._compiler.compile(grammar)
        except Exception as error:
            return error


class _Wrapper:
    """A tokenizer as llguidance looks at it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, spell: Callable[[str], list[int]]) -> None:
        self.tokens = vocabulary.pieces
        self.special_token_ids = vocabulary.control
        self.eos_token_id = vocabulary.ends[0]
        self._spell = spell

    def __call__(self, text: str) -> list[int]:
        return self._spell(text)


def problem(matcher: "LLMatcher") -> str:
    """What a matcher complains of, on one line."""
    return " ".join(matcher.get_error().replace("<non-verbose/>", "").split())[:MAX_CHARS]
