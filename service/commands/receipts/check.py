"""`noria check`: recorded requests whose answers must be the same as when they were recorded."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import typer

from model.errors import OptionError, counted
from model.options import option
from service.commands.flags import takes
from service.commands.receipts import again, golden, junit
from service.commands.receipts.junit import Result
from service.commands.target import TargetOptions
from service.receipts.arithmetic import Arithmetic, no_promise
from service.receipts.compare import ANSWER

AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class CheckOptions(TargetOptions):
    """The options of `noria check`."""

    golden: Path = option(cast(Any, ...), "File of requests and their answers, one a line.")
    record: Path | None = option(
        None,
        "File of requests in OpenAI's batch format: compute them, and write them with their answers to the file of "
        "--golden.",
        unset="the answers are compared",
    )
    junit: Path | None = option(None, "File for a report in JUnit's XML. Not allowed with --record.", unset="no report")


@takes(CheckOptions, "NORIA_CHECK_")
def check(options: CheckOptions) -> None:
    """Compute recorded requests again, and fail if an answer differs: a test for new weights, versions, machines.

    The exit code is 0 if all answers are the same; 3 if one differs; 4 if one differs on a machine that does not
    promise equal bits; 1 if there was no answer. Without --url the command starts its own server, which reads the
    environment variables of noria serve.
    """
    options.check_target()
    if options.record is not None and options.junit is not None:
        raise OptionError("--record and --junit exclude each other: a recording compares nothing")
    target = options.golden if options.record is not None else options.junit
    if target is not None and (target.is_dir() or not os.access(target.parent, os.W_OK)):
        raise OptionError(
            f"{target} cannot be written: it is a directory, or its directory is not there or may not be written"
        )
    source = golden.read(options.golden) if options.record is None else golden.requests(options.record)
    with (
        again.server(options) as client,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        if options.record is not None:
            golden.write(options.golden, pool.map(partial(golden.recorded, client), source))
            typer.echo(f"recorded {counted(len(source), 'answer')} in {options.golden}")
            return
        results = [*pool.map(partial(result_of, client, again.arithmetic_at(client)), source)]
    tell(results)
    if options.junit is not None:
        junit.write(options.junit, results)
    raise typer.Exit(code_of(results))


def code_of(results: Sequence[Result]) -> int:
    """The exit code: a line without an answer counts most, then one that differs in spite of a promise."""
    if any(one.error for one in results):
        return 1
    codes = {again.exit_code(one.found, promised=one.promised) for one in results}
    return again.DIFFERS if again.DIFFERS in codes else max(codes)


def result_of(client: httpx.Client, here: Arithmetic, line: golden.Line) -> Result:
    """Compute a line again. Other weights are no fault of it, as long as the answer is the same."""
    started, error = time.perf_counter(), ""
    try:
        found = sorted(again.compared(client, line.receipts, line.body), key=lambda item: item.field not in ANSWER)
    except OptionError as problem:
        found, error = [], str(problem)
    differs = bool(found) and found[0].field in ANSWER
    promised = not no_promise(line.receipts[0], here)
    return Result(line, found if differs else [], promised, error, time.perf_counter() - started)


def tell(results: Sequence[Result]) -> None:
    """Print each line whose answer differs, and the count."""
    wrong = [one for one in results if one.problem]
    for one in wrong:
        typer.echo(f"{one.line.custom_id}: {one.problem}")
    if any(one.found and not one.promised for one in wrong):
        typer.echo(again.NO_PROOF)
    are = "is" if len(results) == 1 else "are"
    typer.echo(f"check: {len(results) - len(wrong)} of {counted(len(results), 'answer')} {are} the same")
