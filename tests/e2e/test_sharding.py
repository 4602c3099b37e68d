"""Models that several ranks share, over HTTP: the answers are those of one process, and the ranks end together."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import LiveServer, free_port, serving
from tests.faults import offspring
from tests.forks import finished, started
from tests.waiting import PATIENCE, children, ended, eventually, named, strike

TEXT = "The wheel turns and each bucket"
BODIES: list[dict[str, Any]] = [
    {"prompt": TEXT, "max_tokens": 20, "logprobs": 2},
    {"prompt": "Once", "max_tokens": 30, "logprobs": 0, "frequency_penalty": 1.0, "logit_bias": {"5": 2.0}},
    {"prompt": TEXT * 40, "max_tokens": 4, "logprobs": 1},
    {"prompt": TEXT, "max_tokens": 1, "logprobs": 2, "echo": True},
    {"prompt": "Go", "max_tokens": 12, "logprobs": 0, "structured_outputs": {"regex": "[a-f]{4} [0-9]{3}"}},
    {"prompt": "My", "max_tokens": 10, "logprobs": 0, "seed": 5, "n": 3, "temperature": 0.9, "top_p": 0.9},
    {"prompt": "a b a b a b a b a b", "max_tokens": 16, "logprobs": 0, "prompt_lookup_num_tokens": 4},
]


@pytest.fixture(scope="module")
def alone(short_model: Path) -> Iterator[LiveServer]:
    with serving(str(short_model), "--dtype", "float32") as server:
        yield server


@pytest.fixture(scope="module")
def pair(short_model: Path) -> Iterator[LiveServer]:
    flags = ("--dtype", "float32", "--pipeline-parallel-size", "2", "--max-step-tokens", "64")
    with serving(str(short_model), *flags, paced=True) as server:
        yield server


@pytest.fixture(scope="module")
def trio(short_model: Path) -> Iterator[LiveServer]:
    """Ranks that share layers: the kernels call back where they join."""
    with serving(str(short_model), "--quantize", "int8", "--tensor-parallel-size", "3", paced=True) as server:
        yield server


def ranks(server: LiveServer) -> list[int]:
    """Processes of the ranks of the engine that serves, but for rank 0."""
    return [pid for pid in children(server.engine_pid) if named(pid).startswith("noria-rank-")]


def choices(server: LiveServer, body: dict[str, Any]) -> tuple[list[Any], list[float]]:
    """Texts and tokens of an answer, and all its logprobs."""
    response = server.http.post("/v1/completions", json={"temperature": 0, **body})
    assert response.status_code == 200, response.text
    found = sorted(response.json()["choices"], key=lambda choice: choice["index"])
    values = [value for choice in found for value in choice["logprobs"]["token_logprobs"] if value is not None]
    return [(choice["text"], choice["logprobs"]["tokens"], choice["finish_reason"]) for choice in found], values


def test_two_stages_answer_as_one_process(alone: LiveServer, pair: LiveServer) -> None:
    """All at once on the ranks, one after another in one process: what is sampled, scored and constrained."""
    expected = [choices(alone, body) for body in BODIES]
    with ThreadPoolExecutor(len(BODIES)) as pool:
        found = list(pool.map(lambda body: choices(pair, body), BODIES))
    for (texts, values), (same_texts, same_values) in zip(expected, found, strict=True):
        assert same_texts == texts
        assert same_values == pytest.approx(values, abs=1e-4)


def test_two_stages_embed_as_one_process(alone: LiveServer, pair: LiveServer) -> None:
    body = {"model": "smollm2-short", "input": [TEXT, "Once"], "encoding_format": "float"}
    expected, found = (server.http.post("/v1/embeddings", json=body).json()["data"] for server in (alone, pair))
    for one, same in zip(expected, found, strict=True):
        assert same["embedding"] == pytest.approx(one["embedding"], abs=1e-5)


def test_the_layout_has_a_name(alone: LiveServer, pair: LiveServer) -> None:
    whole, split = (server.http.get("/version").json() for server in (alone, pair))
    for engine in (whole["engine"], split["engine"]):
        del engine["kernels_reason"]  # names a measured speed where there is AMX
    assert split["engine"] == whole["engine"] | {"layout": "pp2"}
    assert split["fingerprint"] != whole["fingerprint"]


@pytest.mark.parametrize("layout", ["pair", "trio"])
def test_a_rank_that_is_lost_under_load(layout: str, request: pytest.FixtureRequest) -> None:
    """All ranks end, the log says why, and a fresh set goes on with the stream that had begun."""
    server: LiveServer = request.getfixturevalue(layout)
    lost, *others = ranks(server)
    body = {"prompt": TEXT, "max_tokens": 100, "temperature": 0, "ignore_eos": True, "stream": True}
    alone = server.http.post("/v1/completions", json={**body, "stream": False}).json()["choices"][0]["text"]
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {"))
        with server.slow():
            first = next(lines)
            strike(lost, signal.SIGSTOP)
        text = "".join(json.loads(line)["choices"][0]["text"] for line in (first, *lines))
    assert text == alone
    eventually(lambda: ended(lost), "the rank has ended")
    assert f"rank 1 (process {lost}) is " in server.log
    assert len(ranks(server)) == 1 + len(others)
    assert choices(server, BODIES[0])[0][0][2] == "length"


def of_engine(service: int) -> list[int]:
    """The processes that the engine has started."""
    return [pid for engine in children(service) for pid in offspring(engine)]


def test_no_rank_outlives_a_service_that_is_killed_while_it_loads(short_model: Path) -> None:
    command = ["service", "serve", str(short_model), "--pipeline-parallel-size", "2", "--port", str(free_port())]
    with Path(os.devnull).open("wb") as nowhere, started(command, os.environ, nowhere) as service:
        try:
            eventually(lambda: of_engine(service.pid), "a rank starts")
            below = offspring(service.pid) + of_engine(service.pid)
            service.kill()
            eventually(lambda: all(map(ended, below)), "nothing is left")
        finally:
            service.kill()


@contextmanager
def torchrun(model: Path, log: Path) -> Iterator[tuple[LiveServer, list["subprocess.Popen[bytes]"]]]:
    """`noria serve` in two stages, each in a process tree of its own, as on two hosts; the server of rank 0, the trees.

    SIGTERM ends both.
    """
    meeting, port = free_port(), free_port()
    common = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={meeting}"]
    serve = ["-m", "service", "serve", str(model), "--pipeline-parallel-size=2", f"--port={port}"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    trees = []
    with log.open("wb") as output:
        for node in range(2):
            command = [sys.executable, "-m", "torch.distributed.run", *common, f"--node-rank={node}", *serve]
            trees.append(subprocess.Popen(command, stdout=output, stderr=output, env=variables))
        server = LiveServer(trees[0], port, log)
        try:
            server.wait_ready()
            yield server, trees
        finally:
            server.http.close()
            server.openai.close()
            below = [pid for tree in trees for pid in (tree.pid, *descendants(tree.pid))]
            for tree in trees:
                tree.terminate()
            for tree in trees:
                tree.wait(PATIENCE)
            eventually(lambda: all(map(ended, below)), "nothing is left")


def descendants(pid: int) -> list[int]:
    below = offspring(pid)
    return [*below, *(pid for child in below for pid in descendants(child))]


def test_torchrun_across_hosts(short_model: Path, tmp_path: Path) -> None:
    """Rank 0 serves HTTP. When rank 1 is killed both start again, rank 1 under its own supervisor."""
    with torchrun(short_model, tmp_path / "log") as (server, trees):
        before = choices(server, BODIES[0])
        (lost,) = [pid for pid in descendants(trees[1].pid) if named(pid) == "noria-rank-1"]
        strike(lost, signal.SIGKILL)
        eventually(lambda: not server.ready(), "the service notices")
        server.wait_ready()
        assert choices(server, BODIES[0]) == before
        assert "rank 1 has closed its connection" in server.log
        assert "rank 1: its process has ended (killed by SIGKILL); it joins rank 0 again" in server.log


def by_hand(model: Path, *flags: tuple[str, ...]) -> list[tuple[list[str], dict[str, str]]]:
    """`noria serve` in two stages with torchrun's variables, rank 0 and rank 1, each with its own flags."""
    serve = ["service", "serve", str(model), "--pipeline-parallel-size", "2"]
    common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(free_port()), "NORIA_LOG_LEVEL": "error"}
    return [([*serve, *own], {**os.environ, **common, "RANK": str(rank)}) for rank, own in enumerate(flags)]


def test_other_hosts_end_with_the_service(short_model: Path, tmp_path: Path) -> None:
    """They wait for its next engine only if this one was lost."""
    port = free_port()
    with (tmp_path / "log").open("wb") as log:
        processes = [started(*command, log) for command in by_hand(short_model, ("--port", str(port)), ())]
    try:
        eventually(lambda: answers(port), "the service is ready")
        processes[0].send_signal(signal.SIGTERM)
        assert [process.wait(PATIENCE) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait(PATIENCE)


def answers(port: int) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200
    return False


def test_a_layout_that_does_not_fit_is_refused_in_one_line(short_model: Path) -> None:
    """Of `noria serve` alone, and of each rank of torchrun."""
    port = ("--port", "0")
    alone = ["service", "serve", *port, "--log-level", "error", "--tensor-parallel-size", "2"]
    ranks = by_hand(short_model, *[(*port, "--pipeline-parallel-size", "1", "--tensor-parallel-size", "2")] * 2)
    with ThreadPoolExecutor(3) as pool:
        ends = [*pool.map(lambda command: finished(*command), [(alone, {**os.environ}), *ranks])]
    assert [end.returncode for end in ends] == [1, 1, 1], ends
    for text in (end.stderr for end in ends):
        assert text.splitlines() == [text.strip()], "one line"
        assert re.search(r"--tensor-parallel-size 2 does not divide 9 heads .*; choose one of: 1, 3$", text.strip())
