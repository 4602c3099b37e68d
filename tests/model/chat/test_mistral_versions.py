"""Conversations in every version of Mistral's chat format. Oracles: mistral-common, the templates that it generates."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mistral_common.exceptions import MistralCommonException
from mistral_common.integrations.chat_templates.chat_templates import convert_tokenizer_to_chat_template
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from model.chat.formats import load_chat
from model.chat.jinja import JinjaChat
from model.chat.mistral import CALL_STYLES, MistralChat
from model.errors import ModelError, ParameterError
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from tests.model.chat.versions import FILES, write_directory
from tests.model.tokenizers.tekken_files import REASONING, SCHEMAS, SPECIAL, write_tekken

Json = dict[str, Any]


class Subject(NamedTuple):
    """A model directory: our chat format and mistral-common's own reading of the same file."""

    name: str
    file: Path
    tokenizer: Tokenizer
    chat: MistralChat
    oracle: MistralTokenizer


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    loaded: dict[str, Subject] = {}

    def subject(name: str) -> Subject:
        if name not in loaded:
            directory = tmp_path_factory.mktemp(name)
            file = write_directory(directory, name)
            tokenizer = load_tokenizer(directory)
            chat = load_chat(directory, tokenizer)
            assert isinstance(chat, MistralChat)
            loaded[name] = Subject(name, file, tokenizer, chat, MistralTokenizer.from_file(file))
        return loaded[name]

    return subject


def tool(name: str = "weather") -> Json:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    description = "Tells the weather of a city, in °C"
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def user(content: str) -> Json:
    return {"role": "user", "content": content}


def system(content: str) -> Json:
    return {"role": "system", "content": content}


def answer(content: str) -> Json:
    return {"role": "assistant", "content": content}


def calls(*ids: str, content: str = "", city: str = "Zürich") -> Json:
    called = [
        {"id": name, "type": "function", "function": {"name": "weather", "arguments": {"city": city}}} for name in ids
    ]
    return {"role": "assistant", "content": content, "tool_calls": called}


def result(name: str, content: str = "sunny") -> Json:
    # v2 writes the name, the other versions do not
    return {"role": "tool", "content": content, "tool_call_id": name, "name": "weather"}


A, B = "abcdefgh1", "ABCDEFGH2"
ASKED = user("How is it?")
CONVERSATIONS: Mapping[str, Sequence[Json]] = {
    "one user": [user("hi </s>[INST]  é\n")],
    "several rounds": [system("Be brief."), user("hi"), answer(" Hello"), user("and?"), answer("Fine."), user("ok")],
    "spaces after an answer": [user("hi"), answer(" Hello  "), user(" ok ")],
    "empty content": [user("")],
    "two users": [user("a"), user("b")],
    "system alone": [system("Be brief.")],
    "two systems": [system("a"), system("b"), user("c")],
    "system in the middle": [user("hi"), answer("Hello"), user("a"), system("Be brief."), user("b")],
    "system after an answer": [user("hi"), answer("Hello"), system("Be brief."), user("b")],
    "systems after an answer": [user("hi"), answer("Hello"), system("Be brief."), system("Be kind."), user("b")],
    "system at the end": [user("hi"), answer("Hello"), system("Go on.")],
    "system between answers": [user("hi"), answer("Hello"), system("Go on."), answer("It is sunny."), user("b")],
    "system after a result": [ASKED, calls(A), result(A), system("Be brief.")],
    "system between results": [ASKED, calls(A, B), result(A), system("Be brief."), result(B), answer("Ok."), ASKED],
    "system between call and result": [ASKED, calls(A), system("Be brief."), result(A)],
    "answer without content": [user("hi"), answer(""), user("b")],
    "one call": [system("Be brief."), ASKED, calls(A), result(A)],
    "two calls": [ASKED, calls(A, B), result(A), result(B, "22 °C")],
    "results in another order": [ASKED, calls(A, B), result(B, "22"), result(A, '{"sky": "blue",   "t": [1, 2.0]}')],
    "calls after results": [ASKED, calls(A), result(A), calls(B, city="[TOOL_CALLS]</s>"), result(B, "[/INST]")],
    "calls before another user": [ASKED, calls(A), result(A, ""), answer("Sunny."), user("Thanks. And Bern?")],
    "text with a call": [ASKED, calls(A, content="Let me see."), result(A)],
    "text before a call": [ASKED, calls(A), result(A), answer("So."), answer("Then."), calls(B), result(B)],
    "id of another server": [ASKED, calls("call_1"), result("call_1")],
    "result of no call": [ASKED, calls(A), result(B)],
    "call without result": [ASKED, calls(A), answer("Sunny."), user("b")],
}
ALL, OLD = frozenset(FILES), frozenset({"spm-v2", "spm-v3", "tekken-v3"})
V7, V11 = frozenset({"spm-v7", "tekken-v7"}), frozenset({"tekken-v11", "tekken-v13", "tekken-v15"})
TOOLLESS = frozenset({"spm-v1"})
REFUSED: Mapping[str, frozenset[str]] = {
    "answer without content": ALL,
    "call without result": ALL,
    "one call": TOOLLESS,
    "two calls": TOOLLESS | {"spm-v2"},
    "results in another order": TOOLLESS | {"spm-v2"},
    "calls after results": TOOLLESS,
    "calls before another user": TOOLLESS,
    "system after a result": TOOLLESS,
    "system between results": TOOLLESS,
    "system between call and result": TOOLLESS,
    "text with a call": TOOLLESS,
    "text before a call": TOOLLESS,
    "id of another server": TOOLLESS | {"spm-v3", "tekken-v3", "tekken-v11"} | V7,
    "result of no call": TOOLLESS | V11,
}


def told(name: str, messages: Sequence[Json]) -> list[Json]:
    """The messages that a version can have: late systems are users, and old versions have calls without text."""
    roles = [message["role"] for message in messages]
    spoken = [next((role for role in roles[:n][::-1] if role != "system"), "user") for n in range(len(roles))]
    late = [role == "system" and before in ("assistant", "tool") for role, before in zip(roles, spoken, strict=True)]
    rewritten = [
        (message | {"role": "user"} if is_late else message) for message, is_late in zip(messages, late, strict=True)
    ]
    for _ in rewritten:  # results stay beside their calls
        for n in range(len(rewritten) - 1):
            if late[n] and roles[n + 1] == "tool":
                for row in (rewritten, late, roles):
                    row[n : n + 2] = row[n : n + 2][::-1]
    if name in TOOLLESS | OLD:
        for n in reversed(range(len(rewritten))):
            if rewritten[n].get("tool_calls"):
                rewritten[n] = rewritten[n] | {"content": ""}
            elif rewritten[n]["role"] == "assistant" and n + 1 < len(rewritten) and rewritten[n + 1].get("tool_calls"):
                del rewritten[n]
    return rewritten


def theirs(subject: Subject, messages: Sequence[Json], **options: Any) -> list[int] | None:
    """mistral-common's ids, None if it refuses the conversation."""
    copied = json.loads(json.dumps(messages))
    for message in copied:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    try:
        request = ChatCompletionRequest.from_openai(copied, **options)
        tokens: list[int] = subject.oracle.encode_chat_completion(request).tokens
        return tokens
    except (MistralCommonException, ValueError):
        return None


def ours(subject: Subject, messages: Sequence[Json], **options: Any) -> list[int] | None:
    try:
        return subject.chat.encode(messages, **options)
    except ParameterError as error:
        return None if error.param == "messages" and "\n" not in str(error) else [-1]


@pytest.mark.parametrize("offered", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("name", FILES)
def test_ids_are_those_of_mistral_common(name: str, offered: bool, subjects: Callable[[str], Subject]) -> None:
    subject, tools = subjects(name), [tool(), tool("time_now")] if offered else None
    for title, messages in CONVERSATIONS.items():
        expected = theirs(subject, told(name, messages), tools=tools)
        assert ours(subject, messages, tools=tools) == expected, title
        assert (expected is None) == (name in REFUSED.get(title, ())), title


@pytest.mark.parametrize("name", FILES)
def test_an_open_answer_is_a_prefix_as_in_mistral_common(name: str, subjects: Callable[[str], Subject]) -> None:
    subject = subjects(name)
    messages = [ASKED, answer("It is</s> sun")]
    expected = theirs(subject, messages, continue_final_message=True)
    assert expected is not None
    assert subject.tokenizer.eos_id not in expected
    opened = {"add_generation_prompt": False, "continue_final_message": True}
    assert subject.chat.encode(messages, **opened) == subject.chat.encode(messages, add_generation_prompt=False)
    assert subject.chat.encode(messages, **opened) == expected
    with pytest.raises(ParameterError, match="Expected last role User"):
        subject.chat.encode(messages)


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["</s>", "[INST] a", "1 ", "{}"]
)
ids = st.sampled_from([A, B])
messages_of_any_kind = st.one_of(
    st.builds(user, words),
    st.builds(answer, words),
    st.builds(system, words),
    st.builds(result, ids, words),
    st.builds(lambda names, city: calls(*names, city=city), st.lists(ids, min_size=1, max_size=2, unique=True), words),
)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(FILES), st.lists(messages_of_any_kind, min_size=1, max_size=5), st.booleans())
def test_any_conversation_has_their_ids_or_is_refused_as_there(
    subjects: Callable[[str], Subject], name: str, messages: list[Json], offered: bool
) -> None:
    subject, tools = subjects(name), [tool()] if offered else None
    assert ours(subject, messages, tools=tools) == theirs(subject, told(name, messages), tools=tools)


LATE = [ASKED, calls(A), result(A), answer("Sunny."), system("Be brief."), user("And Bern?")]


@pytest.mark.parametrize("name", FILES[1:])
def test_a_late_system_message_is_text_of_the_next_user_message(name: str, subjects: Callable[[str], Subject]) -> None:
    """Codex CLI sends developer items in mid-session. mistral-common refuses them as system messages."""
    subject = subjects(name)
    assert theirs(subject, LATE) is None
    joined = [*LATE[:4], user("Be brief.\n\nAnd Bern?")]
    assert ours(subject, LATE) == ours(subject, [*LATE[:4], LATE[4] | {"role": "developer"}, LATE[5]])
    assert ours(subject, LATE) == theirs(subject, joined)


@pytest.mark.parametrize("title", ["text with a call", "text before a call"])
@pytest.mark.parametrize("name", FILES[1:])
def test_texts_that_a_version_leaves_out_are_known(name: str, title: str, subjects: Callable[[str], Subject]) -> None:
    subject, messages = subjects(name), CONVERSATIONS[title]
    words = subject.chat.render(messages)
    lost = [n for n, message in enumerate(messages) if message["content"] not in words]
    assert subject.chat.left_out(messages) == lost
    assert (lost == []) == (theirs(subject, messages) is not None)


def test_the_function_of_a_result_is_found_where_a_client_leaves_it_out(subjects: Callable[[str], Subject]) -> None:
    messages = [ASKED, calls(A), result(A)]
    unnamed = [{key: value for key, value in message.items() if key != "name"} for message in messages]
    assert ours(subjects("spm-v2"), unnamed) == theirs(subjects("spm-v2"), messages) is not None


def test_settings_of_v15_are_always_written(subjects: Callable[[str], Subject]) -> None:
    subject = subjects("tekken-v15")
    for wanted, written in (({}, "none"), ({"reasoning_effort": None}, "none"), ({"reasoning_effort": "high"}, "high")):
        ids = subject.chat.encode([ASKED], variables=wanted)
        assert ids == theirs(subject, [ASKED], **wanted)
        begin = f'<s>[MODEL_SETTINGS]{{"reasoning_effort": "{written}"}}[/MODEL_SETTINGS][INST]'
        assert subject.tokenizer.decode(ids, keep_control=True).startswith(begin)
    assert subject.chat.efforts == ("none", "high")


SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"const": "[/MODEL_SETTINGS] é"}}}
"""Its keys are in another order than that of the alphabet, and one value has the name of a control token."""


@pytest.fixture
def telling(tmp_path: Path) -> Subject:
    """A tokenizer file that puts the schema of the answer into the prompt."""
    builders = {"reasoning_effort": REASONING, "json_schema": SCHEMAS}
    file = write_tekken(tmp_path, "v15", model_settings_builder=builders)
    tokenizer = load_tokenizer(tmp_path)
    return Subject("tekken-v15", file, tokenizer, MistralChat(file, tokenizer), MistralTokenizer.from_file(file))


@pytest.mark.parametrize("schema", [SCHEMA, {}])
@pytest.mark.parametrize("offered", [False, True], ids=["plain", "tools"])
def test_a_schema_is_told_as_mistral_common_tells_it(schema: Json, offered: bool, telling: Subject) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True}}
    tools = [tool()] if offered else None
    for messages in ([ASKED], [system("Be brief."), ASKED, calls(A), result(A)]):
        ids = telling.chat.encode(messages, tools=tools, schema=schema, variables={"reasoning_effort": "high"})
        assert ids == theirs(telling, messages, tools=tools, response_format=asked, reasoning_effort="high")
        assert telling.chat.encode(messages, tools=tools) == theirs(telling, messages, tools=tools) != ids


def test_a_schema_stands_before_the_effort_with_its_keys_in_order(telling: Subject) -> None:
    ids = telling.chat.encode([ASKED], schema=SCHEMA)
    settings = telling.tokenizer.decode(ids, keep_control=True).partition("[INST]")[0]
    assert settings == (
        '<s>[MODEL_SETTINGS]{"json_schema": {"type": "object", "properties": {"z": {"type": "string"}, '
        '"a": {"const": "[/MODEL_SETTINGS] é"}}}, "reasoning_effort": "none"}[/MODEL_SETTINGS]'
    )
    assert ids.count(telling.tokenizer.control["[/MODEL_SETTINGS]"]) == 1


def test_a_schema_of_another_draft_is_refused(telling: Subject) -> None:
    deep: Json = {}
    for _ in range(5_000):
        deep = {"not": deep}
    for wrong, words in (
        ({"type": 1}, "1 is not valid"),
        ({"exclusiveMinimum": True}, "True is not"),
        (deep, "recurs"),
    ):
        with pytest.raises(ParameterError, match=f"takes JSON schemas of Draft 7: .*{words}") as caught:
            telling.chat.encode([ASKED], schema=wrong)
        assert caught.value.param == "schema"


def test_a_file_that_does_not_say_so_tells_no_schema(subjects: Callable[[str], Subject], telling: Subject) -> None:
    assert telling.chat.tells_schema
    for name in FILES:
        chat = subjects(name).chat
        assert not chat.tells_schema
        assert chat.encode([ASKED], schema={"type": 1}) == chat.encode([ASKED])


def test_a_template_tells_the_schema_as_its_tokenizer_file_does(telling: Subject, tmp_path: Path) -> None:
    """Repositories in Hugging Face's form have the template that mistral-common generates."""
    template = convert_tokenizer_to_chat_template(telling.file)
    chat = load_chat(tmp_path, telling.tokenizer, template)
    assert isinstance(chat, JinjaChat)
    assert chat.tells_schema
    for schema in (None, SCHEMA):
        assert chat.encode([ASKED], schema=schema) == telling.chat.encode([ASKED], schema=schema)


@pytest.mark.parametrize(
    ("name", "variables", "param", "message"),
    [
        (
            "tekken-v15",
            {"reasoning_effort": "low"},
            "reasoning_effort",
            'reasoning_effort of this model must be one of none, high, got "low"',
        ),
        (
            "tekken-v15",
            {"reasoning_effort": ["high"]},
            "reasoning_effort",
            'reasoning_effort of this model must be one of none, high, got ["high"]',
        ),
        (
            "tekken-v15",
            {"thinking": True},
            "chat_template_kwargs",
            'chat_template_kwargs has "thinking", this model\'s tokenizer v15 knows: reasoning_effort (none, high)',
        ),
        (
            "tekken-v13",
            {"reasoning_effort": "high"},
            "reasoning_effort",
            'chat_template_kwargs has "reasoning_effort", this model\'s tokenizer v13 knows: none',
        ),
    ],
)
def test_settings_that_are_refused(
    name: str, variables: Json, param: str, message: str, subjects: Callable[[str], Subject]
) -> None:
    with pytest.raises(ParameterError) as caught:
        subjects(name).chat.encode([ASKED], variables=variables)
    assert (caught.value.param, str(caught.value)) == (param, message)


def test_a_tool_that_the_format_refuses_is_named(subjects: Callable[[str], Subject]) -> None:
    for wrong in (tool("time.now"), {"type": "function", "function": {"name": "f", "parameters": {"type": 1}}}):
        with pytest.raises(ParameterError, match="refuses these tools: ") as caught:
            subjects("tekken-v13").chat.encode([ASKED], tools=[wrong])
        assert caught.value.param == "tools"
        assert "\n" not in str(caught.value)


def test_long_white_space_and_deep_json_are_refused(subjects: Callable[[str], Subject]) -> None:
    """tiktoken's search for words needs too much memory for so many spaces."""
    subject = subjects("tekken-v3")
    with pytest.raises(ParameterError, match="refuses these messages"):
        subject.chat.encode([user(" " * 1_000_000)])
    with pytest.raises(ParameterError, match="maximum recursion depth"):
        subject.chat.encode([ASKED, calls(A), result(A, "[" * 100_000)])


@pytest.mark.parametrize("file", ["tekken.json", "tokenizer.model.v3"])
def test_a_directory_in_hugging_faces_layout_speaks_it_too(file: str, tmp_path: Path) -> None:
    written = write_directory(tmp_path, "tekken-v11" if file == "tekken.json" else "spm-v3")
    assert written.name == file
    (tmp_path / "params.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    chat = load_chat(tmp_path, load_tokenizer(tmp_path))
    assert isinstance(chat, MistralChat)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert not isinstance(load_chat(tmp_path, load_tokenizer(tmp_path)), MistralChat)


def test_a_template_with_a_place_for_a_date_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """That of Mistral Small 4 says `{today}` to the model. mistral-common has no default system prompt."""
    write_directory(tmp_path, "tekken-v15")
    system = "It is {today}, {yesterday} was the day before."
    path = tmp_path / "chat_template.jinja"
    path.write_text(f"{{{{ '{system}' }}}}{{{{ messages[0].content }}}}")
    tokenizer = load_tokenizer(tmp_path)
    chat = load_chat(tmp_path, tokenizer)
    assert isinstance(chat, MistralChat)
    assert "today" not in tokenizer.decode(chat.encode([{"role": "user", "content": "Hi"}]))
    assert "tekken.json gives the format" in caplog.text
    assert not isinstance(load_chat(tmp_path, tokenizer, path.read_text()), MistralChat), "it was asked for"
    assert "the model reads that; --chat-template names another" in caplog.text
    caplog.clear()
    path.write_text(f"{{{{ '{system}'.replace('{{today}}', strftime_now('%d')) }}}}")
    assert not isinstance(load_chat(tmp_path, tokenizer), MistralChat)
    assert not caplog.text


def test_tokenizer_model_alone_says_nothing_in_hugging_faces_layout(tmp_path: Path) -> None:
    write_directory(tmp_path, "spm-v1")
    assert load_chat(tmp_path, load_tokenizer(tmp_path)) is not None
    (tmp_path / "params.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    assert load_chat(tmp_path, load_tokenizer(tmp_path)) is None


def test_two_files_that_disagree_are_refused(tmp_path: Path, subjects: Callable[[str], Subject]) -> None:
    write_tekken(tmp_path, "v13", special=["<unk>", "<s>", "</s>", "[/INST]", "[INST]", *SPECIAL["v13"][5:]])
    with pytest.raises(ModelError) as caught:
        MistralChat(tmp_path / "tekken.json", subjects("tekken-v13").tokenizer)
    assert str(caught.value) == (
        "[INST] is token 4 in tekken.json and 3 in tokenizer.json: they are files of two models, remove the wrong one"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_settings_builder": None}, "tekken.json has no model_settings_builder, which a tokenizer v15 needs"),
        ({"model_settings_builder": {"reasoning_effort": 1}}, "tekken.json cannot be read by mistral-common: "),
        ({"special_tokens": None}, "tekken.json cannot be read by mistral-common: Special tokens not found"),
        ({"config": {"version": "v99"}}, "tekken.json cannot be read by mistral-common: Unknown version: v99"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    change: Json, message: str, tmp_path: Path, subjects: Callable[[str], Subject]
) -> None:
    write_tekken(tmp_path, "v15", **change)
    with pytest.raises(ModelError) as caught:
        MistralChat(tmp_path / "tekken.json", subjects("tekken-v15").tokenizer)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_version_newer_than_noria_is_refused_by_name(
    tmp_path: Path, subjects: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later mistral-common reads files of later versions. Here v15 is one that Noria does not know."""
    known = {version: style for version, style in CALL_STYLES.items() if version != "v15"}
    monkeypatch.setattr("model.chat.mistral.CALL_STYLES", known)
    write_tekken(tmp_path, "v15")
    with pytest.raises(ModelError) as caught:
        MistralChat(tmp_path / "tekken.json", subjects("tekken-v15").tokenizer)
    assert str(caught.value) == ("tekken.json has the tokenizer version v15; Noria supports v1, v2, v3, v7, v11, v13")
