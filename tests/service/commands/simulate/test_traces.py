"""Traces in the formats of their publishers, and lengths at random."""

import random
from pathlib import Path

import pytest

from model.errors import OptionError
from service.commands.simulate.requests import Request, at_random
from service.commands.simulate.traces import read
from tests.service.commands.simulate.costs import costs, served

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9951690,396,109\r
2023-11-16 18:15:48.6805900,879,55\r
"""
"""As AzureLLMInferenceTrace_conv.csv: seven digits after the second, Windows' ends of lines."""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01.017335+00:00,2399,6
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2366]}
{"timestamp": 30535, "input_length": 1030, "output_length": 26, "hash_ids": [46, 47, 2367]}
"""


def trace(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_bytes(text.encode())
    return path


def test_azure(tmp_path: Path) -> None:
    found = read(trace(tmp_path, AZURE))
    assert [(item.n_prompt, item.n_output) for item in found] == [(374, 44), (879, 55), (396, 109)]
    assert [item.at for item in found] == pytest.approx([0, 2, 4.314579], abs=1e-5)
    later = read(trace(tmp_path, AZURE_2024), speed=2.0)
    assert [item.at for item in later] == pytest.approx([0, 1.007405 / 2], abs=1e-5)
    assert len(read(trace(tmp_path, AZURE), count=2)) == 2


def test_equal_hashes_of_mooncake_are_equal_tokens_in_the_cache(tmp_path: Path) -> None:
    """Two blocks of 512 are the same; the third, which is shorter, differs."""
    first, second = read(trace(tmp_path, MOONCAKE))
    assert (first.at, second.at) == (0.0, pytest.approx(3.053))
    tokens = first.prompt(0), second.prompt(1)
    assert list(map(len, tokens)) == [1100, 1030]
    assert tokens[0][:1024] == tokens[1][:1024]
    assert not set(tokens[0][1024:]) & set(tokens[1][1024:])
    fleet = served(costs(page_size=32, max_step_tokens=512, max_model_len=2048), first, second)
    assert [item.cached for item in fleet.served] == [0, 1024]


def test_conversation_and_tenant(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": 3, "output_length": 2, "conversation": "a", "tenant": "b"}'
    assert read(trace(tmp_path, line)) == [Request(0.0, 3, 2, block=512, conversation="a", tenant="b")]


GOOD = MOONCAKE.splitlines()[0]
HEADER = AZURE_2024.splitlines()[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: expected the columns TIMESTAMP"),
        ("a,b\n1,2\n", "line 1: expected the columns TIMESTAMP.*found 'a,b'"),
        (HEADER, "has no requests"),
        (f"{HEADER}\nyesterday,1,2", "line 2: TIMESTAMP must be a date and a time, got 'yesterday'"),
        (f"{HEADER}\n2024-05-10 00:00:00,1", "line 2: expected 3 columns, found 2"),
        (f"{HEADER}\n2024-05-10 00:00:00,-1,2", "line 2: ContextTokens must be an integer of at least 1, got '-1'"),
        (f"{HEADER}\n2024-05-10 00:00:00,1,0", "line 2: GeneratedTokens must be an integer of at least 1, got 0"),
        (f"{GOOD}\nnot JSON", "line 2 is not JSON"),
        (f"{GOOD}\n[1]", "line 2 must have timestamp, input_length, output_length.*found list"),
        (GOOD.replace("output_length", "output"), "line 1 must have .*found .*'output'"),
        (GOOD.replace("52,", '52, "model": "a",'), "found .*'model'"),
        (GOOD.replace("27482", "-1"), "line 1: timestamp must be milliseconds of at least 0, got -1"),
        (GOOD.replace("1100", "0"), "line 1: input_length must be an integer of at least 1, got 0"),
        (GOOD.replace("52,", "true,"), "line 1: output_length must be an integer of at least 1, got True"),
        (GOOD.replace("2366", "-5"), "line 1: hash_ids must be a list of integers from 0 to"),
        (GOOD.replace("1100", "1024"), "line 1: hash_ids has 3 entries of 512 tokens for input_length 1024"),
        (GOOD.replace("52,", '52, "tenant": 3,'), "line 1: tenant must be a text, got 3"),
    ],
)
def test_a_bad_line_is_named(text: str, says: str, tmp_path: Path) -> None:
    path = trace(tmp_path, text)
    with pytest.raises(OptionError, match=says) as error:
        read(path)
    assert str(error.value).startswith(f"--trace {path}")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="No such file"):
        read(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="is not UTF-8"):
        read(tmp_path / "binary")


def test_arrivals_at_random() -> None:
    def draw(rng: random.Random) -> int:
        return 10

    found = list(at_random(50.0, 4000, draw, draw, shared=4, seed=2))
    assert found[-1].at == pytest.approx(80.0, rel=0.05)
    assert found == list(at_random(50.0, 4000, draw, draw, shared=4, seed=2))
    assert found[0].prompt(0)[:4] == found[1].prompt(1)[:4]
    assert not set(found[0].prompt(0)[4:]) & set(found[1].prompt(1)[4:])
