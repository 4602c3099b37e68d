"""Sampling parameters through a real server with the embedded model in its default scheme."""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.server import MODEL, LiveServer
from tests.waiting import eventually

STORY = {"prompt": "Once upon a time, in a small village, there", "max_tokens": 48}


@pytest.fixture
def server(embedded: LiveServer) -> LiveServer:
    return embedded


def complete(server: LiveServer, **body: Any) -> list[dict[str, Any]]:
    response = server.http.post("/v1/completions", json=STORY | body)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def test_choices_differ_and_each_is_reproducible(server: LiveServer) -> None:
    body = {"n": 4, "seed": 11, "temperature": 0.9}
    choices = complete(server, **body)
    assert len({choice["text"] for choice in choices}) == 4
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(complete, server, seed=seed) for seed in range(2)]
        assert complete(server, **body) == choices
        assert complete(server, **{**body, "n": 2}) == choices[:2]
        assert all(other.result() for other in others)
    assert complete(server, **{**body, "seed": 12})[0]["text"] != choices[0]["text"]


def test_first_answers_are_right(server: LiveServer) -> None:
    """Requests without sampling parameters, as the first ones of a new user: 8 seeds, at most one without Paris.

    The request's own parameters win: without limits the answers differ.
    """

    def ask(seed: int, **fields: Any) -> str:
        body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 64}
        answer = server.http.post("/v1/chat/completions", json=body | {"seed": seed} | fields).json()
        return answer["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(12) as pool:
        wild = [pool.submit(ask, seed, temperature=1, top_p=1, repetition_penalty=1) for seed in range(4)]
        answers = list(pool.map(ask, range(8)))
    assert sum("Paris" in answer for answer in answers) >= 7, answers
    assert len({answer.result() for answer in wild}) == 4


def test_logprobs_are_the_same_streamed_and_whole_alone_and_batched(server: LiveServer) -> None:
    """The logprobs are equal bit for bit, as the default scheme promises."""
    body = {"seed": 3, "temperature": 0.8, "logprobs": 2, "echo": True}

    def streamed() -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for chunk in server.openai.completions.create(model=MODEL, **STORY, **body, stream=True):  # type: ignore[call-overload]
            for name, values in chunk.choices[0].logprobs.to_dict().items():
                found[name] = found.get(name, []) + values
        return found

    whole = complete(server, **body)[0]["logprobs"]
    assert len(whole["tokens"]) > 48
    assert streamed() == whole
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(complete, server, seed=seed, n=3) for seed in range(2)]
        alike = [pool.submit(streamed), pool.submit(lambda: complete(server, **body)[0]["logprobs"])]
        assert [future.result() for future in alike] == [whole, whole]
        assert all(other.result() for other in others)


def test_chat_logprobs_are_the_same_streamed_and_whole(server: LiveServer) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Name three fruits."}],
        "max_tokens": 24,
        "seed": 4,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]
    items: list[Any] = []
    for chunk in server.openai.chat.completions.create(**body, stream=True):  # type: ignore[call-overload]
        if chunk.choices[0].logprobs:
            items += chunk.choices[0].logprobs.to_dict()["content"]
    assert items == whole["logprobs"]["content"]
    assert "".join(item["token"] for item in items) == whole["message"]["content"]


def test_prompt_logprobs_are_those_of_forced_tokens(server: LiveServer) -> None:
    """Scoring a prompt, and sampling token by token with all other tokens hidden, give the same distribution."""
    tokens = server.http.post("/tokenize", json={"prompt": "The sky is blue today."}).json()["tokens"]
    (choice,) = complete(server, prompt=tokens, max_tokens=1, prompt_logprobs=2, echo=True, logprobs=1)
    assert choice["prompt_logprobs"][0] is None
    for place, scores in enumerate(choice["prompt_logprobs"][1:], 1):
        own = scores[str(tokens[place])]["logprob"]
        forced = complete(
            server, prompt=tokens[:place], max_tokens=1, allowed_token_ids=[tokens[place]], logprobs=0, seed=1
        )[0]["logprobs"]
        assert forced["token_logprobs"] == [own] == [choice["logprobs"]["token_logprobs"][place]]
        ranked = sorted(scores.values(), key=lambda item: item["rank"])
        assert [item["rank"] for item in ranked[:2]] == [1, 2]
        assert max(item["logprob"] for item in scores.values()) == ranked[0]["logprob"]
        assert choice["logprobs"]["top_logprobs"][place][ranked[0]["decoded_token"]] == ranked[0]["logprob"]


def test_bad_words_are_not_sampled(server: LiveServer) -> None:
    text = complete(server, temperature=0)[0]["text"]
    words = [word for word, _ in Counter(re.findall(r"\w{3,}", text)).most_common(5)]
    spared = complete(server, temperature=0, bad_words=words)[0]["text"]
    assert not set(words) & set(re.findall(r"\w+", spared))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_drafts_change_nothing_under_masks(server: LiveServer, temperature: float) -> None:
    prompt = "red green blue red green blue red green blue red green"
    allowed = server.http.post("/tokenize", json={"prompt": prompt + " yellow."}).json()["tokens"]
    body = {
        "prompt": prompt,
        "temperature": temperature,
        "seed": 5,
        "allowed_token_ids": allowed,
        "bad_words": ["red green blue red green", "yellow"],
        "logprobs": 1,
        "n": 2,
    }
    before = server.metric("noria_accepted_draft_tokens_total")
    assert complete(server, **body, prompt_lookup_num_tokens=8) == complete(server, **body)
    assert server.metric("noria_accepted_draft_tokens_total") > before
    assert "yellow" not in complete(server, **body)[0]["text"]


def test_best_of_gives_the_likeliest(server: LiveServer) -> None:
    """The test ranks all answers by their scores. The score of an answer that ends by itself includes its end token."""
    body = {"prompt": ["The best way to", "I like"], "max_tokens": 12, "seed": 6, "stop": [".", ","]}
    choices = complete(server, **body, n=6, logprobs=0, return_token_ids=True, include_stop_str_in_output=True)
    expected: list[str] = []
    for first in (0, 6):
        means = {}
        for choice in choices[first : first + 6]:
            scores = choice["logprobs"]["token_logprobs"]
            assert len(scores) == len(choice["token_ids"])
            means[choice["index"]] = sum(scores) / len(scores)
        ranked = sorted(means, key=lambda index: -means[index])[:2]
        expected += [choices[index]["text"] for index in ranked]
    best = complete(server, **body, n=2, best_of=6, include_stop_str_in_output=True)
    assert [choice["text"] for choice in best] == expected


def test_an_answer_continues_the_assistants_words(server: LiveServer) -> None:
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    body = {"messages": messages, "temperature": 0, "max_tokens": 8, "continue_final_message": True}
    choice = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (" Paris.", "stop")


def test_a_deadline_ends_an_answer(server: LiveServer) -> None:
    def cut() -> bool:
        """Whether there were tokens before the deadline: the machine may have stood still until then."""
        (choice,) = complete(server, max_tokens=2000, ignore_eos=True, timeout=0.5, return_token_ids=True)
        assert choice["finish_reason"] == "timeout"
        assert len(choice["token_ids"]) < 2000
        return bool(choice["token_ids"])

    with server.slow():
        eventually(cut, "an answer is cut")
    server.wait_idle()
