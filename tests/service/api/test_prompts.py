"""Prompts as Mistral's tokenizers have them: with a begin token, and a space that SentencePiece puts first."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from mistral_common.protocol.fim.request import FIMRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from model.checkpoint.generation_config import GenerationDefaults
from model.tokenizers.sentencepiece import SentencePieceTokenizer
from model.tokenizers.tekken import TekkenTokenizer
from service.api.openai.completions import CompletionBody
from service.api.openai.fim import FimBody
from service.api.text import text_request
from service.api.tokens import TokenizeBody, described, encode
from service.errors.errors import InvalidRequest
from service.generation.request import Echo, ModelRequest
from service.generation.served import ServedModel, longest_piece
from tests.fakes import make_info
from tests.model.tokenizers.tekken_files import write_tekken

DATA = Path(str(files("mistral_common") / "data"))
V1, V3 = DATA / "tokenizer.model.v1", DATA / "mistral_instruct_tokenizer_240323.model.v3"
TEKKEN = DATA / "tekken_240911.json"
BOS = 1


def serve(file: Path) -> ServedModel:
    tokenizer = TekkenTokenizer(file) if file.suffix == ".json" else SentencePieceTokenizer(file)
    info = replace(make_info(max_model_len=256), vocab_size=tokenizer.vocab_size)
    return ServedModel(("m",), tokenizer, None, GenerationDefaults((2,)), longest_piece(tokenizer), info)


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return serve(V1)


@pytest.fixture
def tekken(tmp_path: Path) -> Path:
    return write_tekken(tmp_path, "v13")


def request(served: ServedModel, **body: Any) -> ModelRequest:
    completion = CompletionBody.model_validate(body)
    completion.check()
    return text_request(completion.text(), served)


def tokens(served: ServedModel, **body: Any) -> list[int]:
    return request(served, **body).submits[0].prompt


def echo(served: ServedModel, **body: Any) -> Echo:
    (found,) = request(served, **body, echo=True).echoes
    return found


TEXTS = ["Hello, world", " two  spaces", "naïve 日本語 🦙👩‍👩‍👧!", "[INST] hi</s>", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_echoed_tokens_start_where_their_text_does(served: ServedModel, text: str, tekken: Path) -> None:
    """The bytes of the pieces, less the first space, are those of the text: their lengths say where each starts."""
    for model in (served, serve(tekken)):
        found, first = echo(model, prompt=text, logprobs=0), tokens(model, prompt=text, echo=True)
        assert first[0] == BOS
        pieces = [model.tokenizer.piece(token) or model.tokenizer.name(token).encode() for token in first[1:]]
        n_added = int(model.tokenizer.strips_leading_space)
        places = [max(0, sum(map(len, pieces[:index])) - n_added) for index in range(len(pieces))]
        assert found.starts == [0, *(len(text.encode()[:place].decode(errors="ignore")) for place in places)]
        assert found.text == text


def test_only_a_scored_echo_has_starts(served: ServedModel) -> None:
    assert echo(served, prompt="Hello").starts == ()
    assert request(served, prompt="Hello", logprobs=1).echoes == ()


def test_a_truncated_text_keeps_the_begin_token(served: ServedModel) -> None:
    text = "one two three four five six"
    whole = served.tokenizer.encode(text, add_bos=True, parse_control=True)
    assert tokens(served, prompt=text, truncate_prompt_tokens=3, echo=True) == [BOS, *whole[-2:]]
    assert tokens(served, prompt=text, truncate_prompt_tokens=1) == [BOS]
    assert tokens(served, prompt=text, truncate_prompt_tokens=len(whole)) == whole
    assert tokens(served, prompt=whole, truncate_prompt_tokens=3) == whole[-3:]
    scored = echo(served, prompt=text, truncate_prompt_tokens=3, logprobs=0)
    assert (scored.text, scored.starts) == ("five six", [0, 0, 4])
    long = text * 99
    fits = tokens(served, prompt=long, truncate_prompt_tokens=-1, max_tokens=56)
    assert fits == [BOS, *served.tokenizer.encode(long, add_bos=False, parse_control=True)[-199:]]


@pytest.mark.parametrize("file", [V3, TEKKEN], ids=["v3", "tekken"])
def test_a_gap_is_written_as_mistral_common_does(file: Path) -> None:
    library, mine = MistralTokenizer.from_file(file), serve(file)
    for before, after in (("def f(", "    return a\n"), ("Hello", " 日本 world</s>")):
        oracle = library.encode_fim(FIMRequest(prompt=before, suffix=after)).tokens
        assert tokens(mine, prompt=[before], suffix=after) == oracle
        (asked,) = text_request(FimBody(prompt=before, suffix=after).text(), mine).submits
        assert (asked.prompt, asked.params.max_tokens) == (oracle, mine.info.max_model_len - len(oracle))


def test_tokens_of_tekken_have_names_and_bytes(tekken: Path) -> None:
    """Control tokens have their names; a token that is no text has its bytes, as OpenAI and llama.cpp write them."""
    served = serve(tekken)
    body = TokenizeBody(prompt="a[THINK]é🦙", with_pieces=True, return_token_strs=True)
    found = described(encode(body, served), body, served)
    ids = [BOS, 1000 + ord("a"), served.tokenizer.control["[THINK]"]]
    (accent,) = served.tokenizer.encode("é", add_bos=False, parse_control=False)
    llama = served.tokenizer.encode("🦙", add_bos=False, parse_control=False)
    named = [("<s>", "<s>"), ("a", "a"), ("[THINK]", "[THINK]"), ("é", "é")]
    parts = [served.tokenizer.piece(token) for token in llama]
    named += [("bytes:" + "".join(f"\\x{byte:02x}" for byte in part), list(part)) for part in parts]
    assert b"".join(parts) == "🦙".encode()
    assert len(parts) > 1
    pieces = [{"id": token, "piece": piece} for token, (_, piece) in zip([*ids, accent, *llama], named, strict=True)]
    assert found["tokens"] == pieces
    assert found["token_strs"] == [name for name, _ in named]


def test_the_longest_token_bounds_a_prompt(tmp_path: Path) -> None:
    """It may be a control token: their names are longer than a small vocabulary's pieces."""
    name = f"[{'LONG' * 20}]"
    served = serve(write_tekken(tmp_path, "v13", special=["<unk>", "<s>", "</s>", name]))
    assert served.longest_piece == len(name) == 82
    assert len(tokens(served, prompt=name * 250, max_tokens=1)) == 251
    with pytest.raises(
        InvalidRequest, match="256 tokens, which hold at most 20992 bytes of text, but prompt has 21000"
    ):
        request(served, prompt="x" * 21000)


def test_gaps_that_cannot_be_filled(served: ServedModel) -> None:
    infills = serve(V3)
    for where, body, word in (
        (served, {"prompt": "a"}, "[SUFFIX]"),
        (infills, {"prompt": [5, 6]}, "token ids"),
        (infills, {"prompt": "a", "echo": True}, "echo"),
        (infills, {"prompt": "a", "truncate_prompt_tokens": 4}, "truncate_prompt_tokens"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            request(where, **body, suffix="b")
        assert caught.value.param == "suffix"
        assert word in caught.value.message
    assert tokens(served, prompt="a", suffix="") == tokens(served, prompt="a")
