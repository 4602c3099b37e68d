"""`noria check`: recorded requests whose answers must be the same as when they were recorded."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx
import typer

from model.errors import OptionError
from model.options import option
from service.commands.flags import takes
from service.commands.receipts import golden, junit
from service.commands.receipts.again import (
    answers,
    arithmetic_at,
    body_for,
    exit_code,
    promise,
    same_choice,
    server,
    token_name,
)
from service.receipts.arithmetic import Arithmetic
from service.receipts.compare import ANSWER, Difference, differences

AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The options of `noria check`."""

    golden: Path = option(cast(Any, ...), "File of requests and their answers, one a line.")
    record: Path | None = option(
        None,
        "File of requests in OpenAI's batch format: compute them, and write them with their answers to the file of "
        "--golden.",
        unset="the answers are compared",
    )
    junit: Path | None = option(None, "File for a report in JUnit's XML.", unset="no report")
    model: str | None = option(
        None, "Model to compute with, as for noria serve. Not allowed with --url.", unset="the embedded model"
    )
    url: str | None = option(
        None, "Address of a running server with --receipt-key.", unset="the command starts its own server"
    )
    api_key: str | None = option(None, "API key of the server at --url.")


class Result(NamedTuple):
    """The check of one line: what differs, or why there was no answer, and the seconds it took."""

    line: golden.Line
    found: list[Difference]
    promised: bool
    error: str = ""
    seconds: float = 0.0

    @property
    def problem(self) -> str:
        """The first difference of the answer, with its likely cause; empty if it is the same."""
        return self.error or "; ".join(f"{item.field}: {item.message}" for item in self.found)


@takes(CheckOptions, "NORIA_CHECK_")
def check(options: CheckOptions) -> None:
    """Compute recorded requests again, and fail if an answer differs: a test for new weights, versions, machines.

    The exit code is 0 if all answers are the same; 3 if one differs; 4 if one differs on a machine that does not
    promise equal bits; 1 if there was no answer. Without --url the command starts its own server, which reads the
    environment variables of noria serve.
    """
    source = golden.read(options.golden) if options.record is None else golden.requests(options.record)
    with (
        server(options.model, options.url, options.api_key) as client,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        if options.record is not None:
            golden.write(options.golden, pool.map(partial(golden.recorded, client), source))
            typer.echo(f"recorded {len(source)} answers in {options.golden}")
            return
        results = [*pool.map(partial(result_of, client, arithmetic_at(client)), source)]
    if options.junit is not None:
        junit.write(options.junit, [(one.line, one.problem, bool(one.error), one.seconds) for one in results])
    tell(results)
    if any(one.error for one in results):
        raise typer.Exit(1)
    raise typer.Exit(max(exit_code(one.found, promised=one.promised) for one in results))


def result_of(client: httpx.Client, here: Arithmetic, line: golden.Line) -> Result:
    """Compute a line again. Other weights are no fault of it, as long as the answer is the same."""
    first, started = line.receipts[0], time.perf_counter()
    promised = not promise(first, here)
    try:
        again = answers(client, line.url, body_for(first, line.body))
    except OptionError as error:
        return Result(line, [], promised, str(error), time.perf_counter() - started)
    seconds, name = time.perf_counter() - started, partial(token_name, client)
    found = [item for one in line.receipts for item in differences(one, same_choice(one, again), name)]
    found.sort(key=lambda item: item.field not in ANSWER)
    return Result(line, found if found and found[0].field in ANSWER else [], promised, "", seconds)


def tell(results: Sequence[Result]) -> None:
    """Print each line whose answer differs, and the count."""
    wrong = [one for one in results if one.problem]
    for one in wrong:
        typer.echo(f"{one.line.custom_id}: {one.problem}")
    if any(not one.promised for one in wrong):
        typer.echo("an answer that differs here is no proof of a fault: no equal bits are promised")
    typer.echo(f"check: {len(results) - len(wrong)} of {len(results)} answers are the same")
