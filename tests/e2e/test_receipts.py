"""Receipts of a real model: computed again they are equal, and a changed weight, seed or token is found."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from model.checkpoint.gguf.reader import read_gguf
from service.receipts.keys import make_key, read_key
from tests.e2e.server import LiveServer, serving
from tests.forks import finished
from tests.service.command_line import Done, noria
from tests.service.receipts.signing import lie, openssl_accepts, write

STORY = {"prompt": "Once upon a time, in a small village, there", "max_tokens": 40, "temperature": 1.0}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]
OWN: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        **STORY,
        "prompt": [STORY["prompt"], STORY["prompt"], "The sea"],
        "n": 2,
        "stop": ["\n\n", " the"],
        "repetition_penalty": 1.1,
        "logit_bias": {"28": -5},
    },
    "/v1/chat/completions": {"messages": ASKED, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 48},
    "/v1/messages": {"messages": ASKED, "max_tokens": 24, "temperature": 1.0, "stop_sequences": ["zz", ","]},
    "/v1/responses": {
        "input": "Name a city.",
        "text": {
            "format": {
                "type": "json_schema",
                "schema": {"type": "object", "properties": {"city": {"enum": ["A", "B"]}}},
            }
        },
    },
}
"""Requests without a seed, and mostly without a number of tokens that every server would choose."""


@pytest.fixture(scope="module")
def folder(short_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It has the model, a copy with changed weights of one norm, and a key."""
    folder = tmp_path_factory.mktemp("receipts")
    shutil.copy(short_model, folder / "model.gguf")
    data = bytearray(short_model.read_bytes())
    (norm,) = (tensor for tensor in read_gguf(short_model).tensors if tensor.name == "blk.1.ffn_norm.weight")
    for index in range(64):  # one alone may change no token of a short answer
        data[norm.offset + 4 * index + 3] ^= 1  # the exponent of a float
    (folder / "changed.gguf").write_bytes(data)
    make_key(folder / "key.pem")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with serving(str(folder / "model.gguf"), "--receipt-key", str(folder / "key.pem")) as started:
        yield started


def post(server: LiveServer, path: str, **body: Any) -> dict[str, Any]:
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def verify(folder: Path, receipts: Any, *more: str | Path) -> Done:
    return noria("verify", write(folder / "receipts.json", receipts), *more)


def process(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The end of a command in a process of its own, which starts a server."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NORIA_")}
    return finished(["service", *map(str, arguments)], environment | {"OMP_NUM_THREADS": "1", **variables})


def test_receipts_of_answers_under_load_are_equal_when_computed_alone(
    server: LiveServer, folder: Path, tmp_path: Path
) -> None:
    """Other streams run beside each, and only beside each."""
    with ThreadPoolExecutor(12) as pool:
        others = [pool.submit(post, server, "/v1/completions", **STORY, n=2) for _ in range(6)]
        found = {path: pool.submit(post, server, path, **body, receipt="full") for path, body in OWN.items()}
        assert all(other.result() for other in others)
    for path, future in found.items():
        answer = future.result()
        assert all(openssl_accepts(receipt, tmp_path) for receipt in answer["receipts"])
        done = verify(tmp_path, answer, "--url", server.url, "--key", read_key(folder / "key.pem").public)
        assert done.returncode == 0, (path, done.stdout, done.stderr)
        assert done.stdout.splitlines()[1] == "equal bits: promised here"


def test_the_variant_does_not_matter_and_a_changed_weight_does(
    server: LiveServer, folder: Path, tmp_path: Path
) -> None:
    """The command's own servers have other weights; or the same, another context and another variant.

    They take no pages from the disk, which could have a fault of the first server.
    """
    request = write(tmp_path / "request.json", {**STORY, "receipt": True})
    answer = post(server, "/v1/completions", **STORY, receipt=True)
    flags = ("--request", request, "--model")
    other = {"NORIA_KERNELS": "avx2", "NORIA_MAX_MODEL_LEN": "500", "NORIA_PREFIX_STORE": str(tmp_path / "pages")}
    write(tmp_path / "receipts.json", answer)
    done = process("verify", tmp_path / "receipts.json", *flags, folder / "model.gguf", **other)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "equal: 40 tokens, computed again"), done.stderr
    assert not (tmp_path / "pages").exists()
    done = process("verify", tmp_path / "receipts.json", *flags, folder / "changed.gguf")
    assert done.returncode == 3, done.stderr
    assert "weights: the model's files are others" in done.stdout
    assert "tokens: token " in done.stdout
    assert "differs: another in the receipt, " in done.stdout


def test_the_defaults_of_the_server_are_those_of_its_receipts(folder: Path, tmp_path: Path) -> None:
    """A repetition that the server ends, and a field that it lets pass. Variables of the checker do not count."""
    body = {**STORY, "logit_bias": {"260": 100}, "mood": "happy", "receipt": "full"}
    flags = ("--receipt-key", str(folder / "key.pem"), "--repetition-detection", "4,1,5", "--lenient")
    with serving(str(folder / "model.gguf"), *flags) as lenient:
        answer = post(lenient, "/v1/completions", **body)
    assert answer["receipts"][0]["n_tokens"] < STORY["max_tokens"]
    write(tmp_path / "receipts.json", answer)
    other = {"NORIA_REPETITION_DETECTION": "off", "NORIA_PREFIX_STORE_SIZE": "1GiB"}
    done = process("verify", tmp_path / "receipts.json", "--model", folder / "model.gguf", **other)
    assert (done.returncode, done.stdout.splitlines()[-1][:7]) == (0, "equal: "), (done.stdout, done.stderr)


CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
CALLED = {"type": "function", "name": "weather", "parameters": {**CITY, "additionalProperties": False}}
STORED: list[dict[str, Any]] = [
    {"tools": [CALLED], "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": [CALLED, {"type": "custom", "name": "shell"}], "tool_choice": {"type": "function", "name": "weather"}},
    {"tools": [{"type": "namespace", "name": "mcp", "tools": [CALLED]}, {"type": "web_search"}]},
    {"text": OWN["/v1/responses"]["text"], "top_p": 0.9},
    {"reasoning": {"effort": "low"}, "instructions": "Speak like a pirate.", "temperature": 0.0},
]


@pytest.mark.parametrize("fields", STORED, ids=lambda fields: ",".join(fields))
def test_a_stored_response_is_computed_again_without_its_request(
    server: LiveServer, fields: dict[str, Any], tmp_path: Path
) -> None:
    """Everything in a request that can change a token comes back from the store."""
    first = post(server, "/v1/responses", input=ASKED, max_output_tokens=64, **fields)["id"]
    body = {"input": "And in Rome?", "max_output_tokens": 24, "receipt": True, "previous_response_id": first}
    done = verify(tmp_path, post(server, "/v1/responses", **body, **fields), "--url", server.url)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout.splitlines()[1] == "equal bits: promised here"


def test_another_seed_and_another_token_are_found(server: LiveServer, folder: Path, tmp_path: Path) -> None:
    (receipt,) = post(server, "/v1/completions", **STORY, receipt="full")["receipts"]
    done = verify(tmp_path, lie(receipt, folder, seed="8"), "--url", server.url)
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert lines[2].startswith("request: the parameters of the request are others")
    assert lines[3].startswith("tokens: token ")
    ids = receipt["content"]["token_ids"]
    other = post(server, "/v1/completions", **STORY, seed=8, return_token_ids=True)["choices"][0]["token_ids"]
    index = next(place for place, pair in enumerate(zip(ids, other, strict=True)) if pair[0] != pair[1])
    assert f"token {index + 1} of 40 differs: {ids[index]} " in lines[3]
    assert f" in the receipt, {other[index]} " in lines[3]
    forged = [*ids[:20], ids[20] + 1, *ids[21:]]
    done = verify(
        tmp_path, lie(receipt, folder, content={**receipt["content"], "token_ids": forged}), "--url", server.url
    )
    assert done.returncode == 3
    assert f"token 21 of 40 differs: {ids[20] + 1} " in done.stdout


def test_answers_are_recorded_and_checked_at_a_deploy(folder: Path, tmp_path: Path) -> None:
    """Each command has a server of its own, also the one that signs. `other` is a scheme that gives other answers.

    To some seeds it gives the same, so one answer has a seed for which it does not.
    """
    rows = [
        {"custom_id": path, "method": "POST", "url": path, "body": {**body, "receipt": "full"}}
        for path, body in OWN.items()
    ]
    rows[0]["body"] |= {"seed": 7}
    (tmp_path / "requests.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    golden, report = tmp_path / "golden.jsonl", tmp_path / "report.xml"
    done = process("batch", tmp_path / "requests.jsonl", golden, "--model", folder / "model.gguf")
    assert done.returncode == 0, done.stderr
    other = {"NORIA_QUANTIZE": "none"}
    done = process("verify", golden, "--model", folder / "model.gguf", **other)
    assert (done.returncode, done.stdout) == (0, "verify: 4 of 4 answers passed\n"), (done.stdout, done.stderr)
    done = process("verify", golden, "--model", folder / "model.gguf", "--answers-only", **other)
    assert (done.returncode, "no proof of a fault" in done.stdout) == (4, True), (done.stdout, done.stderr)
    done = process("verify", golden, "--model", folder / "changed.gguf", "--answers-only", "--junit", report)
    assert done.returncode == 3, done.stderr
    failures = [*ElementTree.parse(report).iter("failure")]
    assert len(failures) == sum("tokens: token " in line for line in done.stdout.splitlines()) > 0
    message = failures[0].get("message") or ""
    assert message.startswith("tokens: token ")
    assert "weights: the model's files are others" in message
