"""The load generator against a server whose answers are known."""

import json
import random
import socket
from itertools import accumulate
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from service.commands.bench.summary import distribution, inter_token
from service.commands.bench.workload import Result
from tests.service.command_line import Done, noria
from tests.service.commands.fake_openai import FakeOpenAI, serving
from tests.waiting import PATIENCE


def run(*arguments: object, env: dict[str, str] | None = None) -> Done:
    """`noria bench ARGUMENTS` in this process."""
    return noria("bench", *arguments, env=env)


def run_json(fake: FakeOpenAI, folder: Path, *arguments: object) -> tuple[Done, dict[str, Any]]:
    with serving(fake) as url:
        result = run("--url", url, "--json", folder / "report.json", *arguments)
    return result, json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_counts_add_up(endpoint: str, tmp_path: Path) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
    fake = FakeOpenAI(usage=usage)
    result, report = run_json(
        fake, tmp_path, "--endpoint", endpoint, *["--requests", "12", "--concurrency", "3", "--warmup", "2"]
    )
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout
    assert len(fake.requests) == 14  # the warm-up is sent, and not counted
    assert 1 < fake.max_in_flight <= 3
    assert report["requests"] == {"total": 12, "completed": 12, "failed": 0}
    assert report["tokens"] == {"prompt": 120, "cached": 36, "completion": 48, "pieces": 48, "without_usage": 0}
    assert report["throughput"]["output_tokens_per_second"] == pytest.approx(48 / report["duration_seconds"])
    assert report["throughput"]["requests_per_second"] == pytest.approx(12 / report["duration_seconds"])
    assert report["errors"] == {}


def test_latencies_are_those_of_the_single_requests(tmp_path: Path) -> None:
    fake = FakeOpenAI(delay=0.01)
    _, report = run_json(fake, tmp_path, *["--requests", "4", "--concurrency", "2"])
    requests, latency = report["results"], report["latency_seconds"]
    assert len(requests) == 4
    for request in requests:
        assert len(request["arrivals"]) == 4
        assert request["arrivals"] == sorted(request["arrivals"])
        assert request["seconds"] >= 0.06  # six pauses of the server
    assert latency["request"]["mean"] == pytest.approx(mean(request["seconds"] for request in requests))
    assert latency["request"]["p99"] == max(request["seconds"] for request in requests)
    assert latency["time_to_first_token"]["mean"] == pytest.approx(mean(request["arrivals"][0] for request in requests))
    spans = [(request["arrivals"][-1] - request["arrivals"][0]) / 3 for request in requests]
    assert latency["inter_token"]["mean"] == pytest.approx(mean(spans))


def test_without_usage_pieces_are_counted_and_the_report_says_so(tmp_path: Path) -> None:
    result, report = run_json(FakeOpenAI(usage=None), tmp_path, *["--requests", "3", "--warmup", "0"])
    assert report["tokens"]["completion"] == 12
    assert report["tokens"]["without_usage"] == 3
    assert "answers without usage" in result.stdout


def test_poisson_arrivals_neither_come_early_nor_wait_for_answers(tmp_path: Path) -> None:
    fake = FakeOpenAI(delay=0.02)
    arguments = ["--requests", "20", "--rate", "400", "--seed", "7", "--warmup", "0"]
    result, report = run_json(fake, tmp_path, *arguments)
    assert result.returncode == 0, result.stderr
    rng = random.Random(7)
    due = [0.0, *accumulate(rng.expovariate(400) for _ in range(19))]
    starts = sorted(request["start"] for request in report["results"])
    assert all(start >= time - 1e-3 for start, time in zip(starts, due, strict=True))  # the loop's clock is coarser
    assert fake.max_in_flight > 1
    assert report["configuration"]["rate"] == 400


def test_no_request_is_sent_after_the_seconds(tmp_path: Path) -> None:
    """The 10th answer ends after 0.6 s at least, because each has six pauses of 10 ms."""
    fake = FakeOpenAI(delay=0.01)
    arguments = ["--seconds", "0.3", "--warmup", "0"]
    result, report = run_json(fake, tmp_path, *arguments, "--concurrency", "2")
    assert result.returncode == 0, result.stderr
    assert 2 < len(fake.requests) <= 10
    assert len({body["prompt"] for body in fake.requests}) == len(fake.requests)
    assert report["requests"]["completed"] == len(fake.requests)
    rng = random.Random(7)
    due = [0.0, *accumulate(rng.expovariate(100) for _ in range(200))]
    _, report = run_json(fake, tmp_path, *arguments, "--rate", "100", "--seed", "7")
    assert report["requests"]["completed"] == sum(time <= 0.3 for time in due)


def test_lengths_come_from_distributions_and_repeat_with_the_seed(tmp_path: Path) -> None:
    sent = []
    for seed in (3, 3, 4):
        fake = FakeOpenAI()
        arguments = ["--input-tokens", "uniform:8-99", "--output-tokens", "uniform:2-50", "--shared-prefix", "8"]
        run_json(
            fake, tmp_path, *arguments, "--seed", seed, *["--concurrency", "1", "--requests", "9", "--warmup", "0"]
        )
        sent.append([(body["prompt"], body["max_tokens"]) for body in fake.requests])
    assert sent[0] == sent[1] != sent[2]
    words, answers = [prompt.split() for prompt, _ in sent[0]], {length for _, length in sent[0]}
    assert len({tuple(prompt[:8]) for prompt in words}) == 1
    assert len({len(prompt) for prompt in words}) > 5 < len(answers)
    assert all(8 <= len(prompt) <= 99 for prompt in words)
    assert min(answers) >= 2
    assert max(answers) <= 50


def test_failed_requests_are_counted_by_kind_and_fail_the_command(tmp_path: Path) -> None:
    fake = FakeOpenAI(fails={2: 429, 3: 429, 5: 500})
    result, report = run_json(fake, tmp_path, *["--requests", "6", "--concurrency", "1", "--warmup", "0"])
    assert result.returncode == 1
    assert report["requests"] == {"total": 6, "completed": 3, "failed": 3}
    assert {kind: error["count"] for kind, error in report["errors"].items()} == {"http_429": 2, "http_500": 1}
    assert report["errors"]["http_429"]["example"] == "told to fail with 429"
    assert report["tokens"]["completion"] == 12  # of the completed ones


@pytest.mark.parametrize(("how", "kind"), [("error", "stream_error"), ("cut", "incomplete")])
def test_a_broken_stream_is_a_failure(how: str, kind: str, tmp_path: Path) -> None:
    result, report = run_json(FakeOpenAI(break_stream=how), tmp_path, *["--requests", "2", "--warmup", "0"])
    assert result.returncode == 1
    assert report["errors"][kind]["count"] == 2


def test_a_slow_answer_is_a_timeout(tmp_path: Path) -> None:
    fake = FakeOpenAI(delay=30.0)
    result, report = run_json(fake, tmp_path, *["--requests", "2", "--warmup", "0", "--timeout", "0.3"])
    assert result.returncode == 1
    assert report["errors"]["timeout"]["count"] == 2
    assert fake.closed_early.wait(PATIENCE)


def test_a_refused_connection_is_one_line() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        result = run("--url", url)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert f"cannot connect to {url}" in result.stderr


def test_a_server_without_models_is_one_line() -> None:
    with serving(FakeOpenAI(models=())) as url:
        result = run("--url", url)
    assert result.returncode == 1
    assert result.stderr == f"noria: {url} lists no model at /v1/models; is it an OpenAI endpoint?\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--rate 3 --concurrency 2", "--rate and --concurrency exclude each other"),
        (
            "--shared-prefix 65",
            "--shared-prefix (65) must be at most the least number of --input-tokens 64",
        ),
        ("--shared-prefix 9 --input-tokens uniform:8-64", "number of --input-tokens uniform:8-64, which is 8"),
        ("--output-tokens many", "--output-tokens must be N, uniform:LOW-HIGH or lognormal:MEDIAN,SIGMA, got 'many'"),
        ("--shared-prefix 2 --prompts /etc/hostname", "--shared-prefix and --prompts exclude each other"),
        ("--url 127.0.0.1:8000", "--url 127.0.0.1:8000 is not an address; expected http://HOST:PORT"),
        ("--url http://127.0.0.1:port", "--url http://127.0.0.1:port is not an address"),
        ("--prompts /nowhere/prompts", "--prompts /nowhere/prompts cannot be read"),
    ],
)
def test_wrong_options_are_one_line(arguments: str, message: str) -> None:
    result = run(*arguments.split())
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr


def test_a_failed_warm_up_ends_it_with_the_servers_word() -> None:
    with serving(FakeOpenAI(key="right")) as url:
        result = run("--url", url, "--api-key", "wrong")
    assert result.returncode == 1
    assert "a warm-up request failed (http_401): wrong key" in result.stderr


def test_flags_are_variables_and_the_key_stays_out_of_the_report(tmp_path: Path) -> None:
    fake = FakeOpenAI(key="secret-key")
    with serving(fake) as url:
        env = {"NORIA_BENCH_URL": url, "NORIA_BENCH_REQUESTS": "2", "NORIA_BENCH_API_KEY": "secret-key"}
        result = run("--json", tmp_path / "report.json", "--no-ignore-eos", env=env)
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "report.json").read_text()
    assert "secret-key" not in text
    report = json.loads(text)
    assert report["configuration"]["model"] == "fake-1"
    assert report["configuration"]["requests"] == len(fake.requests) - 1 == 2
    assert report["versions"]["noria"]
    assert all("ignore_eos" not in body for body in fake.requests)
    assert all(body["stream_options"] == {"include_usage": True} for body in fake.requests)


def test_prompts_of_a_file_are_sent_as_they_are(tmp_path: Path) -> None:
    lines = ["plain words", '"quoted\\nlines"', "[1, 2, 3]", "", '{"prompt": "inside"}', "[not json"]
    (tmp_path / "prompts").write_text("\n".join(lines))
    fake = FakeOpenAI()
    run_json(fake, tmp_path, "--prompts", tmp_path / "prompts", *["--concurrency", "1", "--warmup", "0"])
    assert [body["prompt"] for body in fake.requests] == [
        "plain words",
        "quoted\nlines",
        [1, 2, 3],
        "inside",
        "[not json",
    ]


def test_messages_are_for_chat_only(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (tmp_path / "prompts").write_text(json.dumps({"messages": messages}))
    fake = FakeOpenAI()
    arguments = ("--prompts", tmp_path / "prompts", *["--requests", "3", "--warmup", "0"])
    result, _ = run_json(fake, tmp_path, *arguments, "--endpoint", "chat")
    assert result.returncode == 0, result.stderr
    assert [body["messages"] for body in fake.requests] == [messages] * 3
    with serving(fake) as url:
        result = run("--url", url, *arguments)
    assert result.returncode == 1
    assert "--endpoint completions takes no messages" in result.stderr


def test_gaps_are_weighted_by_the_tokens_in_them() -> None:
    measured = Result(start=0.0, seconds=1.0, arrivals=(0.1, 0.2, 0.5), completion_tokens=5)
    assert inter_token(measured) == [(pytest.approx(0.05), 2.0), (pytest.approx(0.15), 2.0)]
    assert inter_token(Result(start=0.0, seconds=1.0, arrivals=(0.1,), completion_tokens=5)) == []


def test_percentiles_by_nearest_rank() -> None:
    figures = distribution([(float(value), 1.0) for value in range(100, 0, -1)])
    assert figures == {"mean": 50.5, "p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert distribution([(1.0, 98.0), (2.0, 1.0), (3.0, 1.0)]) == {"mean": 1.03, "p50": 1.0, "p90": 1.0, "p99": 2.0}
    assert distribution([]) is None
