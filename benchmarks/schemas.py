"""JSON schemas that people have, with instances that are valid or not: `python -m benchmarks.schemas DATA`.

DATA is the folder `maskbench/data` of https://github.com/guidance-ai/jsonschemabench: a file for each schema. The
grammar of each takes its instances byte by byte, as they would come from a model; none runs. A schema passes if all its
valid instances can be written and no invalid one.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from model.errors import ParameterError
from model.grammar.compiler import Compiler
from model.grammar.vocabulary import Vocabulary
from service.errors.errors import InvalidRequest
from service.structured.constraint import json_constraint

OUTCOMES = ("passes", "refused", "a valid instance missed", "an invalid instance let through")
END = 256
"""The token after those of all bytes."""


class Tried(NamedTuple):
    """A schema's file, what came of it, the reason or the instance, and the seconds of a processor to its grammar."""

    name: str
    outcome: str
    detail: str
    seconds: float


@cache
def compiler() -> Compiler:
    pieces = (*(bytes([byte]) for byte in range(END)), b"<end>")
    return Compiler(Vocabulary(pieces, (END,), (END,)))


def tried(path: Path) -> Tried:
    """Compile the schema of a file, and follow it through the file's instances."""
    case = json.loads(path.read_text())
    compiler()
    start = time.thread_time()
    try:
        matcher: Any = compiler().compile(json_constraint(case["schema"], "schema").serialized())
    except (InvalidRequest, ParameterError) as error:
        return Tried(path.name, "refused", str(error), time.thread_time() - start)
    seconds = time.thread_time() - start
    for test in case["tests"]:
        tokens = [*json.dumps(test["data"], ensure_ascii=False).encode(errors="surrogatepass"), END]
        accepted = matcher.validate_tokens(tokens) == len(tokens)
        if accepted != test["valid"]:
            outcome = OUTCOMES[2] if test["valid"] else OUTCOMES[3]
            return Tried(path.name, outcome, json.dumps(test["data"])[:1000], seconds)
    return Tried(path.name, "passes", "", seconds)


def all_tried(paths: Sequence[Path], workers: int) -> Iterator[Tried]:
    """Yield what became of each file, and show the progress on a terminal."""
    with ProcessPoolExecutor(workers) as pool:
        for n, one in enumerate(pool.map(tried, paths, chunksize=16)):
            if sys.stderr.isatty():
                print(f"\r{n + 1} of {len(paths)}", end="", file=sys.stderr)
            yield one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of files, each with `schema` and `tests`")
    parser.add_argument("--details", type=Path, help="write each schema that does not pass to this file, one a line")
    parser.add_argument("--workers", type=int, default=2, help="processes that compile (default 2)")
    arguments = parser.parse_args()
    paths = sorted(arguments.data.glob("*.json"))
    if not paths:
        parser.error(f"{arguments.data} has no file *.json")
    found = [*all_tried(paths, arguments.workers)]
    counts = Counter(one.outcome for one in found)
    print(f"| outcome | of {len(found)} schemas |", "|---|---|", sep="\n")
    for outcome in OUTCOMES:
        print(f"| {outcome} | {counts[outcome]} |")
    ordered = sorted(found, key=lambda one: one.seconds)
    for share in (50, 99, 100):
        one = ordered[min(len(ordered) * share // 100, len(ordered) - 1)]
        print(f"{share} % of the grammars take at most {one.seconds * 1000:.1f} ms ({one.name})")
    if arguments.details:
        rows = [json.dumps(one._asdict()) for one in found if one.outcome != "passes"]
        arguments.details.write_text("\n".join([*rows, ""]))


if __name__ == "__main__":
    main()
