"""`/v1/embeddings` over the fake model, whose hidden state at a position is (token, position, 1)."""

import base64
import struct
from typing import Any

import pytest

from tests.service.live import Live, running

PATH = "/v1/embeddings"


def embed(live: Live, **body: Any) -> list[list[float]]:
    response = live.post(PATH, body)
    assert response.status_code == 200, response.text
    return [item["embedding"] for item in response.json()["data"]]


def unit(*values: float) -> list[float]:
    length = sum(value * value for value in values) ** 0.5
    return [value / length for value in values]


def mean(tokens: list[int]) -> list[float]:
    n = len(tokens)
    return pytest.approx(unit(sum(tokens) / n, (n - 1) / 2, 1))


def test_an_embedding_is_the_mean_of_unit_length(live: Live) -> None:
    reply = live.post(PATH, {"input": "hi", "model": "fake", "dimensions": 3, "user": "u"}).json()
    assert reply.pop("timings")["prompt_n"] == 2
    assert reply.pop("data")[0] == {"object": "embedding", "index": 0, "embedding": mean([104, 105])}
    assert reply.pop("id").startswith("embd-")
    assert reply == {"object": "list", "model": "fake", "usage": {"prompt_tokens": 2, "total_tokens": 2}}


def test_every_shape_of_input(live: Live) -> None:
    for shape in (["hi", "you"], [[104, 105], [121, 111, 117]]):
        assert embed(live, input=shape) == [mean([104, 105]), mean([121, 111, 117])]
    assert embed(live, input=[104, 105]) == [mean([104, 105])]


def test_the_last_tokens_state(live: Live) -> None:
    assert embed(live, input="hi", pooling="last") == [pytest.approx(unit(105, 1, 1))]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_long_inputs_in_a_crowd_come_in_pieces_and_are_exact(pooling: str) -> None:
    """Steps of 16 tokens cut the inputs. No part of a repeated input comes from the cache."""
    with running(max_step_tokens=16, max_sequences=4) as live:
        inputs = [[1 + (7 * i + j) % 200 for j in range(20 + i)] for i in range(40)]
        expected = {
            "mean": [mean(tokens) for tokens in inputs],
            "last": [pytest.approx(unit(tokens[-1], len(tokens) - 1, 1)) for tokens in inputs],
        }
        for _ in range(2):
            assert embed(live, input=inputs, pooling=pooling) == expected[pooling]


def test_base64_holds_the_same_floats(live: Live) -> None:
    (text,) = embed(live, input="hi", encoding_format="base64")
    assert list(struct.unpack("<3f", base64.b64decode(text))) == embed(live, input="hi")[0]  # type: ignore[arg-type]


def test_a_thousand_inputs(live: Live) -> None:
    reply = embed(live, input=[[1 + i % 200] for i in range(1024)])
    assert reply == [mean([1 + i % 200]) for i in range(1024)]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", ["required"]),
        ({"input": []}, "input", ["empty"]),
        ({"input": ""}, "input", ["empty"]),
        ({"input": [256]}, "input", ["256", "255"]),
        ({"input": ["a"] * 1025}, "input", ["1024", "1025"]),
        ({"input": "a" * 513}, "input", ["512", "513"]),
        ({"input": "a", "dimensions": 2}, "dimensions", ["3", "2"]),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", ['"float"', '"int8"']),
        ({"input": "a", "pooling": "max"}, "pooling", ['"mean"', '"max"']),
        ({"input": "a", "normalize": False}, "normalize", ["true"]),
        ({"input": "a", "stream": True}, "stream", ["'stream'"]),
    ],
)
def test_refusals(live: Live, body: dict[str, Any], param: str, words: list[str]) -> None:
    response = live.post(PATH, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert all(word in error["message"] for word in words), error
