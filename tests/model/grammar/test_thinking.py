"""Thoughts under a grammar: budget and end, the answer's grammar after them, drafts that are taken back."""

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from model.grammar.compiler import Compiler
from model.grammar.follower import GrammarFollower
from model.grammar.thinking import GRACE_TOKENS, Thinking
from model.grammar.vocabulary import Vocabulary

BYTES = tuple(bytes([n]) for n in range(1, 128))
MERGED = (b"</", b"think", b">\n\n", b'>{"', b".</", b"<th", b"ink>", b"\n\n", b". ", b'{"a"', b">x", b"<think>Hm")
NAMES = (b"<end>", b"[THINK]", b"[/THINK]")
END, THINK, END_THINK = 0, 1, 2
VOCABULARY = Vocabulary((*NAMES, *BYTES, *MERGED, b"", b""), (0, 1, 2), (END,))
COMPILER = Compiler(VOCABULARY)
TAGS, TOKENS = ("<think>", "</think>"), ("[THINK]", "[/THINK]")
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"]}
JSON = json.dumps({"grammars": [{"json_schema": SCHEMA | {"additionalProperties": False}}]})


def allowed(mask: bytes) -> list[int]:
    return [n for n in range(len(mask) * 8) if mask[n // 8] >> n % 8 & 1]


def walk(grammar: str, choose: Callable[[list[int]], int], most: int = 400) -> list[int]:
    """The tokens of an answer, as `choose` takes them from those that are allowed."""
    follower, tokens, new = GrammarFollower(COMPILER.compile(grammar), VOCABULARY.ends), [], []  # type: ignore[var-annotated]
    while len(tokens) < most and END not in tokens:
        masks, fault = follower.masks(new, ())
        assert fault == ""
        new = [choose(allowed(masks[0]))]
        tokens += new
    return tokens


def spelled(tokens: list[int]) -> str:
    return b"".join(VOCABULARY.pieces[token] for token in tokens).decode()


def writing(text: str, rng: Random | None = None) -> Callable[[list[int]], int]:
    """A model that wants to write `text` with the longest tokens; where it may not, any token, or the first."""
    left = [text.encode()]

    def choose(tokens: list[int]) -> int:
        for token in sorted(tokens, key=lambda token: -len(VOCABULARY.pieces[token])):
            piece = VOCABULARY.pieces[token]
            if piece and token not in (END, THINK, END_THINK) and left[0].startswith(piece):
                left[0] = left[0][len(piece) :]
                return token
        return rng.choice(tokens) if rng else tokens[0]

    return choose


@pytest.mark.parametrize(("marks", "seed"), [(marks, seed) for marks in (TAGS, TOKENS) for seed in range(12)])
@pytest.mark.parametrize("phase", ["before", "inside"])
def test_only_the_answer_after_a_thought_follows_its_grammar(marks: tuple[str, str], seed: int, phase: Any) -> None:
    """Whatever is chosen among the allowed tokens: a thought that ends, and then JSON."""
    rng = Random(seed)
    tokens = walk(Thinking(*marks, phase, 20, JSON).to_json(), rng.choice)
    text = spelled(tokens).removesuffix("<end>")
    thought, closing, answer = text.rpartition(marks[1])
    assert (closing != "") or phase == "before"
    assert json.loads(answer)["a"] in (1, 22)
    assert len(answer) - len(answer.lstrip()) <= 2 + MAX_LEFT
    if phase == "before" and thought:
        assert thought.lstrip().startswith(marks[0])


MAX_LEFT = 2
"""White space in the token that ends a thought."""


@pytest.mark.parametrize("marks", [TAGS, TOKENS])
def test_a_budget_ends_the_thought_after_a_sentence(marks: tuple[str, str]) -> None:
    sentences = "One is 1.5 and. Two are more! Three"
    for budget in range(1, 30):
        tokens = walk(Thinking(*marks, "inside", budget).to_json(), writing(sentences + " x" * 100), 120)
        text = spelled(tokens).removesuffix("<end>")
        thought = text.partition(marks[1])[0]
        n_thought = next(n for n in range(len(tokens)) if thought.startswith(spelled(tokens[: n + 1])) is False)
        ends = [match.end() for match in re.finditer(r"and\.|!", sentences)]
        expected = next((end for end in ends if end >= len(spelled(tokens[:budget]).rstrip())), None)
        if expected is None:
            assert n_thought == budget + GRACE_TOKENS
        else:
            assert thought.rstrip() == sentences[:expected]


def test_without_a_budget_a_thought_may_last() -> None:
    grammar = Thinking(*TAGS, "inside", None, JSON).to_json()
    assert "</think>" not in spelled(walk(grammar, writing("A word. " * 40), 150))


def test_a_budget_of_nothing_ends_the_thought_at_once() -> None:
    assert spelled(walk(Thinking(*TAGS, "inside", 0).to_json(), writing("hello"), 8))[:8] == "</think>"
    assert walk(Thinking(*TOKENS, "inside", 0).to_json(), writing("hello"), 3)[0] == END_THINK
    assert walk(Thinking(*TOKENS, "before", 0).to_json(), lambda found: THINK if THINK in found else found[0], 2) == [
        THINK,
        END_THINK,
    ]


@pytest.mark.parametrize("phase", ["before", "inside", "answer"])
@pytest.mark.parametrize("budget", [0, 4])
def test_a_budget_holds_for_the_whole_answer(phase: Any, budget: int) -> None:
    """A model that would open a thought after every word, and end it at once or never, opens one at most."""
    grammar = Thinking(*TOKENS, phase, budget).to_json()
    space, word = VOCABULARY.pieces.index(b"\n"), VOCABULARY.pieces.index(b"a")
    assert walk(grammar, lambda found: THINK if THINK in found else word if word in found else found[0], 300).count(
        THINK
    ) == (phase == "before")
    tokens = walk(grammar, lambda found: END_THINK if END_THINK in found else word, 9)
    assert THINK not in tokens
    for first in (END_THINK, word):
        matcher = COMPILER.compile(Thinking(*TOKENS, "before", budget).to_json())
        assert matcher.consume_tokens([space, first])
        assert THINK not in allowed(matcher.compute_bitmask())
        assert END in allowed(matcher.compute_bitmask())
    matcher = COMPILER.compile(Thinking(*TOKENS, "before", budget).to_json())
    assert matcher.consume_tokens([space])
    assert THINK in allowed(matcher.compute_bitmask()), "white space before a thought is no answer"


def test_an_answer_without_a_thought_follows_its_grammar_from_the_start() -> None:
    for marks in (TAGS, TOKENS):
        text = spelled(walk(Thinking(*marks, "before", 5, JSON).to_json(), writing('{"a": 22}')))
        assert text == '{"a": 22}<end>'


def test_an_answer_that_begins_like_a_mark_is_an_answer() -> None:
    grammar = json.dumps({"grammars": [{"lark_grammar": "start: /<[a-z]+!/"}]})
    text = spelled(walk(Thinking(*TAGS, "before", 5, grammar).to_json(), writing("<thou!")))
    assert text == "<thou!<end>"
    text = spelled(walk(Thinking(*TAGS, "before", 5, grammar).to_json(), writing("<think>a. b</think><ok!")))
    assert text.endswith("</think><ok!<end>")


def test_a_mark_in_plain_letters_is_no_control_token() -> None:
    grammar = Thinking(*TOKENS, "inside", None, JSON).to_json()
    matcher = COMPILER.compile(grammar)
    letters = [VOCABULARY.pieces.index(bytes([byte])) for byte in b"[/THINK]"]
    assert matcher.consume_tokens(letters)
    assert END_THINK in allowed(matcher.compute_bitmask())
    assert VOCABULARY.pieces.index(b"z") in allowed(matcher.compute_bitmask())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("phase", ["before", "inside"])
def test_drafts_change_nothing(seed: int, phase: Any) -> None:
    """Masks with drafts, taken back, equal those of a matcher that saw only the tokens."""
    rng = Random(seed)
    marks = rng.choice([TAGS, TOKENS])
    grammar = Thinking(*marks, phase, rng.choice([None, 0, 3, 9]), rng.choice([None, JSON])).to_json()
    follower, tokens, new = GrammarFollower(COMPILER.compile(grammar), VOCABULARY.ends), [], []  # type: ignore[var-annotated]
    for _ in range(60):
        alone, _ = GrammarFollower(COMPILER.compile(grammar), VOCABULARY.ends).masks(tokens, ())
        draft: list[int] = []
        expected = [alone[0]]
        for _ in range(4):
            choices = allowed(expected[-1])
            token = rng.choice(choices) if rng.random() < 0.9 else rng.randrange(len(VOCABULARY.pieces))
            draft.append(token)
            if token not in choices or token == END:
                break
            expected += GrammarFollower(COMPILER.compile(grammar), VOCABULARY.ends).masks([*tokens, *draft], ())[0]
        masks, fault = follower.masks(new, draft)
        assert fault == ""
        assert masks == expected
        new = draft[: rng.randint(1, max(1, len(expected) - 1))]
        if new[0] not in allowed(expected[0]) or END in new:
            break
        tokens += new


@pytest.mark.parametrize("grammar", [JSON, Thinking(*TAGS, "before", None, JSON).to_json()])
def test_a_draft_with_an_end_token_is_taken_back_whole(grammar: str) -> None:
    """llguidance does not count the end token when it goes back: one token too many would be forgotten."""
    letters = [VOCABULARY.pieces.index(bytes([byte])) for byte in b'{"a": 22 }']
    follower = GrammarFollower(COMPILER.compile(grammar), VOCABULARY.ends)
    masks, _ = follower.masks(letters[:7], [*letters[7:], END])
    assert len(masks) == 4
    assert follower.masks(letters[7:], ()) == ([masks[-1]], "")
