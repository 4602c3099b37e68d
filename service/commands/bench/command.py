"""`noria bench`: load an OpenAI endpoint and report how fast it answers."""

import asyncio
import json
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from model.errors import OptionError
from model.options import option
from service import version
from service.commands.bench.connections import Connections
from service.commands.bench.prompts import Prompt, bodies, file_prompts, random_prompts
from service.commands.bench.summary import summarize, tables
from service.commands.bench.workload import Result, Workload, run
from service.commands.endpoint import base_url, find_model, headers, server_version
from service.commands.flags import takes
from service.commands.lengths import HELP, lengths

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
REQUESTS = 100
CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of `noria bench`."""

    url: str = option("http://127.0.0.1:8000", "Address of the server.")
    model: str | None = option(None, "Model id.", unset="the first one that the server lists")
    endpoint: str = option("completions", "Endpoint that is called.", choices=tuple(PATHS))
    requests: int | None = option(
        None,
        "Number of requests. The lines of --prompts repeat if there are fewer.",
        unset=f"{REQUESTS}, with --prompts one for each line, with --seconds any",
        least=1,
    )
    seconds: float | None = option(
        None, "Send no request later than this; those in flight still finish.", unset="none", least=0.001
    )
    concurrency: int | None = option(
        None, "Number of requests in flight at any time.", unset=f"{CONCURRENCY} unless --rate is set", least=1
    )
    rate: float | None = option(
        None,
        "Average number of requests per second, at random times (Poisson). Not allowed with --concurrency.",
        unset="none",
        least=0.001,
        most=1e6,
    )
    input_tokens: str = option("64", f"Words in a prompt; a word is about a token. {HELP}.")
    output_tokens: str = option("64", f"Value of max_tokens in each request. {HELP}.")
    shared_prefix: int = option(0, "Words at the start that all random prompts share.", least=0)
    prompts: Path | None = option(None, "File with one prompt per line (text or JSON).", unset="random words")
    api_key: str | None = option(None, "API key of the server.")
    seed: int | None = option(
        None, "Seed of prompts, lengths and arrival times.", unset="a random number, which the report contains"
    )
    warmup: int = option(1, "Number of requests that are sent before the measured ones.", least=0)
    json: Path | None = option(None, "File for the report and the result of every request.")
    ignore_eos: bool = option(
        True, "Send ignore_eos, so that every answer has max_tokens tokens. Some servers refuse the field."
    )
    timeout: float = option(600.0, "Seconds that a request may take.", least=0.001)


@takes(BenchOptions, "NORIA_BENCH_")
def bench(options: BenchOptions) -> None:
    """Send load to an OpenAI endpoint and report its speed.

    The requests are streamed. The report has throughput and latencies. The exit code is 1 if a request failed.
    """
    if execute(options)["requests"]["failed"]:
        raise typer.Exit(1)


def execute(options: BenchOptions) -> dict[str, Any]:
    """Send the load, print tables and write the JSON file; returns the report.

    Raises OptionError for options that exclude each other, a file or server that cannot be used, or a failed warm-up.
    """
    if options.rate and options.concurrency:
        raise OptionError("--rate and --concurrency exclude each other; give one of them")
    if options.shared_prefix and options.prompts:
        raise OptionError("--shared-prefix and --prompts exclude each other; give one of them")
    if options.json:
        _write(options.json, {})  # a file that cannot be written fails now, not after the run
    options = replace(options, seed=random.SystemRandom().getrandbits(31) if options.seed is None else options.seed)
    prompts = file_prompts(options.prompts) if options.prompts else None
    if options.requests is None and options.seconds is None:
        options = replace(options, requests=len(prompts or range(REQUESTS)))
    _requests(options, prompts)  # refuses wrong options before the server gets a request
    with httpx.Client(
        base_url=base_url(options.url), headers=headers(options.api_key), timeout=options.timeout
    ) as client:
        options = replace(options, model=find_model(client, options.model))
        server = server_version(client)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    results, seconds = asyncio.run(_send(options, _requests(options, prompts)))
    report = {
        "started": started,
        "configuration": _configuration(options),
        "versions": {"noria": version(), "server": server},
        **summarize(results, seconds),
    }
    for table in tables(report):
        Console().print(table)
    if options.json:
        _write(options.json, report | {"results": [asdict(result) for result in results]})
    return report


def _requests(options: BenchOptions, prompts: list[Prompt] | None) -> Iterator[dict[str, Any]]:
    """Return the bodies of `options.requests` requests, without an end if that is None."""
    prompt_lengths = lengths(options.input_tokens, "--input-tokens")
    answer_lengths = lengths(options.output_tokens, "--output-tokens")
    seed, shared = options.seed or 0, options.shared_prefix
    if shared > prompt_lengths.least:
        raise OptionError(
            f"--shared-prefix ({shared}) must be at most the least number of --input-tokens {options.input_tokens}, "
            f"which is {prompt_lengths.least}"
        )
    if prompts is None:
        made = bodies(random_prompts(prompt_lengths.drawn(seed), shared, seed), options.endpoint)
    else:
        made = cycle([*bodies(prompts, options.endpoint)])
    common: dict[str, Any] = {
        "model": options.model,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.ignore_eos:
        common["ignore_eos"] = True
    numbered = zip(made, answer_lengths.drawn(seed + 1), strict=False)
    return islice(({**common, **body, "max_tokens": n_tokens} for body, n_tokens in numbered), options.requests)


def _workload(options: BenchOptions, requests: Iterable[dict[str, Any]]) -> Workload:
    return Workload(
        path=PATHS[options.endpoint],
        bodies=requests,
        concurrency=options.concurrency or CONCURRENCY,
        rate=options.rate,
        seed=options.seed or 0,
        timeout=options.timeout,
        seconds=options.seconds or math.inf,
    )


async def _send(options: BenchOptions, requests: Iterable[dict[str, Any]]) -> tuple[list[Result], float]:
    first = replace(options, requests=options.warmup, rate=None, shared_prefix=0, seed=(options.seed or 0) + 1)
    async with Connections(base_url(options.url), headers(options.api_key)) as connections:
        for result in await run(connections, _workload(first, _requests(first, None)), lambda _: None):
            if result.error:
                raise OptionError(f"a warm-up request failed ({result.error}): {result.detail}")
        with _progress() as progress:
            task = progress.add_task("requests", total=options.requests)
            results = await run(connections, _workload(options, requests), lambda _: progress.advance(task))
    if not results:
        raise OptionError(f"--seconds {options.seconds:g} is too short: no request was sent")
    return results, max(result.start + result.seconds for result in results)


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def _configuration(options: BenchOptions) -> dict[str, Any]:
    """Return the options that repeat the run, without the API key and paths."""
    configuration = {name: value for name, value in asdict(options).items() if name not in ("api_key", "json")}
    if options.rate is None:
        configuration["concurrency"] = options.concurrency or CONCURRENCY
    return configuration | {"url": base_url(options.url), "prompts": options.prompts.name if options.prompts else None}


def _write(path: Path, report: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--json {path} cannot be written: {error.strerror}") from error
