"""`/v1/completions` against the expected answers of the fake model."""

from typing import Any

import pytest

from tests.service.api.streams import ending_prompt, stream, texts
from tests.service.live import Live, answer, running


def test_a_plain_completion(live: Live) -> None:
    reply = live.complete(model="fake", prompt="hello", max_tokens=7)
    assert reply["object"] == "text_completion"
    assert reply["model"] == "fake"
    assert reply["id"].startswith("cmpl-")
    expected = {
        "index": 0,
        "text": answer("hello", 7),
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    assert reply["choices"] == [expected]
    assert reply["usage"]["prompt_tokens"] == 5
    assert reply["usage"]["completion_tokens"] == 7
    assert reply["usage"]["total_tokens"] == 12


def test_sixteen_tokens_by_default_and_null_means_default(live: Live) -> None:
    nulls = dict.fromkeys(["model", "max_tokens", "n", "stop", "temperature", "stream", "logit_bias", "user", "suffix"])
    reply = live.complete(prompt="defaults", **nulls)
    assert reply["choices"][0]["text"] == answer("defaults", 16)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", ["ab"]),
        (["ab", "xyz"], ["ab", "xyz"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [120, 121, 122]], ["ab", "xyz"]),
    ],
)
def test_every_shape_of_prompt(live: Live, prompt: Any, prompts: list[str]) -> None:
    reply = live.complete(prompt=prompt, max_tokens=4)
    assert [choice["text"] for choice in reply["choices"]] == [answer(text, 4) for text in prompts]
    assert reply["usage"]["prompt_tokens"] == sum(map(len, prompts))


def test_choices_are_numbered_within_their_prompt(live: Live) -> None:
    reply = live.complete(prompt=["ab", "xyz"], n=3, max_tokens=5)
    expected = [answer(text, 5, choice) for text in ("ab", "xyz") for choice in range(3)]
    assert [choice["index"] for choice in reply["choices"]] == list(range(6))
    assert [choice["text"] for choice in reply["choices"]] == expected
    assert reply["usage"]["prompt_tokens"] == 5
    assert reply["usage"]["completion_tokens"] == 30


def test_a_stream_says_the_same(live: Live) -> None:
    chunks = stream(live, prompt=["ab", "xyz"], n=2, max_tokens=6)
    expected = [answer(text, 6, choice) for text in ("ab", "xyz") for choice in range(2)]
    assert texts(chunks) == dict(enumerate(expected))
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert ends == ["length"] * 4
    assert all("usage" not in chunk for chunk in chunks)


def test_a_repeated_prompt_is_counted_as_cached(live: Live) -> None:
    prompt = "a prompt that is longer than two pages of sixteen tokens each"
    live.complete(prompt=prompt, max_tokens=1)
    usage = live.complete(prompt=prompt, max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == len(prompt) // 16 * 16


def test_a_stop_string_ends_the_text_before_it(live: Live) -> None:
    whole = answer("stopping", 40)
    stop = whole[9:12]
    cut = whole.index(stop)
    for stops in (stop, ["never said", stop]):
        reply = live.complete(prompt="stopping", max_tokens=40, stop=stops)
        assert reply["choices"][0]["text"] == whole[:cut]
        assert reply["choices"][0]["finish_reason"] == "stop"
        assert reply["usage"]["completion_tokens"] == cut + len(stop)
    assert texts(stream(live, prompt="stopping", max_tokens=40, stop=stop)) == {0: whole[:cut]}


def test_a_stop_token_has_no_text_but_counts(live: Live) -> None:
    whole = answer("stopping", 40)
    token = ord(whole[6])
    cut = whole.index(chr(token))
    reply = live.complete(prompt="stopping", max_tokens=40, stop_token_ids=[token])
    assert reply["choices"][0] == {
        "index": 0,
        "text": whole[:cut],
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": token,
    }
    assert reply["usage"]["completion_tokens"] == cut + 1


def test_min_tokens_lets_an_early_stop_string_pass(live: Live) -> None:
    whole = answer("stopping", 40)
    reply = live.complete(prompt="stopping", max_tokens=40, min_tokens=3, stop=whole[1])
    cut = whole.index(whole[1], 3)
    assert reply["choices"][0]["text"] == whole[:cut]


def test_the_models_end_token_ends_unless_ignored(live: Live) -> None:
    prompt, place = ending_prompt()
    reply = live.complete(prompt=prompt, max_tokens=30, temperature=0)
    assert reply["choices"][0]["text"] == answer(prompt, place)
    assert reply["choices"][0]["finish_reason"] == "stop"
    reply = live.complete(prompt=prompt, max_tokens=30, temperature=0, ignore_eos=True)
    assert reply["choices"][0]["text"] == answer(prompt, 30)


def test_logprobs_in_the_old_shape(live: Live) -> None:
    text = answer("scored", 4)
    scores = live.complete(prompt="scored", max_tokens=4, logprobs=2)["choices"][0]["logprobs"]
    assert scores["tokens"] == list(text)
    assert scores["token_logprobs"] == [-0.5] * 4
    assert scores["top_logprobs"] == [{char: -0.5, chr(ord(char) + 1): -1.5} for char in text]
    assert scores["text_offset"] == [0, 1, 2, 3]


def test_a_stop_token_has_a_logprob_after_the_text() -> None:
    """OpenAI and vLLM do the same. A harness that requests one token needs one entry more than the prompt has."""
    whole = answer("stopping", 40)
    with running() as live:
        body = {"prompt": "stopping", "max_tokens": 40, "logprobs": 1, "stop_token_ids": [ord(whole[6])]}
        choice = live.complete(**body)["choices"][0]
        assert choice["logprobs"]["tokens"] == [*choice["text"], whole[6]]
        assert choice["logprobs"]["text_offset"] == list(range(len(choice["text"]) + 1))
        parts = [chunk["choices"][0]["logprobs"]["tokens"] for chunk in stream(live, **body)]
        assert [token for part in parts for token in part] == choice["logprobs"]["tokens"]


def test_echo(live: Live) -> None:
    reply = live.complete(prompt="again", echo=True, max_tokens=3)
    assert reply["choices"][0]["text"] == "again" + answer("again", 3)
    assert live.complete(prompt="again", echo=True, max_tokens=0)["choices"][0]["text"] == "again"
    assert texts(stream(live, prompt=[97, 98], echo=True, max_tokens=3, n=2)) == {
        choice: "ab" + answer("ab", 3, choice) for choice in range(2)
    }


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_echo_scores_the_prompt(live: Live, max_tokens: int) -> None:
    prompt = "a prompt that needs more than one page to compute"
    choice = live.complete(prompt=prompt, echo=True, max_tokens=max_tokens, logprobs=1)["choices"][0]
    scores = choice["logprobs"]
    text = prompt + answer(prompt, max_tokens)
    assert choice["text"] == text
    assert scores["tokens"] == list(text)
    assert scores["text_offset"] == list(range(len(text)))
    prompt_scores = [None, *(-float(place) for place in range(1, len(prompt)))]
    assert scores["token_logprobs"] == prompt_scores + [-0.5] * max_tokens
    assert scores["top_logprobs"][0] is None


def test_a_streams_logprobs_join_to_the_plain_ones(live: Live) -> None:
    body = {"prompt": "scored", "max_tokens": 8, "logprobs": 1, "echo": True, "stop": answer("scored", 8)[6:]}
    plain = live.complete(**body)["choices"][0]["logprobs"]
    parts = [chunk["choices"][0]["logprobs"] for chunk in stream(live, **body)]
    joined = {key: [item for part in parts for item in part[key]] for key in plain}
    assert joined == plain


def test_the_prompt_may_fill_the_context_but_no_more() -> None:
    with running(max_model_len=64) as live:
        assert live.complete(prompt="x" * 60, max_tokens=4)["usage"]["total_tokens"] == 64
        response = live.post("/v1/completions", {"prompt": "x" * 60, "max_tokens": 5})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert all(number in error["message"] for number in ("64", "65", "60", "5"))


def test_the_models_own_sampling_defaults_apply_where_the_request_is_silent() -> None:
    prompt, place = ending_prompt()  # the fake model ends only when greedy
    with running(sampling={"temperature": 0.0}) as live:
        assert live.complete(prompt=prompt, max_tokens=30)["choices"][0]["text"] == answer(prompt, place)
        sampled = live.complete(prompt=prompt, max_tokens=30, temperature=1)["choices"][0]["text"]
        assert sampled == answer(prompt, 30)
