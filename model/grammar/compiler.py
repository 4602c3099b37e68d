"""Compilation of grammars for one vocabulary, by llguidance. No torch.

A grammar is a text: Lark with llguidance's extensions, or JSON, `{"grammars": [{"json_schema": ...}]}`
(https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md). It compiles to a matcher. A matcher
consumes tokens and computes the mask of the tokens that may come next.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING

from model.errors import ParameterError
from model.grammar.follower import GrammarFollower, Matcher, problem
from model.grammar.numbers import Numbers
from model.grammar.thinking import Thinking, ThinkingMatcher, ThinkingTables
from model.grammar.vocabulary import Vocabulary, bits
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import encode_inner

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_LEXER_STATES, MAX_GRAMMAR_SIZE, MAX_STEP_ITEMS = 10_000, 200_000, 30_000
"""Limits below llguidance's: each sequence needs about 2 kB for a state and some microseconds a token for an item."""
MAX_ROW_ITEMS = 4_000
"""Above llguidance's limit: an object needs four items for each optional property that may come next."""
MAX_COMPILED = 32


class Compiler:
    """A compiler of grammars for one vocabulary.

    `encode` is the model's tokenization of a text. It splits the fixed text of a grammar into tokens. Without `encode`,
    or if its tokens have other bytes, fixed text is split into the longest possible tokens.
    """

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]] | None = None) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.vocabulary = vocabulary
        self._encode = encode
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary, self._tokens_of)), eos_token=[*vocabulary.ends]
        )
        self.numbers = Numbers.of(vocabulary)
        self._endings = (bits(vocabulary.ends), bits(vocabulary.control), vocabulary.beginning(b'"]}'))
        self._tables = cache(lambda: ThinkingTables(vocabulary, self._tokens_of))

    @classmethod
    def of(cls, tokenizer: Tokenizer, ends: Sequence[int], size: int) -> "Compiler":
        """Make a compiler with the model's own tokenization; see `Vocabulary.of`."""
        return cls(Vocabulary.of(tokenizer, ends, size), partial(encode_inner, tokenizer))

    def ending(self, mask: bytes) -> bytes:
        """Return the mask's tokens that end the output, a thought, a text or an object; the mask if it has none."""
        allowed = int.from_bytes(mask, "little")
        chosen = next((allowed & tokens for tokens in self._endings if allowed & tokens), allowed)
        return chosen.to_bytes(len(mask), "little")

    def compile(self, grammar: str) -> Matcher:
        """Compile a matcher at the output's start, with its first mask computed. Raises ParameterError("grammar")."""
        thinking = Thinking.from_json(grammar)
        if thinking is None:
            return self._compile(grammar)
        matcher = ThinkingMatcher(
            thinking, self._tables(), None if thinking.answer is None else self._compile(thinking.answer)
        )
        matcher.compute_bitmask()
        return matcher

    def _compile(self, grammar: str) -> "LLMatcher":
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            max_lexer_states=MAX_LEXER_STATES,
            max_grammar_size=MAX_GRAMMAR_SIZE,
            step_max_items=MAX_STEP_ITEMS,
            max_items_in_row=MAX_ROW_ITEMS,
            verbose_errors=False,
        )
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise ParameterError("grammar", problem(matcher))
        return matcher

    def _tokens_of(self, text: str) -> list[int]:
        ids = self._encode(text) if self._encode else []
        if b"".join(map(self.vocabulary.pieces.__getitem__, ids)) == text.encode():
            return ids
        return self._tokenizer.greedy_tokenize(text)


class CompiledGrammars:
    """The compiled grammars that were used last. For any thread."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self._compiled = lru_cache(MAX_COMPILED)(self._compile)

    def matcher(self, grammar: str) -> Matcher:
        """Return a matcher at the start, to be copied. Raises ParameterError. Other threads run during compilation."""
        found = self._compiled(grammar)
        if isinstance(found, ParameterError):
            raise found
        return found

    def follower(self, grammar: str) -> GrammarFollower:
        """Return the state of a new sequence in a grammar. Raises as `matcher` does."""
        numbers = self.compiler.numbers if '"json_schema":' in grammar else None
        return GrammarFollower(self.matcher(grammar), self.compiler.vocabulary.ends, numbers)

    def _compile(self, grammar: str) -> "Matcher | ParameterError":
        try:
            return self.compiler.compile(grammar)
        except ParameterError as error:
            return error


class _Tokens:
    """A tokenizer as llguidance's `TokenizerWrapper` takes it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, tokens_of: Callable[[str], list[int]]) -> None:
        self.tokens = vocabulary.pieces
        self.special_token_ids = vocabulary.control
        self.eos_token_id = vocabulary.ends[0]
        self._tokens_of = tokens_of

    def __call__(self, text: str) -> list[int]:
        return self._tokens_of(text)
