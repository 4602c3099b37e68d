"""Prompts as a SentencePiece tokenizer has them: with a begin token, and a space that it puts first."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from mistral_common.protocol.fim.request import FIMRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from model.checkpoint.generation_config import GenerationDefaults
from model.tokenizers.sentencepiece import SentencePieceTokenizer
from service.api.openai.completion_order import order_completion
from service.api.openai.schema import CompletionBody
from service.generation.served import ServedModel, longest_piece
from service.http.errors import InvalidRequest
from tests.fakes import make_info

DATA = Path(str(files("mistral_common") / "data"))
V1, V3 = DATA / "tokenizer.model.v1", DATA / "mistral_instruct_tokenizer_240323.model.v3"
BOS = 1


def serve(file: Path) -> ServedModel:
    tokenizer = SentencePieceTokenizer(file)
    info = replace(make_info(max_model_len=256), vocab_size=tokenizer.vocab_size)
    return ServedModel(("m",), tokenizer, None, GenerationDefaults((2,)), longest_piece(tokenizer), info)


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return serve(V1)


def prompt(served: ServedModel, **body: Any) -> Any:
    request = CompletionBody.model_validate(body)
    request.check()
    return order_completion(request, served).prompts[0]


@pytest.mark.parametrize("text", ["Hello, world", " two  spaces", "naïve 日本語 🦙👩‍👩‍👧!", "[INST] hi</s>", ""])
def test_echoed_tokens_start_where_their_text_does(served: ServedModel, text: str) -> None:
    """The bytes of the pieces, less the first space, are those of the text: their lengths say where each starts."""
    found = prompt(served, prompt=text, echo=True, logprobs=0)
    assert found.tokens[0] == BOS
    pieces = [served.tokenizer.piece(token) or served.tokenizer.name(token).encode() for token in found.tokens[1:]]
    places = [max(0, sum(map(len, pieces[:index])) - 1) for index in range(len(pieces))]
    assert found.starts == [0, *(len(text.encode()[:place].decode(errors="ignore")) for place in places)]
    assert found.echo == text


def test_only_a_scored_echo_has_starts(served: ServedModel) -> None:
    assert prompt(served, prompt="Hello", echo=True).starts == ()
    assert prompt(served, prompt="Hello", logprobs=1).starts == ()


def test_a_truncated_text_keeps_the_begin_token(served: ServedModel) -> None:
    text = "one two three four five six"
    whole = served.tokenizer.encode(text, add_bos=True, parse_control=True)
    assert prompt(served, prompt=text, truncate_prompt_tokens=3, echo=True).tokens == [BOS, *whole[-2:]]
    assert prompt(served, prompt=text, truncate_prompt_tokens=1).tokens == [BOS]
    assert prompt(served, prompt=text, truncate_prompt_tokens=len(whole)).tokens == whole
    assert prompt(served, prompt=whole, truncate_prompt_tokens=3).tokens == whole[-3:]
    scored = prompt(served, prompt=text, truncate_prompt_tokens=3, echo=True, logprobs=0)
    assert (scored.echo, scored.starts) == ("five six", [0, 0, 4])
    long = text * 99
    fits = prompt(served, prompt=long, truncate_prompt_tokens=-1, max_tokens=56).tokens
    assert fits == [BOS, *served.tokenizer.encode(long, add_bos=False, parse_control=True)[-199:]]


@pytest.mark.parametrize(("before", "after"), [("def f(", "    return a\n"), ("Hello", " 日本 world</s>")])
def test_a_gap_is_written_as_mistral_common_does(before: str, after: str) -> None:
    oracle = MistralTokenizer.from_file(V3).encode_fim(FIMRequest(prompt=before, suffix=after)).tokens
    assert prompt(serve(V3), prompt=[before], suffix=after).tokens == oracle


def test_gaps_that_cannot_be_filled(served: ServedModel) -> None:
    infills = serve(V3)
    for where, body, word in (
        (served, {"prompt": "a"}, "[SUFFIX]"),
        (infills, {"prompt": [5, 6]}, "token ids"),
        (infills, {"prompt": "a", "echo": True}, "echo"),
        (infills, {"prompt": "a", "truncate_prompt_tokens": 4}, "truncate_prompt_tokens"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            prompt(where, **body, suffix="b")
        assert caught.value.param == "suffix"
        assert word in caught.value.message
    assert prompt(served, prompt="a", suffix="").tokens == prompt(served, prompt="a").tokens
