"""Constraints over the vocabulary of each kind of tokenizer: the legal tokens are those that spell a legal text."""

import json
from dataclasses import dataclass
from functools import cached_property
from random import Random

import pytest

from model.grammar.archive import pack, unpack
from model.grammar.compiler import Compiler
from model.grammar.follower import GrammarFollower
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from tests.model.tokenizers.kinds import KINDS

NAMES = (
    *("embedded", "mistral_instruct_tokenizer_241114.model.v7", "byte fallback"),
    *("tekken v13", "tekken in another order", "tekken_240911.json"),
)
TEXTS = ('"no"', '"nö"', '"not 日本"', '"🦙"', '"[INST]"', '"</s>"', "12", "125")
"""All texts that the schema allows."""
SCHEMA = json.dumps({"grammars": [{"json_schema": {"enum": [json.loads(text) for text in TEXTS]}}]})


@dataclass(frozen=True)
class Case:
    tokenizer: Tokenizer
    compiler: Compiler
    pieces: dict[int, bytes]
    end: int

    @cached_property
    def useful(self) -> dict[int, bytes]:
        """The tokens of which a legal text may be made."""
        return {token: piece for token, piece in self.pieces.items() if any(piece in text.encode() for text in TEXTS)}

    def check(self, allowed: set[int], before: bytes) -> bool:
        """Compare with the tokens that may follow `before`, found without the compiler. True if all of them must be.

        Where all texts go on in the same way, the compiler allows only the tokens that the model would use for it.
        """
        rests = [text.encode()[len(before) :] for text in TEXTS if text.encode().startswith(before)]
        legal = {token for token, piece in self.useful.items() if any(rest.startswith(piece) for rest in rests)}
        if b"" in rests:
            legal.add(self.end)
        if len({rest[:1] for rest in rests}) == 1:
            assert allowed
            assert allowed <= legal
            return False
        assert allowed == legal
        return True

    def allowed(self, follower: GrammarFollower, *tokens: int) -> set[int]:
        """The tokens that the compiled constraint allows after these."""
        (mask,), fault = follower.masks(tokens, ())
        assert not fault
        return {8 * place + bit for place, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1}


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The tokenizer goes through the archive, as in the process that compiles. The logits are wider than it."""
    directory = KINDS[request.param].write(tmp_path_factory.mktemp("tokenizer"))
    tokenizer = load_tokenizer(unpack(pack(directory)))
    pieces = {token: piece for token in range(tokenizer.vocab_size) if (piece := tokenizer.piece(token))}
    assert tokenizer.eos_id is not None
    size = tokenizer.vocab_size + 7
    return Case(tokenizer, Compiler.of(tokenizer, [tokenizer.eos_id], size), pieces, tokenizer.eos_id)


def test_a_schema_allows_the_tokens_that_spell_its_texts(case: Case) -> None:
    """Along random paths through its texts. The texts that are names of control tokens are spelled, too."""
    matcher = case.compiler.compile(SCHEMA)
    found, n_exact = set(), 0
    for seed in range(20):
        rng, follower, before, token = Random(seed), GrammarFollower(matcher), b"", -1
        while token != case.end:
            allowed = case.allowed(follower, *([token] if before else []))
            n_exact += case.check(allowed, before)
            token = rng.choice(sorted(allowed))
            before += case.pieces.get(token, b"")
        found.add(before.decode())
    assert found <= set(TEXTS)
    assert len(found) >= 5
    assert n_exact > 25


def test_a_control_token_is_allowed_where_the_grammar_names_it(case: Case) -> None:
    """Its name as text is no such token."""
    name, control = list(case.tokenizer.control.items())[-1]
    follower = GrammarFollower(case.compiler.compile(f"start: <[{control}]> {json.dumps(name + 'é')} <[{control}]>"))
    assert case.allowed(follower) == {control}
    text, token = b"", control
    while text != f"{name}é".encode():
        (token,) = sorted(case.allowed(follower, token))[:1]
        assert token != control
        text += case.pieces[token]
        assert f"{name}é".encode().startswith(text)
    assert case.allowed(follower, token) == {control}
