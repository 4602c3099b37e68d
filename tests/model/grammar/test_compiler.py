"""The matchers of compiled grammars, and the refused grammars."""

import pytest

from model.errors import ParameterError
from model.grammar.compiler import Compiler
from tests.model.grammar.vocabulary import VOCABULARY, token


def test_forced_text_is_spelled_as_the_model_does_and_otherwise_with_the_longest_tokens() -> None:
    spelled = {"bab": [token("b"), token("ab")], "ba": [token("a")]}
    matcher = Compiler(VOCABULARY, lambda text: spelled.get(text, [])).compile('start: "bab"')
    assert matcher.compute_ff_tokens()[:1] in ([token("b")], [token("bab")])
    wrong = Compiler(VOCABULARY, lambda text: [token("a")]).compile('start: "bab"')
    assert wrong.compute_ff_tokens() == [token("bab")]


@pytest.mark.parametrize(
    "grammar", ["", "garbage", '{"grammars": []}', 'start: "a" b', '{"grammars": [{"json_schema": 3}]}']
)
def test_what_is_no_grammar_is_refused_in_one_line(grammar: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Compiler(VOCABULARY).compile(grammar)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
