"""`noria batch`: answer a file of requests, and go on where an earlier run stopped."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx
import typer

from model.errors import NoriaError, OptionError
from model.options import check_limits, option, required
from service.commands.batch.lines import Request, count, read
from service.commands.batch.progress import BatchProgress
from service.commands.batch.results import Results, opened
from service.commands.batch.run import run
from service.commands.flags import takes
from service.commands.pulse import showing
from service.commands.target import TargetOptions, target

OWN, OTHER = 256, 32
"""Requests at a time on a server of our own, and on one that others may use."""
MAX_QUEUE = 2**31 - 1
QUEUE_FLAGS = ("--max-queue", "--max-queue-choices", "--max-queue-tokens")
"""In the queue of a server of our own there is a place for all requests in flight."""


@dataclass(frozen=True, slots=True)
class BatchOptions(TargetOptions):
    """The options of `noria batch`."""

    input: Path = required("File of requests in OpenAI's batch format, one a line.")
    output: Path = required("File for the results, one a line. Lines that it has already are not computed again.")
    concurrency: int | None = option(
        None, "Number of requests in flight at any time.", unset=f"{OWN}, with --url {OTHER}", least=1
    )
    retry_failed: bool = option(False, "Compute the lines again that failed in an earlier run.")


@takes(BatchOptions, "NORIA_BATCH_")
def batch(options: BatchOptions) -> None:
    """Answer a file of requests in OpenAI's batch format.

    The order of the results is that in which they are finished. After a stop or a crash the same command goes on. The
    exit code is 1 if a line failed. Without --url the batch starts its own server, which reads the environment
    variables of noria serve.
    """
    check_limits(options)
    options.check_target()
    if options.output.exists() and options.input.exists() and options.output.samefile(options.input):
        raise OptionError(f"{options.output} is the file of the requests; name another file for the results")
    total = count(options.input)
    with opened(options.output, retry_failed=options.retry_failed) as results:
        found = Counter(map(results.good, read(options.input)))  # the file may have results of other lines
        left = found[None]
        progress = BatchProgress(total, left, found[False], results)
        try:
            if left:
                _answer(options, results, progress)
        except KeyboardInterrupt:
            typer.echo(f"stopped: {progress.counts()}. The same command goes on.", err=True)
            raise typer.Exit(130) from None
        except NoriaError as error:
            raise OptionError(f"{error} ({progress.counts()}; the same command goes on)") from error
    typer.echo(progress.summary(), err=True)
    if progress.failed:
        raise typer.Exit(1)


def _answer(options: BatchOptions, results: Results, progress: BatchProgress) -> None:
    """Answer the lines without a result. Raises OptionError, or KeyboardInterrupt at Ctrl-C."""
    n_at_once = options.concurrency or (OTHER if options.url else OWN)
    flags = [word for flag in QUEUE_FLAGS for word in (flag, str(MAX_QUEUE))]
    signs = any(isinstance(line, Request) and line.receipt for line in read(options.input))
    with target(options, flags, signs=signs) as server:
        client = server.async_client(httpx.Limits(max_connections=n_at_once))
        progress.start()
        with showing("batch", progress.report):
            lines = (line for line in read(options.input) if not results.has(line))
            asyncio.run(run(client, lines, n_at_once, progress.write))
