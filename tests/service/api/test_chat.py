"""`/v1/chat/completions` against the expected answers of the fake model."""

from tests.fakes import IntegerTokenizer
from tests.service.api.streams import chat_stream, rendered
from tests.service.live import Live, answer, running


def test_a_plain_answer(live: Live) -> None:
    reply = live.chat("hi", max_tokens=6)
    assert reply["object"] == "chat.completion"
    assert reply["id"].startswith("chatcmpl-")
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": answer(rendered("hi"), 6), "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert reply["usage"]["prompt_tokens"] == len(rendered("hi"))
    assert reply["usage"]["completion_tokens"] == 6


def test_all_roles_and_harmless_extras(live: Live) -> None:
    messages = [
        {"role": "system", "content": "be brief", "name": "x"},
        {"role": "user", "content": [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]},
        {"role": "assistant", "content": "yes", "refusal": None, "annotations": [], "audio": None, "tool_calls": []},
        {"role": "developer", "content": "go on", "name": None},
        {"role": "assistant", "content": None, "function_call": None},
    ]
    reply = live.post("/v1/chat/completions", {"messages": messages, "max_tokens": 5}).json()
    prompt = "s:be brief;u:hello;a:yes;d:go on;a:;a:"
    assert reply["choices"][0]["message"]["content"] == answer(prompt, 5)


def test_without_a_limit_the_answer_fills_the_context() -> None:
    with running(max_model_len=50) as live:
        reply = live.chat("hi")
        assert reply["usage"]["total_tokens"] == 50
        assert reply["choices"][0]["finish_reason"] == "length"
        long = {"messages": [{"role": "user", "content": "x" * 45}]}
        error = live.post("/v1/chat/completions", long).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "50" in error["message"]


def test_a_stream_opens_with_the_role_and_ends_with_an_empty_delta(live: Live) -> None:
    chunks = chat_stream(live, "hi", max_tokens=6)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == answer(rendered("hi"), 6)
    assert deltas[-1] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_logprobs(live: Live) -> None:
    text = answer(rendered("hi"), 3)
    choice = live.chat("hi", max_tokens=3, logprobs=True, top_logprobs=2)["choices"][0]
    assert choice["logprobs"]["content"] == [
        {
            "token": char,
            "token_id": ord(char),
            "logprob": -0.5,
            "bytes": [ord(char)],
            "top_logprobs": [
                {"token": char, "token_id": ord(char), "logprob": -0.5, "bytes": [ord(char)]},
                {
                    "token": chr(ord(char) + 1),
                    "token_id": ord(char) + 1,
                    "logprob": -1.5,
                    "bytes": [ord(char) + 1],
                },
            ],
        }
        for char in text
    ]
    plain = live.chat("hi", max_tokens=3, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [item["top_logprobs"] for item in plain] == [[], [], []]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chat_stream(live, "hi", max_tokens=3, logprobs=True)]
    assert [item for part in parts if part for item in part["content"]] == plain


class SpacedTokenizer(IntegerTokenizer):
    """Every token begins a word."""

    strips_leading_space = True

    def piece(self, token: int) -> bytes:
        return b" " + super().piece(token)


def test_the_space_before_the_first_word_is_the_tokenizers_not_the_answers() -> None:
    with running(tokenizer=SpacedTokenizer()) as live:
        words = " ".join(answer(rendered("hi"), 4))
        assert live.chat("hi", max_tokens=4)["choices"][0]["message"]["content"] == words
        chunks = chat_stream(live, "hi", max_tokens=4)
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == words
        assert live.complete(prompt=rendered("hi"), max_tokens=4)["choices"][0]["text"] == " " + words
