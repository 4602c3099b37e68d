"""Speeds of Noria's engine and server and of each installed peer, in one table: `python -m benchmarks.peers`.

    --peers DIR     llama.cpp, OpenVINO GenAI, transformers in DIR/bin, vLLM's CPU build in DIR/vllm, AMD's PACE in
                    DIR/pace, and the embedded model in DIR/models: GGUF files, smollm2-hf, smollm2-w8a8 (see w8a8.py)

Every engine runs in its own process. Each round runs all engines once, so that a slow minute of the machine affects all
of them. Speeds are medians in tokens/s: of a prompt alone until its first token ("prefill"), and of the time in which
all streams decode. A ratio is Noria's speed divided by the peer's. The result is a JSON file in benchmarks/results/. It
is written again after every engine: an interrupted run has the results so far.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks import machine
from benchmarks.peers import loads
from benchmarks.peers.engines import Engine, Online, engines, engines_on, engines_on_native
from benchmarks.peers.loads import Measured
from benchmarks.peers.results import Row, rows, table
from benchmarks.workload import Workload
from model.checkpoint.resolve import EMBEDDED
from model.machine.host import choose_threads

RESULTS = machine.ROOT / "benchmarks" / "results"
SAID_CHARS = 1000


def run(chosen: list[Engine], repeat: int) -> Iterator[tuple[Mapping[str, Mapping[str, list[float]]], dict[str, str]]]:
    """Engine -> case -> one value for each round so far, after each run; and engine -> why its latest run failed."""
    found: dict[str, dict[str, list[float]]] = {engine.name: {} for engine in chosen}
    failed: dict[str, str] = {}
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=repeat * len(chosen))
        for number in range(repeat):
            for engine in chosen:
                progress.update(task, description=f"round {number + 1} of {repeat}: {engine.name}")
                measured = _measure(engine)
                if isinstance(measured, str):
                    console.print(f"{engine.name} failed: {measured}", markup=False)
                    failed[engine.name], measured = measured.splitlines()[-1], {}
                for case, value in measured.items():
                    found[engine.name].setdefault(case, []).append(value)
                progress.advance(task)
                yield found, failed


def _measure(engine: Engine) -> Measured | str:
    """Its figures, or why it has none."""
    try:
        return engine.measure()
    except subprocess.CalledProcessError as error:
        return f"{error.cmd[:3]} said: {(error.stderr.strip() or error.stdout.strip())[-SAID_CHARS:]}"
    except Exception as error:  # whatever a peer does, the others are measured
        return repr(error)


def arguments() -> argparse.Namespace:
    usual = Workload(choose_threads())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder of the peers; without it only Noria is measured")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--gguf", type=Path, help="measure only Noria and llama.cpp, offline, with this file's blocks")
    model.add_argument("--native", type=Path, help="measure only Noria and vLLM, offline, with this native folder")
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--only", choices=("offline", "online"))
    parser.add_argument("--engines", default="", help="measure those whose name contains one of these, comma-separated")
    parser.add_argument("--threads", type=int, default=usual.threads)
    online = parser.add_argument_group("online", "Servers get the loads of benchmarks/peers/loads.py.")
    online.add_argument("--loads", default="", help="those whose name contains one of these, comma-separated")
    online.add_argument("--rates", type=_rates, default=loads.RATES, help="requests/s of mixed loads, comma-separated")
    online.add_argument("--seconds", type=float, default=4.0, help="seconds of each load; 1.5 times with a rate")
    offline = parser.add_argument_group("offline")
    offline.add_argument("--prefill", type=_numbers, default=usual.prefill, help="lengths of prompts, comma-separated")
    offline.add_argument("--streams", type=_numbers, default=usual.streams, help="numbers of streams, comma-separated")
    offline.add_argument("--prompt", type=int, default=usual.prompt, help="tokens of each stream's prompt")
    offline.add_argument("--tokens", type=int, default=usual.tokens, help="tokens that each stream generates")
    parser.add_argument("--output", type=Path, help="JSON file in place of benchmarks/results/DATE-MACHINE.json")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _rates(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _is_wanted(engine: Engine, args: argparse.Namespace) -> bool:
    named = any(part in engine.name for part in args.engines.split(","))
    return named and args.only in (None, "online" if engine.online else "offline")


def main() -> None:
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # for Noria's engine and transformers
    peers = args.peers and args.peers.resolve()
    work = Workload(args.threads, args.prefill, args.streams, args.prompt, args.tokens)
    online = Online(loads.chosen(args.loads, args.rates), args.seconds)
    other = args.gguf or args.native
    known = engines(peers, work, online)
    if other:
        known = (engines_on if args.gguf else engines_on_native)(other.resolve(), peers, work)
    chosen = [engine for engine in known if _is_wanted(engine, args)]
    if not chosen:
        raise SystemExit("no engine is left to measure: see --engines, --only, --peers")
    started = datetime.now(UTC)
    about = {"started": started.isoformat(timespec="seconds"), "rounds": args.repeat, "workload": asdict(work)}
    if any(engine.online for engine in chosen):
        about["http"] = {"seconds": args.seconds, "loads": {case: asdict(load) for case, load in online.loads.items()}}
    about["model"] = other.stem if other else EMBEDDED
    about |= machine.describe(peers)
    name = f"{started:%Y-%m-%d}-{machine.kind()}{f'-{other.stem}' if other else ''}.json"
    file = args.output or RESULTS / name
    file.parent.mkdir(exist_ok=True)
    made: list[Row] = []
    for found, failed in run(chosen, args.repeat):
        made = list(rows(chosen, found, failed))
        report = about | {"medians": [asdict(row) for row in made], "measured": found, "failed": failed}
        file.write_text(json.dumps(report, indent=1) + "\n")
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print_json(json.dumps(about))
    console.print(table(made))


if __name__ == "__main__":
    main()
