"""`POST /api/generate`: a message, a text that goes on, a gap."""

from typing import Any

import pytest

from tests.fakes import END, IntegerTokenizer
from tests.service.api.ollama.sent import error_of, lines, whole
from tests.service.live import FakeChat, Live, answer, running

GENERATE = "/api/generate"
FIVE = {"num_predict": 5}


def test_a_prompt_is_a_message(live: Live) -> None:
    reply = whole(live, GENERATE, model="fake:latest", prompt="hi", system="be", options=FIVE)
    assert (reply["response"], reply["model"]) == (answer("s:be;u:hi;a:", 5), "fake:latest")
    assert (reply["done_reason"], reply["eval_count"]) == ("length", 5)
    assert "message" not in reply
    *parts, last = lines(live, GENERATE, prompt="hi", system="be", options=FIVE)
    assert "".join(part["response"] for part in parts) == reply["response"]
    assert last["response"] == ""


def test_fields_that_the_python_package_always_sends(live: Live) -> None:
    nothing: dict[str, Any] = {"suffix": "", "system": "", "template": "", "context": [], "raw": False, "format": ""}
    reply = whole(live, GENERATE, prompt="hi", options=FIVE, **nothing)
    assert reply["response"] == answer("u:hi;a:", 5)


def test_a_raw_prompt_goes_on(live: Live) -> None:
    reply = whole(live, GENERATE, prompt="hi", raw=True, options=FIVE, logprobs=True)
    assert reply["response"] == answer("hi", 5)
    assert [item["token"] for item in reply["logprobs"]] == [*reply["response"]]


class GapTokenizer(IntegerTokenizer):
    control: dict[str, int] = {"<end>": END, "[SUFFIX]": 250, "[PREFIX]": 249}  # noqa: RUF012


def test_a_suffix_fills_a_gap(live: Live) -> None:
    assert "suffix needs a model with the tokens" in error_of(live, GENERATE, {"prompt": "hi", "suffix": "x"})
    with running(tokenizer=GapTokenizer()) as filling:
        ours = whole(filling, GENERATE, prompt="hi", suffix="x", options={**FIVE, "temperature": 0})
        theirs = filling.complete(prompt="hi", suffix="x", max_tokens=5, temperature=0)
        assert ours["response"] == theirs["choices"][0]["text"]
        ours = whole(filling, GENERATE, suffix="x", options={**FIVE, "temperature": 0})
        theirs = filling.complete(prompt="", suffix="x", max_tokens=5, temperature=0)
        assert ours["response"] == theirs["choices"][0]["text"]
        shown = filling.post("/api/show", {"model": "fake"}).json()
        assert "insert" in shown["capabilities"]


class ThinkingChat(FakeChat):
    reasoning_style = "tags"


def test_a_thought_is_beside_the_response() -> None:
    with running(model="recite", chat=ThinkingChat()) as live:
        reply = whole(live, GENERATE, prompt="<think>\nHm.\n</think>\n\nYes.")
        assert (reply["thinking"], reply["response"]) == ("Hm.", "Yes.")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"raw": True, "system": "be"}, "system cannot be used with raw"),
        ({"raw": True, "images": ["AAAA"]}, "images cannot be used with raw"),
        ({"suffix": "x", "think": True}, "think cannot be used with suffix"),
        ({"template": "{{ .Prompt }}"}, "template is not supported"),
        ({"context": [1, 2]}, "context is not supported"),
        ({"images": ["AAAA"]}, "images[0] is not supported: this model takes no images"),
        ({"options": {"num_predict": 600}}, "options.num_predict"),
        ({"raw": True, "options": {"num_predict": 600}}, "options.num_predict"),
        ({"raw": True, "format": {"type": "object", "not": {}}}, "format"),
    ],
)
def test_what_is_refused(live: Live, fields: dict[str, Any], words: str) -> None:
    assert words in error_of(live, GENERATE, {"prompt": "hi", **fields})
