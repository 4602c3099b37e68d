"""Conversations whose order of roles a template refuses. Oracles: mistral-common's merging, transformers' rendering."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mistral_common.protocol.instruct.normalize import InstructRequestNormalizerV7
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from transformers import PreTrainedTokenizerBase

from model.chat.formats import ChatFormat, load_chat
from model.chat.jinja import JinjaChat
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from tests.model.chat.published import ANSWER, CALL, CALLED, FORMATS, SYSTEM, TOOL, USER, source, theirs, with_system
from tests.model.chat.versions import write_directory

Json = dict[str, Any]
ALTERNATING = ("cohere", "gemma", "gemma3", "llama-2", "mistral-7b-v0.1", "mistral-7b-v0.3")
ROLES = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}


def spoken(roles: str) -> list[Json]:
    """A message of each role, with a text of its own."""
    return [{"role": ROLES[role], "content": f"Text {number}."} for number, role in enumerate(roles)]


def chat_of(name: str, directory: Path, tokenizer: Tokenizer) -> ChatFormat:
    chat = load_chat(directory, tokenizer, source(name))
    assert chat is not None
    return chat


def normal(messages: Sequence[Json]) -> list[Json]:
    """The messages with late systems as users and neighbours merged by mistral-common."""
    start = next((n for n, message in enumerate(messages) if message["role"] not in ("system", "developer")), 0)
    early = "\n\n".join(message["content"] for message in messages[:start])
    late = [{**m, "role": "user"} if m["role"] in ("system", "developer") else m for m in messages[start:]]
    request: Any = ChatCompletionRequest.from_openai(late)
    merged = InstructRequestNormalizerV7.normalizer().from_chat_completion_request(request).messages
    told = [{"role": message.role, "content": message.content} for message in merged]
    return [*([{"role": "system", "content": early}] if early else []), *told]


@pytest.mark.parametrize("roles", ["uu", "suu", "ssu", "uaau", "uasu", "sudau", "usu", "uausdu", "uas", "suuauusaausu"])
@pytest.mark.parametrize("name", ALTERNATING)
def test_neighbours_are_merged_and_late_systems_are_users(
    name: str, roles: str, directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    messages = spoken(roles)
    assert chat_of(name, directory, tokenizer).encode(messages) == theirs(oracle, name, normal(messages))


@pytest.mark.parametrize("roles", ["uu", "uaau", "uasu", "usu", "ssu"])
@pytest.mark.parametrize("name", ["chatml", "qwen2_5", "zephyr"])
def test_a_template_that_refuses_nothing_gets_the_messages_as_they_are(
    name: str, roles: str, directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    messages = spoken(roles)
    assert chat_of(name, directory, tokenizer).encode(messages) == theirs(oracle, name, messages)


@pytest.mark.parametrize(("roles", "joined"), [("uu", []), ("suu", [1]), ("ssuu", [2, 1]), ("uuasu", [4]), ("sau", [])])
def test_only_the_text_of_a_system_message_is_merged_where_a_template_takes_none(
    roles: str, joined: list[int], directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    messages = told = spoken(roles)
    for index in joined:
        joint = "\n\n".join(message["content"] for message in told[index - 1 : index + 1])
        told = [*told[: index - 1], {"role": "user", "content": joint}, *told[index + 1 :]]
    told = [{**message, "role": message["role"].replace("system", "user")} for message in told]
    assert chat_of("phi-3-mini", directory, tokenizer).encode(messages) == theirs(oracle, "phi-3-mini", told)


def test_a_system_message_that_a_template_takes_first_only_is_a_user_message_of_its_own(
    directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    messages = spoken("suasu")
    told = [*messages[:3], {**messages[3], "role": "user"}, messages[4]]
    assert chat_of("qwen3_8", directory, tokenizer).encode(messages) == theirs(oracle, "qwen3_8", told)


@pytest.mark.parametrize("late", ["u", "s", "us"])
def test_results_are_beside_their_calls_and_a_user_after_them_follows_an_empty_answer(
    late: str, directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    """Claude Code writes text after results; Mistral's templates count users and answers, but no results."""
    name = "mistral-7b-v0.3"
    chat, (extra, *_) = chat_of(name, directory, tokenizer), normal(spoken(late))
    told = [*CALLED, {"role": "assistant", "content": ""}, extra]
    for messages in ([*CALLED, *spoken(late)], [*CALLED[:2], *spoken(late.replace("u", "s")), CALLED[2]]):
        assert chat.encode(messages, tools=[TOOL]) == theirs(oracle, name, told, tools=[TOOL])


@pytest.mark.parametrize("before", [[], [SYSTEM]], ids=["nothing", "system"])
def test_a_first_user_message_after_a_result_follows_no_answer(
    before: list[Json], directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    """A client that trims its history may begin with a call."""
    name = "mistral-7b-v0.3"
    messages = [*before, *CALLED[1:], USER, *CALLED[1:], ANSWER, USER]
    ids = chat_of(name, directory, tokenizer).encode(messages, tools=[TOOL])
    assert ids == theirs(oracle, name, messages, tools=[TOOL])


def test_calls_of_neighbours_are_calls_of_one_message(directory: Path, tokenizer: Tokenizer) -> None:
    chat = chat_of("mistral-7b-v0.3", directory, tokenizer)
    other = {**CALL, "id": "ABCDEFGH2"}
    results = [{"role": "tool", "content": "1", "tool_call_id": call["id"]} for call in (CALL, other)]
    apart = [CALLED[0], CALLING, {**CALLING, "tool_calls": [other]}, *results]
    assert chat.render(apart) == chat.render([CALLED[0], {**CALLING, "tool_calls": [CALL, other]}, *results])


def test_a_last_message_that_continues_is_merged_too(directory: Path, tokenizer: Tokenizer) -> None:
    chat = chat_of("gemma", directory, tokenizer)
    opened = chat.render(spoken("uaa"), add_generation_prompt=False, continue_final_message=True)
    assert opened.endswith("model\nText 1.\n\nText 2.")


TEXT = "Let me see."


@pytest.mark.parametrize("name", [name for name, known in FORMATS.items() if known.calls])
def test_texts_beside_calls_that_a_template_leaves_out_are_known(
    name: str, directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    messages = [USER, {**CALLED[1], "content": TEXT}, *CALLED[2:]]
    written = TEXT in oracle.decode(theirs(oracle, name, messages, tools=[TOOL]))
    chat = chat_of(name, directory, tokenizer)
    assert chat.left_out(messages, [TOOL]) == ([] if written else [1])
    assert chat.left_out(CALLED) == chat.left_out([USER, {**CALLED[1], "content": " \n"}, *CALLED[2:]]) == []


@pytest.mark.parametrize("name", ["llama3_1", "llama3_2"])
def test_a_text_that_a_template_writes_with_the_tools_is_not_named(
    name: str, directory: Path, tokenizer: Tokenizer
) -> None:
    """Llama's template writes the text of the first message after the tools, whatever its role."""
    chat, messages = chat_of(name, directory, tokenizer), [SYSTEM, {**CALLED[1], "content": TEXT}, CALLED[2]]
    for tools, left in (([TOOL], []), (None, [1])):
        assert (TEXT in chat.render(messages, tools=tools)) == (not left)
        assert chat.left_out(messages, tools) == left


def test_the_text_of_a_neighbour_of_calls_is_left_out_where_they_are_merged(
    directory: Path, tokenizer: Tokenizer
) -> None:
    messages = [USER, {**ANSWER, "content": TEXT}, *CALLED[1:]]
    for name in ("mistral-7b-v0.3", "llama3_1"):
        chat = chat_of(name, directory, tokenizer)
        assert chat.left_out(messages) == ([] if TEXT in chat.render(messages) else [1])


HELLO = {"role": "user", "content": "Hello."}
ROUNDS = {
    "ordinary": [SYSTEM, HELLO, ANSWER, USER],
    "results": [SYSTEM, *CALLED],
    "second call": [SYSTEM, HELLO, ANSWER, *CALLED, *CALLED[1:]],
    "answer": [SYSTEM, *CALLED, ANSWER],
}


@pytest.mark.parametrize("messages", ROUNDS.values(), ids=ROUNDS)
def test_a_system_message_is_in_the_last_user_message_of_each_round(
    messages: list[Json], directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    """The template alone writes it only if the last message is a user's."""
    name = "mistral-7b-v0.3"
    last = max(n for n, message in enumerate(messages) if message["role"] == "user")
    ids = chat_of(name, directory, tokenizer).encode(messages, tools=[TOOL])
    assert ids == theirs(oracle, name, with_system(messages, last), tools=[TOOL])
    assert SYSTEM["content"] in oracle.decode(ids)


@pytest.mark.parametrize("others", [[], [ANSWER], [ANSWER, USER]], ids=["alone", "answer", "answer and user"])
@pytest.mark.parametrize("name", ["gemma3", "llama-2", "mistral-7b-v0.3"])
def test_a_system_message_before_no_user_message_is_one(
    others: list[Json], name: str, directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    """The templates leave it out, or refuse the answer."""
    told = [{**SYSTEM, "role": "user"}, *others]
    assert chat_of(name, directory, tokenizer).encode([SYSTEM, *others]) == theirs(oracle, name, told)


def test_a_system_message_stays_one_before_answers_where_a_template_takes_it(
    directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    for name, messages in (("qwen3_8", [SYSTEM, ANSWER, USER]), ("cohere", [SYSTEM])):
        assert chat_of(name, directory, tokenizer).encode(messages) == theirs(oracle, name, messages)


@pytest.mark.parametrize("results", [CALLED[1:], [*CALLED[1:], *CALLED[1:]], [*CALLED[1:], ANSWER]])
def test_a_system_message_before_calls_without_a_user_is_a_user_message(
    results: list[Json], directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    """Mistral's template leaves it out, or refuses the answer."""
    name = "mistral-7b-v0.3"
    told = [{**SYSTEM, "role": "user"}, *results]
    assert chat_of(name, directory, tokenizer).encode([SYSTEM, *results]) == theirs(oracle, name, told)


@pytest.mark.parametrize("file", ["spm-v3", "tekken-v3"])
@pytest.mark.parametrize("kind", ["ordinary", "results", "second call"])
def test_rounds_have_the_words_of_mistral_common(kind: str, file: str, tmp_path: Path) -> None:
    """Nemo's template has no spaces after control tokens. Templates do not quote results, so that here is a number."""
    path = write_directory(tmp_path, file)
    words, tokenizer = source("mistral-7b-v0.3"), load_tokenizer(tmp_path)
    words = words.replace("] ", "]").replace("{{- ' ' ~ ", "{{- ") if file == "tekken-v3" else words
    chat = JinjaChat(words, tokenizer, {"bos_token": "<s>", "eos_token": "</s>"})
    messages = [{**m, "content": "22" if m["role"] == "tool" else m["content"].strip()} for m in ROUNDS[kind]]
    as_text = json.loads(json.dumps(messages), object_hook=_with_text)
    request: Any = ChatCompletionRequest.from_openai(as_text, tools=[TOOL])
    expected = MistralTokenizer.from_file(path).encode_chat_completion(request).tokens
    assert chat.render(messages, tools=[TOOL]) == tokenizer.decode(expected, keep_control=True)


def _with_text(value: Json) -> Json:
    return {key: json.dumps(item, ensure_ascii=False) if key == "arguments" else item for key, item in value.items()}
