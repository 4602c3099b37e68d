"""`noria bench`: load an OpenAI endpoint, and say how fast it answered."""

import asyncio
import json
import random
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from model.errors import OptionError
from service.commands.bench.connections import Connections
from service.commands.bench.load import Load, Result, run
from service.commands.bench.prompts import Prompt, bodies, file_prompts, random_prompts
from service.commands.bench.summary import machine, summarize, tables, versions
from service.commands.endpoint import base_url, find_model, headers, server_version

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
REQUESTS = 100
CONCURRENCY = 8


def _option(flag: str, text: str, **limits: Any) -> Any:
    variable = "NORIA_BENCH_" + flag.split("/")[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(flag, envvar=variable, help=text, **limits)


def bench(
    url: Annotated[str, _option("--url", "The server to load.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, _option("--model", "Model id; the first that the server lists.")] = None,
    endpoint: Annotated[Literal["completions", "chat"], _option("--endpoint", "What to call.")] = "completions",
    requests: Annotated[
        int | None, _option("--requests", f"How many; {REQUESTS}, or one for each line of --prompts.", min=1)
    ] = None,
    concurrency: Annotated[
        int | None, _option("--concurrency", f"Requests in flight at any time; {CONCURRENCY} without --rate.", min=1)
    ] = None,
    rate: Annotated[
        float | None, _option("--rate", "Poisson arrivals, requests a second, in place of --concurrency.", min=0.001)
    ] = None,
    input_tokens: Annotated[int, _option("--input-tokens", "Words of a prompt, about a token each.", min=1)] = 64,
    output_tokens: Annotated[int, _option("--output-tokens", "max_tokens of each request.", min=1)] = 64,
    shared_prefix: Annotated[
        int, _option("--shared-prefix", "So many of the input tokens are the same in all prompts.", min=0)
    ] = 0,
    prompts: Annotated[
        Path | None, _option("--prompts", "File with one prompt a line (text or JSON) in place of random words.")
    ] = None,
    api_key: Annotated[str | None, _option("--api-key", "Key of the server.")] = None,
    seed: Annotated[
        int | None, _option("--seed", "Of prompts and arrivals; drawn when left out, and reported.")
    ] = None,
    warmup: Annotated[int, _option("--warmup", "Requests sent before, and not counted.", min=0)] = 1,
    json: Annotated[Path | None, _option("--json", "Write the report and every request to this file.")] = None,
    ignore_eos: Annotated[
        bool, _option("--ignore-eos/--no-ignore-eos", "Ask for every output token; some servers refuse the field.")
    ] = True,
    timeout: Annotated[float, _option("--timeout", "Seconds for a whole request.", min=0.001)] = 600.0,
) -> None:
    """Load an OpenAI endpoint with streamed requests; report throughput and latencies. Exit code 1 if one failed."""
    report = execute(Plan(**locals()))
    if report["requests"]["failed"]:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Plan:
    """The command line of `bench`, flag by flag."""

    url: str
    model: str | None
    endpoint: Literal["completions", "chat"]
    requests: int | None
    concurrency: int | None
    rate: float | None
    input_tokens: int
    output_tokens: int
    shared_prefix: int
    prompts: Path | None
    api_key: str | None
    seed: int | None
    warmup: int
    json: Path | None
    ignore_eos: bool
    timeout: float


def execute(plan: Plan) -> dict[str, Any]:
    """Run the plan, print tables, write the JSON; the report. Raises OptionError for what cannot be begun."""
    if plan.rate and plan.concurrency:
        raise OptionError("--rate and --concurrency exclude each other: arrivals are open or closed; give one")
    if plan.json:
        _write(plan.json, {})  # now rather than after the run
    plan = replace(plan, seed=random.SystemRandom().getrandbits(31) if plan.seed is None else plan.seed)
    prompts = _prompts(plan)
    with httpx.Client(base_url=base_url(plan.url), headers=headers(plan.api_key), timeout=plan.timeout) as client:
        plan = replace(plan, model=find_model(client, plan.model), requests=len(prompts))
        server = server_version(client)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    results, seconds = asyncio.run(_send(plan, prompts))
    report = {
        "started": started,
        "configuration": _configuration(plan),
        "versions": versions() | {"server": server},
        "machine": machine(),
        **summarize(results, seconds),
    }
    for table in tables(report):
        Console().print(table)
    if plan.json:
        _write(plan.json, report | {"results": [asdict(result) for result in results]})
    return report


def _prompts(plan: Plan) -> list[Prompt]:
    if plan.prompts:
        return file_prompts(plan.prompts, plan.requests)
    return random_prompts(plan.requests or REQUESTS, plan.input_tokens, plan.shared_prefix, plan.seed or 0)


def _load(plan: Plan, prompts: list[Prompt]) -> Load:
    common: dict[str, Any] = {
        "model": plan.model,
        "max_tokens": plan.output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plan.ignore_eos:
        common["ignore_eos"] = True
    return Load(
        path=PATHS[plan.endpoint],
        bodies=tuple(bodies(prompts, plan.endpoint, common)),
        concurrency=plan.concurrency or CONCURRENCY,
        rate=plan.rate,
        seed=plan.seed or 0,
        timeout=plan.timeout,
    )


async def _send(plan: Plan, prompts: list[Prompt]) -> tuple[list[Result], float]:
    load = _load(plan, prompts)
    other_words = random_prompts(plan.warmup, plan.input_tokens, 0, (plan.seed or 0) + 1)
    async with Connections(base_url(plan.url), headers(plan.api_key)) as connections:
        for result in await run(connections, replace(_load(plan, other_words), rate=None), lambda _: None):
            if result.error:
                raise OptionError(f"a warm-up request failed ({result.error}): {result.detail}")
        with _progress() as progress:
            task = progress.add_task("requests", total=len(prompts))
            results = await run(connections, load, lambda _: progress.advance(task))
    return results, max(result.start + result.seconds for result in results)


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def _configuration(plan: Plan) -> dict[str, Any]:
    """What repeats the run; the key and the file's place stay home."""
    shown = {name: value for name, value in asdict(plan).items() if name not in ("api_key", "json")}
    if plan.rate is None:
        shown["concurrency"] = plan.concurrency or CONCURRENCY
    return shown | {"url": base_url(plan.url), "prompts": plan.prompts.name if plan.prompts else None}


def _write(path: Path, report: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--json {path} cannot be written: {error.strerror}") from error
