"""Request fields beyond OpenAI's, on both endpoints."""

import json
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from service.api.openai.chat import ChatBody
from service.api.openai.completions import CompletionBody
from service.schema.conversation import Message
from service.schema.fields import Body
from service.schema.generation import StreamOptions
from tests.fakes import END, IntegerTokenizer
from tests.service.api.streams import chat_stream, ending_prompt, rendered, stream, texts
from tests.service.live import Live, answer, begun, busy, idle, running
from tests.waiting import eventually


@pytest.mark.parametrize(("kind", "least"), [(CompletionBody, {"prompt": "a"}), (ChatBody, {"messages": []})])
def test_null_means_default_in_every_field(kind: type[Body], least: dict[str, Any]) -> None:
    names = {*kind.model_fields, *kind.passing()} - least.keys()
    body = kind.model_validate_json(json.dumps(least | dict.fromkeys(names)))
    assert body.model_dump(include=set(kind.model_fields)) == kind(**least).model_dump()


def test_null_and_empty_extras_in_a_message() -> None:
    extras = {"refusal": None, "annotations": [], "audio": None, "name": None, "function_call": None, "tool_calls": []}
    extras |= {"parsed": {"x": 1}, "reasoning": None, "thinking_blocks": None, "images": []}
    assert Message(role="user", content="x", **extras).plain("messages[0]") == {"role": "user", "content": "x"}
    assert Message(role="user", content="x", name="Ann").plain("messages[0]")["name"] == "Ann"
    assert not StreamOptions.model_validate_json('{"include_usage": null, "include_obfuscation": null}').include_usage


# The end of the text


def test_a_stop_string_may_be_part_of_the_text(live: Live) -> None:
    whole = answer("stopping", 40)
    stop = whole[9:12]
    end = whole.index(stop) + len(stop)
    body = {"prompt": "stopping", "max_tokens": 40, "stop": stop, "include_stop_str_in_output": True, "logprobs": 0}
    choice = live.complete(**body)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (whole[:end], "stop")
    assert choice["logprobs"]["tokens"] == list(whole[:end])
    assert texts(stream(live, **body)) == {0: whole[:end]}


def test_a_stop_token_may_be_part_of_the_text(live: Live) -> None:
    whole = answer("stopping", 40)
    end = whole.index(whole[6]) + 1
    body = {"max_tokens": 40, "stop_token_ids": [ord(whole[6])], "include_stop_str_in_output": True, "logprobs": 0}
    choice = live.complete(prompt="stopping", **body)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (whole[:end], "stop")
    assert choice["logprobs"]["tokens"] == list(whole[:end])
    prompt, place = ending_prompt()
    choice = live.complete(prompt=prompt, max_tokens=30, temperature=0, include_stop_str_in_output=True)["choices"][0]
    assert choice["text"] == answer(prompt, place)  # an end token has no text


# Token ids


def test_token_ids_of_a_completion(live: Live) -> None:
    whole = answer("stopping", 40)
    body = {"prompt": ["stopping", "ab"], "max_tokens": 40, "stop": whole[9:12], "return_token_ids": True}
    choices = live.complete(**body)["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [list(b"stopping"), list(b"ab")]
    assert choices[0]["token_ids"] == list(whole[: whole.index(whole[9:12]) + 3].encode())
    found: dict[int, list[int]] = {0: [], 1: []}
    prompts: dict[int, list[Any]] = {0: [], 1: []}
    for chunk in stream(live, **body):
        for choice in chunk["choices"]:
            found[choice["index"]] += choice["token_ids"]
            prompts[choice["index"]].append(choice["prompt_token_ids"])
    assert found == {choice["index"]: choice["token_ids"] for choice in choices}
    assert [prompts[index][0] for index in (0, 1)] == [list(b"stopping"), list(b"ab")]
    assert not any(prompts[0][1:] + prompts[1][1:])
    assert "token_ids" not in live.complete(prompt="a", max_tokens=1)["choices"][0]


def test_token_ids_of_an_end_token_and_with_echo(live: Live) -> None:
    prompt, place = ending_prompt()
    body = {"prompt": prompt, "max_tokens": 30, "temperature": 0, "return_token_ids": True, "echo": True}
    choice = live.complete(**body)["choices"][0]
    assert choice["token_ids"] == [*answer(prompt, place).encode(), END]
    parts = [chunk["choices"][0]["token_ids"] for chunk in stream(live, **body)]
    assert [token for part in parts for token in part] == choice["token_ids"]


def test_token_ids_of_a_chat(live: Live) -> None:
    ids = list(answer(rendered("hi"), 5).encode())
    reply = live.chat("hi", max_tokens=5, return_token_ids=True)
    assert reply["prompt_token_ids"] == list(rendered("hi").encode())
    assert reply["choices"][0]["token_ids"] == ids
    chunks = chat_stream(live, "hi", max_tokens=5, return_token_ids=True)
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == ids
    given = [chunk["prompt_token_ids"] for chunk in chunks if chunk.get("prompt_token_ids")]
    assert given == [reply["prompt_token_ids"]]


# The prompt


@pytest.mark.parametrize(("k", "tail"), [(3, "ted"), (9, "truncated"), (20, "truncated"), (-1, "truncated")])
def test_a_prompt_is_truncated_to_its_last_tokens(live: Live, k: int, tail: str) -> None:
    for prompt in ("truncated", list(b"truncated")):
        reply = live.complete(prompt=prompt, truncate_prompt_tokens=k, max_tokens=4, echo=True, logprobs=0)
        assert reply["choices"][0]["text"] == tail + answer(tail, 4)
        assert reply["choices"][0]["logprobs"]["text_offset"] == list(range(len(tail) + 4))
        assert reply["usage"]["prompt_tokens"] == len(tail)


def test_a_prompt_is_truncated_to_what_fits() -> None:
    with running(max_model_len=64) as live:
        text = "".join(chr(33 + n) for n in range(60))
        reply = live.complete(prompt=text, truncate_prompt_tokens=-1, max_tokens=10)
        assert reply["choices"][0]["text"] == answer(text[-54:], 10)
        whole = rendered(text)
        for fields, n_tokens in (({}, 63), ({"max_tokens": 5}, 59)):
            reply = live.chat(text, truncate_prompt_tokens=-1, **fields)
            assert reply["choices"][0]["message"]["content"] == answer(whole[-n_tokens:], 64 - n_tokens)


def expected_prompt_logprobs(prompt: str) -> list[Any]:
    later = enumerate(prompt[1:], 1)
    return [None] + [
        {str(ord(char)): {"logprob": -float(place), "rank": place + 1, "decoded_token": char}} for place, char in later
    ]


def test_prompt_logprobs(live: Live) -> None:
    for echo in (False, True):
        reply = live.complete(prompt=["scored", "ab"], max_tokens=2, prompt_logprobs=0, echo=echo)
        assert [choice["prompt_logprobs"] for choice in reply["choices"]] == [
            expected_prompt_logprobs("scored"),
            expected_prompt_logprobs("ab"),
        ]
        assert reply["choices"][0]["logprobs"] is None
        assert reply["choices"][0]["text"] == ("scored" if echo else "") + answer("scored", 2)
    held = live.complete(prompt="ab", max_tokens=9, prompt_logprobs=0, stop=answer("ab", 3))["choices"][0]
    assert (held["text"], held["prompt_logprobs"]) == ("", expected_prompt_logprobs("ab"))
    assert live.chat("hi", max_tokens=2, prompt_logprobs=0)["prompt_logprobs"] == expected_prompt_logprobs(
        rendered("hi")
    )
    assert "prompt_logprobs" not in live.complete(prompt="a", max_tokens=1)["choices"][0]


def test_many_prompt_logprobs(live: Live) -> None:
    prompt = "x" * 500
    reply = live.complete(prompt=prompt, n=2, max_tokens=1, prompt_logprobs=3, echo=True, logprobs=1)
    for choice in reply["choices"]:
        assert choice["prompt_logprobs"] == expected_prompt_logprobs(prompt)
        assert len(choice["logprobs"]["tokens"]) == 501


# Choices


def test_best_of_samples_more_than_it_returns(live: Live) -> None:
    reply = live.complete(prompt=["ab", "xyz"], n=2, best_of=5, max_tokens=6)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    for choice, prompt in zip(reply["choices"], ["ab", "ab", "xyz", "xyz"], strict=True):
        assert choice["text"] in {answer(prompt, 6, number) for number in range(5)}
        assert choice["logprobs"] is None
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (5, 60)
    same = live.complete(prompt="ab", n=2, best_of=2, max_tokens=6)
    assert [choice["text"] for choice in same["choices"]] == [answer("ab", 6, number) for number in range(2)]


# The chat format


def test_an_answer_may_continue_the_last_message(live: Live) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well"}]
    body = {"messages": messages, "max_tokens": 4}
    for fields, prompt in (
        ({}, "u:hi;a:well;a:"),
        ({"add_generation_prompt": False}, "u:hi;a:well;"),
        ({"continue_final_message": True}, "u:hi;a:well"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "u:hi;a:well"),
        ({"chat_template_kwargs": {"tone": "!"}}, "!u:hi;a:well;a:"),
    ):
        reply = live.post("/v1/chat/completions", body | fields).json()
        assert reply["choices"][0]["message"]["content"] == answer(prompt, 4)
        tokens = live.post("/tokenize", {"messages": messages} | fields).json()["tokens"]
        assert tokens == list(prompt.encode())


# The queue and the cache


def test_the_lowest_priority_is_served_first() -> None:
    done: list[int] = []
    with running(model="slow", max_sequences=1) as live, ExitStack() as stack:
        stack.enter_context(begun(live))

        def ask(priority: int) -> None:
            live.complete(prompt="p", max_tokens=1, priority=priority)
            done.append(priority)

        threads = []
        for number, priority in enumerate((9, 5, 0), 2):
            threads.append(threading.Thread(target=ask, args=[priority]))
            threads[-1].start()
            eventually(busy(live, number), "it waits")
        stack.close()
        for thread in threads:
            thread.join()
    assert done == [0, 5, 9]


# The deadline


def test_a_deadline_keeps_what_is_there() -> None:
    with running(model="slow", max_sequences=3) as live:
        body = {"prompt": ["long", "other"], "max_tokens": 400, "timeout": 0.6, "logprobs": 0, "return_token_ids": True}
        for choices in (live.complete(**body)["choices"], joined(stream(live, **body))):
            assert [choice["finish_reason"] for choice in choices] == ["timeout"] * 2
            for choice, prompt in zip(choices, ["long", "other"], strict=True):
                assert 0 < len(choice["text"]) < 400
                assert answer(prompt, 400).startswith(choice["text"])
                assert choice["logprobs"]["tokens"] == list(choice["text"])
                assert choice["token_ids"] == list(choice["text"].encode())
        eventually(idle(live), "the engine forgets them")
        assert live.metric("noria_requests_total", outcome="timeout") == 2


def joined(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices of a stream as a plain answer has them."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = found.setdefault(part["index"], {"text": "", "token_ids": [], "logprobs": {"tokens": []}})
            choice["text"] += part["text"]
            choice["token_ids"] += part["token_ids"]
            choice["logprobs"]["tokens"] += part["logprobs"]["tokens"]
            choice["finish_reason"] = part["finish_reason"]
    return [found[index] for index in sorted(found)]


def test_waiting_counts_for_the_deadline() -> None:
    with running(model="slow", max_sequences=1) as live, begun(live):
        body = {"prompt": "late", "max_tokens": 3, "timeout": 0.2, "echo": True, "logprobs": 0, "prompt_logprobs": 0}
        choice = live.complete(**body)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("late", "timeout")
        assert choice["prompt_logprobs"] == [None]  # none was computed
        plain = live.complete(prompt="late", timeout=0.1)["choices"][0]
        assert (plain["text"], plain["finish_reason"]) == ("", "timeout")
        chunks = chat_stream(live, "late", timeout=0.1)
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "timeout"]


class Held(IntegerTokenizer):
    """A tokenizer that reads no text with an "x" until `may` is set."""

    may = threading.Event()

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        assert "x" not in text or self.may.wait(30)
        return super().encode(text, add_bos=add_bos, parse_control=parse_control)


def test_tokenizing_counts_for_the_deadline() -> None:
    """The answer comes before its prompt is read, and before the prompts of others are read."""
    with running(tokenizer=Held()) as live:
        body = {"prompt": ["x", "a"], "n": 2, "best_of": 2, "timeout": 0.1, "logprobs": 1, "echo": True}
        reply = live.complete(**body)
        late = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        assert reply["choices"] == [
            {"index": index, "text": "", "logprobs": late, "finish_reason": "timeout", "stop_reason": None}
            for index in range(4)
        ]
        assert reply["usage"]["total_tokens"] == 0
        assert [chunk["choices"][0]["finish_reason"] for chunk in stream(live, prompt="a", timeout=0.1)] == ["timeout"]
        Held.may.set()
        assert live.complete(prompt="x", max_tokens=4, timeout=30)["choices"][0]["text"] == answer("x", 4)
        assert live.metric("noria_requests_total", outcome="timeout") == 2


# The log


def test_the_log_knows_a_user_by_a_hash(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with running() as live, caplog.at_level("INFO", "noria.access"):
        live.complete(prompt="a", max_tokens=1, user="ann@example.org")
        live.chat("a", max_tokens=1, user="ann@example.org", safety_identifier="bob@example.org")
        live.complete(prompt="a", max_tokens=1, safety_identifier="ann@example.org")
        live.complete(prompt="a", max_tokens=1)
    lines = [record for record in caplog.records if "completions" in record.getMessage()][-4:]  # others may log late
    users = [record.fields["user"] for record in lines]  # type: ignore[attr-defined]
    assert users[0] == users[2] != users[1]
    assert users[3] is None
    assert all(len(user) == 16 for user in users[:3])
    assert "example.org" not in caplog.text + capsys.readouterr().err
