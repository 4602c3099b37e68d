"""Calls of functions: the texts that grammars allow, the reader for every division of a text, the request fields."""

import json
import random
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jsonschema
import numpy as np
import pytest

from model.grammar.compiler import Compiler
from service.api.openai.chat import ToolsBody
from service.structured.call_reader import CallReader
from service.structured.call_style import STYLES, call_constraint, explained
from service.structured.constraint import Constraint, json_constraint
from tests.fakes import IntegerTokenizer
from tests.service.live import Live, refused, running
from tests.service.structured.call_texts import ARGUMENTS, TEXTS, gathered

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": '^[a-z{}\\\\"]{1,6}$'}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["C", "F"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}},
    {"type": "function", "function": {"name": "time.now", "description": "Tells the time."}},
]


class Tokenizer(IntegerTokenizer):
    """A tokenizer of bytes. Mistral's control tokens replace two bytes that no text here has."""

    control: Mapping[str, int] = MappingProxyType({"<end>": 0, "[CALL_ID]": 253, "[TOOL_CALLS]": 254, "[ARGS]": 255})
    strips_leading_space = True

    def piece(self, token: int) -> bytes:
        return b"" if token >= 253 else super().piece(token)

    def tokens(self, text: str) -> list[int]:
        parts = re.split(r"(\[TOOL_CALLS\]|\[ARGS\]|\[CALL_ID\])", text)
        return [token for part in parts for token in ([self.control[part]] if part in self.control else part.encode())]

    def text(self, tokens: list[int]) -> str:
        names = {token: name for name, token in self.control.items() if token}
        return "".join(names.get(token) or self.piece(token).decode("latin-1") for token in tokens)


TOKENIZER = Tokenizer()
SEVERAL = [name for name, style in STYLES.items() if not style.single]
"""Styles in which an answer may have several calls."""
COMPILER = Compiler.of(TOKENIZER, [0], 256)


def accepts(grammar: str, text: str) -> bool:
    """Whether the grammar allows a whole text."""
    matcher = COMPILER.compile(grammar)
    tokens = TOKENIZER.tokens(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def grammar(style: str, otherwise: Constraint | None = None, **fields: Any) -> str:
    body = ToolsBody.model_validate_json(json.dumps({"tools": TOOLS, **fields}))
    return call_constraint(body.calls, STYLES[style], TOKENIZER, otherwise).serialized()


def read(style: str, parts: list[str]) -> tuple[str, list[tuple[str, str]], str | None]:
    """Text, names and arguments, finish_reason of an answer that comes in these parts."""
    reader = CallReader(STYLES[style])
    text, calls = gathered(reader, *parts)
    return text, [(call["function"]["name"], call["function"]["arguments"]) for call in calls], reader.finish("stop")


@pytest.mark.parametrize("style", STYLES)
def test_calls_are_read_however_the_text_is_cut(style: str) -> None:
    whole, text = TEXTS[style]
    expected = (text, [("weather", ARGUMENTS), ("time.now", "{}")], "tool_calls")
    assert json.loads(ARGUMENTS) == {"city": 'a}\\"{'}
    assert read(style, [whole]) == expected
    assert read(style, list(whole)) == expected
    assert all(read(style, [whole[:n], whole[n:]]) == expected for n in range(len(whole)))


@pytest.mark.parametrize("style", STYLES)
def test_arguments_may_begin_with_an_empty_name(style: str) -> None:
    whole, text = TEXTS[style]
    arguments = '{"": "}"}'
    expected = (text, [("weather", arguments), ("time.now", "{}")], "tool_calls")
    assert read(style, list(whole.replace(ARGUMENTS, arguments))) == expected


@pytest.mark.parametrize("style", STYLES)
def test_plain_text_is_text_to_its_last_character(style: str) -> None:
    for text in ("", "Hello <tool_cal", "a < b [TOOL_CALL", '{"nam', ' {"name": "x', "x"):
        assert read(style, list(text)) == (text, [], "stop")


@pytest.mark.parametrize("style", STYLES)
def test_a_marker_is_text_where_no_call_follows(style: str) -> None:
    """The text may be an answer about the format, or JSON that begins like a call in Llama's style."""
    for text in (
        "Before calls stands [TOOL_CALLS], or <tool_call> and </tool_call>: see there.",
        "<tool_call>[TOOL_CALLS]<tool_call>.",
        '{"name": "Bob <tool_call>", "parameters": 3}',
        '{"name": "weather", "arguments": 3, "parameter": [TOOL_CALLS] [] }',
        f'[TOOL_CALLS][{{"name": "{"a" * 300}", "arguments": {{}}}}]',
    ):
        assert read(style, list(text)) == read(style, [text]) == (text, [], "stop")


@pytest.mark.parametrize("style", ["mistral", "mistral-v3", "mistral-v11", "mistral-args"])
def test_what_is_read_as_a_control_token_is_not_spelled(style: str) -> None:
    matcher = COMPILER.compile(grammar(style))
    text = b"Calls begin with [TOOL_CALLS"
    assert matcher.try_consume_tokens(list(text)) == len(text)
    assert matcher.try_consume_tokens(list(b"]")) == 0
    assert matcher.is_accepting()


def test_control_tokens_of_a_style_are_seen() -> None:
    """A tokenizer may also have Hermes' words as control tokens."""
    special = Tokenizer()
    special.control = MappingProxyType({"<end>": 0, "<tool_call>": 253, "[ARGS]": 255})
    assert STYLES["hermes"].control(special) == {"<tool_call>"}
    assert STYLES["mistral-args"].control(TOKENIZER) == {"[TOOL_CALLS]", "[ARGS]"}
    assert STYLES["mistral-v11"].control(TOKENIZER) == {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}
    assert STYLES["llama"].control(TOKENIZER) == frozenset()


@pytest.mark.parametrize("style", STYLES)
def test_a_call_that_is_cut_short_keeps_what_is_there(style: str) -> None:
    whole, text = TEXTS[style]
    begun = whole[: whole.index('{"city": "') + 10]
    assert read(style, [begun]) == (text, [("weather", '{"city": "')], "stop")  # by a stop string
    assert read(style, [whole[: whole.index("weather") + 3]])[:2] == (text, [])


@pytest.mark.parametrize("style", SEVERAL)
def test_grammars_let_pass_what_is_read(style: str) -> None:
    whole, text = TEXTS[style]
    calls = whole.removeprefix(text)
    assert accepts(grammar(style), whole)
    assert accepts(grammar(style), calls)
    assert accepts(grammar(style), "Just text, 1 < 2.")
    assert accepts(grammar(style), "")
    must = grammar(style, tool_choice="required")
    assert accepts(must, calls)
    for other in (
        "Just text.",
        "",
        whole if text else "x",
        calls.replace('"city"', '"town"'),
        calls.replace("now", "no"),
    ):
        assert not accepts(must, other), other


@pytest.mark.parametrize("style", SEVERAL)
def test_what_may_be_called_is_what_was_chosen(style: str) -> None:
    whole, text = TEXTS[style]
    first = whole[len(text) :].partition("time.now")[0]
    one = {"type": "function", "function": {"name": "weather"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
    single = {"hermes": first.rpartition("\n<tool_call>")[0], "llama": first.rpartition("; ")[0]}
    single |= dict.fromkeys(("mistral", "mistral-v3"), first.rpartition(", ")[0] + "]")
    single |= dict.fromkeys(("mistral-v11", "mistral-args"), first.rpartition("[TOOL_CALLS]")[0])
    for choice in (one, allowed, "required"):
        assert accepts(grammar(style, tool_choice=choice), single[style]), choice
        assert accepts(grammar(style, tool_choice=choice), whole[len(text) :]) == (choice == "required")
    assert not accepts(grammar(style, tool_choice="required", parallel_tool_calls=False), whole[len(text) :])
    assert not accepts(grammar(style, parallel_tool_calls=False), whole)


def test_a_style_with_single_calls_has_one() -> None:
    """The template of such a model could not write two calls of an earlier answer."""
    two, _ = TEXTS["llama-single"]
    one = two.partition("; ")[0]
    for fields in ({}, {"tool_choice": "required"}, {"parallel_tool_calls": True}):
        assert accepts(grammar("llama-single", **fields), one)
        assert not accepts(grammar("llama-single", **fields), two)
        assert accepts(grammar("llama", **fields), two)


@pytest.mark.parametrize("style", SEVERAL)
def test_by_itself_a_model_keeps_to_the_schema_of_strict_functions_only(style: str) -> None:
    whole, _ = TEXTS[style]
    assert not accepts(grammar(style), whole.replace('"city"', '"town"'))
    assert accepts(grammar(style), whole.replace("{}", '{"any": [1]}'))
    assert not accepts(grammar(style), whole.replace("{}", "[]"))
    assert not accepts(grammar(style, tool_choice="required"), whole.replace("{}", '{"any": [1]}'))


@pytest.mark.parametrize("style", SEVERAL)
def test_structured_output_goes_beside_calls(style: str) -> None:
    whole, text = TEXTS[style]
    both = grammar(style, json_constraint({"type": "array"}, "response_format"))
    assert accepts(both, "[1, 2]")
    assert accepts(both, whole.removeprefix(text))
    assert not accepts(both, "Just text.")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", range(2))
def test_random_answers_that_must_call_are_read_and_valid(style: str, seed: int) -> None:
    rng = random.Random(seed)
    matcher = COMPILER.compile(grammar(style, tool_choice="required"))
    tokens: list[int] = []
    while not matcher.is_stopped() and len(tokens) < 2000:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        tokens.append(int(rng.choice(np.nonzero(bits[:256])[0])))
        assert matcher.consume_token(tokens[-1])
    assert matcher.is_accepting()
    text, calls, finish = read(style, [TOKENIZER.text([token for token in tokens if token])])
    assert (text, finish) == ("", "tool_calls")
    assert calls
    for name, arguments in calls:
        schema = {"weather": WEATHER, "time.now": {"maxProperties": 0}}[name]
        jsonschema.validate(json.loads(arguments), schema)


def test_ids_of_others_are_made_fit() -> None:
    def ids(style: str, *names: str) -> list[str]:
        calls = [{"id": name, "type": "function"} for name in names]
        message, *results = STYLES[style].with_ids(
            [{"role": "assistant", "content": "", "tool_calls": calls}]
            + [{"role": "tool", "content": "", "tool_call_id": name} for name in names]
        )
        assert [call["id"] for call in message["tool_calls"]] == [result["tool_call_id"] for result in results]
        return [result["tool_call_id"] for result in results]

    names = ("call_0123456789", "call_0123456788", "a", "abcdefgh1")
    for style in ("mistral", "mistral-v3", "mistral-v11", "mistral-args"):
        found = ids(style, *names)
        assert len({*found}) == 4
        assert found[3] == "abcdefgh1"
        assert all(re.fullmatch("[a-zA-Z0-9]{9}", name) for name in found)
    assert ids("hermes", *names) == [*names]


def test_tools_are_explained_where_a_format_has_none() -> None:
    body = ToolsBody.model_validate_json(json.dumps({"tools": TOOLS}))
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "é"}}}
    conversation = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Well", "tool_calls": [call, call]},
        {"role": "tool", "content": "sunny", "tool_call_id": "1"},
        {"role": "tool", "content": "rainy", "tool_call_id": "1"},
    ]
    called = '<tool_call>\n{"name": "weather", "arguments": {"city": "é"}}\n</tool_call>'
    results = "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrainy\n</tool_response>"
    words, *others = explained(conversation, body.offered)
    assert words["role"] == "system"
    assert '{"name": "time.now", "description": "Tells the time.", "parameters": {}}' in words["content"]
    assert others == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": f"Well\n{called}\n{called}"},
        {"role": "user", "content": results},
    ]
    assert explained(conversation, []) == others
    messages = explained([{"role": "system", "content": "Be brief."}, *conversation[:1]], body.offered)
    assert messages == [{"role": "system", "content": f"Be brief.\n\n{words['content']}"}, *conversation[:1]]


# Over HTTP, with a model that repeats its prompt


@pytest.fixture(scope="module")
def reciting() -> Any:
    with running(model="recite", max_model_len=2048) as live:
        yield live


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "tools": TOOLS, **fields}


def test_a_whole_answer_has_calls(reciting: Live) -> None:
    text, words = TEXTS["hermes"]
    answer = reciting.post("/v1/chat/completions", ask(text)).json()
    message = answer["choices"][0]["message"]
    assert message["content"] == words
    assert [call["type"] for call in message["tool_calls"]] == ["function"] * 2
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [{"name": "weather", "arguments": ARGUMENTS}, {"name": "time.now", "arguments": "{}"}]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    only = reciting.post("/v1/chat/completions", ask(text.removeprefix(words))).json()["choices"][0]["message"]
    assert only["content"] == ""
    plain = reciting.post("/v1/chat/completions", ask("Hello")).json()["choices"][0]
    assert plain["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert plain["finish_reason"] == "stop"
    none = reciting.post("/v1/chat/completions", ask(text, tool_choice="none")).json()["choices"][0]
    assert none["message"] == {"role": "assistant", "content": text, "refusal": None}


def test_a_stream_has_deltas_with_ids_and_index(reciting: Live) -> None:
    text, words = TEXTS["hermes"]
    content, calls, finish = "", [], []
    with reciting.http.stream("POST", "/v1/chat/completions", json=ask(text, stream=True, logprobs=True)) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    scores = 0
    for chunk in map(json.loads, lines):
        choice = chunk["choices"][0]
        delta, finish = choice["delta"], [*finish, choice["finish_reason"]]
        scores += len((choice["logprobs"] or {"content": []})["content"])
        content += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(calls):
                assert {*call} == {"index", "id", "type", "function"}
                assert (call["type"], call["function"]["arguments"]) == ("function", "")
                calls.append(call)
            else:
                assert {*call} == {"index", "function"}
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    assert content == words
    functions = [call["function"] for call in calls]
    assert functions == [{"name": "weather", "arguments": ARGUMENTS}, {"name": "time.now", "arguments": "{}"}]
    assert calls[0]["id"] != calls[1]["id"]
    assert all(re.fullmatch("call_[0-9a-f]{24}", call["id"]) for call in calls)
    assert finish[-1] == "tool_calls"
    assert set(finish[:-1]) == {None}
    assert scores == len(text)


@pytest.mark.parametrize(
    ("agent", "fields", "later"),
    [
        ("OpenAI/JS 7.57.0", {}, {"arguments"}),
        ("speakeasy-sdk/python 3.7.0 2.935.1 1.0.0 mistralai", {}, {"arguments", "name"}),
        ("OpenAI/JS 7.57.0", {"reasoning_format": "mistral"}, {"arguments", "name"}),
    ],
)
def test_later_pieces_of_a_call_have_a_name_for_mistrals_packages(
    reciting: Live, agent: str, fields: dict[str, Any], later: set[str]
) -> None:
    """Mistral's packages refuse a piece without a name, and OpenAI's package for Node one with an empty name."""
    body = ask(TEXTS["hermes"][0], **fields)
    chunks = reciting.events("/v1/chat/completions", body, headers={"user-agent": agent})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    functions = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert [each["name"] for each in functions if each.get("name")] == ["weather", "time.now"]
    assert {frozenset(each) for each in functions if not each.get("name")} == {frozenset(later)}


def test_calls_of_earlier_messages_go_to_the_model(reciting: Live) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "x"}'}, "index": 0}
    call["function"] |= {"parsed_arguments": {"city": "x"}}  # the openai package's
    messages = [
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "parsed": {"a": 1}},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
    ]
    answer = reciting.post("/v1/chat/completions", {"messages": messages, "tools": TOOLS}).json()
    assert answer["choices"][0]["message"]["content"] == "<tool_response>\nsunny\n</tool_response>"


USER = {"role": "user", "content": "hi"}


def called(arguments: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function", ["required"]),
        ({"tools": [{"type": "retrieval", "function": {"name": "a"}}]}, "tools[0].type", ["function", "retrieval"]),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", ["a b"]),
        ({"tools": TOOLS * 65}, "tools", ["128", "130"]),
        ({"tools": TOOLS, "tool_choice": "must"}, "tool_choice", ["auto", "any", "must"]),
        ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", ["tools"]),
        ({"tools": TOOLS, "ignore_eos": True}, "ignore_eos", ["grammar"]),
        ({"messages": [USER, called('{"a": "\\ud83d"}')]}, None, ["JSON object", "ud83d"]),
        ({"messages": [USER, called('{"a": NaN}')]}, None, ["JSON object", "NaN"]),
        ({"messages": [USER, called('{"a":' + "[" * 400 + "]" * 400 + "}")]}, None, ["JSON object"]),
        ({"messages": [USER, called("{}")], "continue_final_message": True}, "messages", ["calls functions"]),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id", ["tool"]),
        ({"messages": [{**USER, "tool_call_id": "a"}]}, "messages[0].tool_call_id", ["tool"]),
        ({"messages": [USER, called("{}") | USER]}, None, ["assistant"]),
        ({"messages": [USER, called("[1]")]}, None, ["JSON object", "[1]"]),
        ({"messages": [USER, called("{")]}, None, ["JSON object"]),
    ],
    ids=lambda value: str(value)[:70],
)
def test_what_is_wrong_with_tools_is_named(
    live: Live, fields: dict[str, Any], param: str | None, words: list[str]
) -> None:
    error = refused(live, "/v1/chat/completions", {"messages": [USER], "max_tokens": 3, **fields})
    assert param is None or error["param"] == param, error
    assert all(word in error["message"] for word in words), error


def test_parameters_that_cannot_be_enforced_pass_where_they_need_not_be(live: Live) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}]
    assert live.chat("hi", max_tokens=3, tools=tools)["usage"]["completion_tokens"] == 3
