"""Speeds of Noria's engine and server and of each installed peer, in one table: `python -m benchmarks.peers`.

    --peers DIR     llama.cpp, OpenVINO GenAI, transformers in DIR/bin, the embedded model as GGUF files in DIR/models

Every engine runs in its own process. Each round runs all engines once, so that a slow minute of the machine affects all
of them. Speeds are medians in tokens/s: of a prompt alone until its first token ("prefill"), and of the time in which
all streams decode. A ratio is Noria's speed divided by the peer's. The result is a JSON file in benchmarks/results/. It
is written again after every engine: an interrupted run has the results so far.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import machine
from benchmarks.peers import servers
from benchmarks.workload import PREFILL_REPEATS, Workload, decode_case, prefill_case
from model.checkpoint.resolve import EMBEDDED
from model.errors import NoriaError
from model.machine.host import choose_threads

RESULTS = machine.ROOT / "benchmarks" / "results"
OURS = {"bf16": "16", "int8": "8", "int4": "4"}
"""Noria's measured schemes, and their bits a weight."""
LLAMA = {"bf16": "16", "q8_0": "8", "q4_0": "4", "q4_1": "4"}
"""The formats of llama.cpp, as in the names of its files, and their bits a weight."""
PYTHON_PEERS = {"openvino": ("8", "q8_0"), "transformers": ("16", "bf16")}
"""Bits a weight and the file; benchmarks/peers/NAME.py drives each."""

Measured = dict[str, float]
"""Case -> tokens/s, or milliseconds."""


SAID_CHARS = 1000
KINDS = ("ours", "peer", "reference")


@dataclass(frozen=True, slots=True)
class Engine:
    """A measured engine or server. `kind` is one of KINDS; "reference" is Noria's engine with the servers' load."""

    name: str
    bits: str
    kind: str
    online: bool
    measure: Callable[[], Measured]


def engines(peers: Path | None, work: Workload) -> Iterator[Engine]:
    """All engines, on the embedded model."""
    for name, bits in OURS.items():
        yield _ours(name, bits, EMBEDDED, work)
    if peers is not None:
        yield from _offline_peers(peers, work)
    yield Engine("noria serve", "8", "ours", True, partial(servers.measure_ours, EMBEDDED))
    command = _module(sys.executable, "peers.servers", EMBEDDED)
    yield Engine("without HTTP", "8", "reference", True, partial(_json_of, command))
    if peers is not None:
        binary, file = peers / "bin" / "llama-server", _file(peers, "q8_0")
        measure = partial(servers.measure_llama, binary, file, work.threads)
        yield Engine("llama-server q8_0", "8", "peer", True, measure)


def engines_on(file: Path, peers: Path | None, work: Workload) -> Iterator[Engine]:
    """The engines that run a GGUF file's own blocks."""
    yield _ours("int4", "its own", str(file), work)
    if peers is not None:
        yield Engine("llama.cpp", "its own", "peer", False, partial(_llama, peers, file, work))


def _ours(scheme: str, bits: str, model: str, work: Workload) -> Engine:
    command = _module(sys.executable, "engine", model, _json(work), scheme)
    return Engine(f"noria {scheme}", bits, "ours", False, partial(_json_of, command))


def _offline_peers(peers: Path, work: Workload) -> Iterator[Engine]:
    for name, bits in LLAMA.items():
        yield Engine(f"llama.cpp {name}", bits, "peer", False, partial(_llama, peers, _file(peers, name), work))
    for name, (bits, kind) in PYTHON_PEERS.items():
        command = _module(str(peers / "bin" / "python"), f"peers.{name}", str(_file(peers, kind)), _json(work))
        yield Engine(name, bits, "peer", False, partial(_json_of, command))


def _file(peers: Path, kind: str) -> Path:
    return peers / "models" / f"smollm2-{kind}.gguf"


def _json(work: Workload) -> str:
    return json.dumps(asdict(work))


def _module(python: str, name: str, *arguments: str) -> list[str]:
    return [python, "-m", f"benchmarks.{name}", *arguments]


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=machine.ROOT).stdout


def _json_of(command: list[str]) -> Measured:
    return json.loads(_output(command).splitlines()[-1])


def _llama(peers: Path, file: Path, work: Workload) -> Measured:
    """The speed of llama.cpp by its own tools, which warm up.

    llama-bench measures prompts and one stream, llama-batched-bench several streams.
    """
    bench = [str(peers / "bin" / "llama-bench"), "-m", str(file), "-t", str(work.threads), "-o", "json"]
    batched = [str(peers / "bin" / "llama-batched-bench"), "-m", str(file), "-t", str(work.threads)]
    lengths = ",".join(map(str, work.prefill))
    found = {
        prefill_case(run["n_prompt"]): statistics.median(run["samples_ts"])
        for run in json.loads(_output([*bench, "-p", lengths, "-n", "0", "-r", str(PREFILL_REPEATS)]))
    }
    if 1 in work.streams:
        (run,) = json.loads(_output([*bench, "-p", "0", "-n", str(work.tokens), "-d", str(work.prompt), "-r", "1"]))
        found[decode_case(1)] = run["avg_ts"]
    if several := [streams for streams in work.streams if streams > 1]:
        size = str(max(several) * (work.prompt + work.tokens))
        shape = ["-npp", str(work.prompt), "-ntg", str(work.tokens), "-npl", ",".join(map(str, several))]
        lines = _output([*batched, *shape, "-c", size, "-b", "2048", "-ub", "512", "--output-format", "jsonl"])
        for run in map(json.loads, filter(str.strip, lines.splitlines())):
            found[decode_case(run["pl"])] = run["speed_tg"]
    return found


def run(chosen: list[Engine], repeat: int) -> Iterator[Mapping[str, Mapping[str, list[float]]]]:
    """Engine -> case -> one value for each round so far, after each run. A failing engine is reported and left out."""
    found: dict[str, dict[str, list[float]]] = {engine.name: {} for engine in chosen}
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=repeat * len(chosen))
        for number in range(repeat):
            for engine in chosen:
                progress.update(task, description=f"round {number + 1} of {repeat}: {engine.name}")
                for case, value in _measure(engine, console).items():
                    found[engine.name].setdefault(case, []).append(value)
                progress.advance(task)
                yield found


def _measure(engine: Engine, console: Console) -> Measured:
    try:
        return engine.measure()
    except subprocess.CalledProcessError as error:
        output = (error.stderr.strip() or error.stdout.strip())[-SAID_CHARS:]
        console.print(f"{engine.name} failed, {error.cmd[:3]} said: {output}", markup=False)
    except (NoriaError, OSError, RuntimeError) as error:
        console.print(f"{engine.name} failed: {error}", markup=False)
    return {}


@dataclass(frozen=True, slots=True)
class Row:
    """One case at equal bits a weight: Noria's median, then those of the others, best first."""

    case: str
    bits: str
    ours: float | None
    peers: dict[str, float]
    references: dict[str, float]


def rows(chosen: list[Engine], found: Mapping[str, Mapping[str, list[float]]]) -> Iterator[Row]:
    medians = {name: {case: statistics.median(runs) for case, runs in by.items()} for name, by in found.items()}
    cases = dict.fromkeys(case for by in medians.values() for case in by)
    for case in cases:
        for bits in dict.fromkeys(engine.bits for engine in chosen):
            same = [engine for engine in chosen if engine.bits == bits and case in medians[engine.name]]
            values = {kind: {e.name: medians[e.name][case] for e in same if e.kind == kind} for kind in KINDS}
            best_first = sorted(values["peer"].items(), key=lambda item: item[1], reverse=case != servers.FIRST_TOKEN)
            if same:
                yield Row(case, bits, next(iter(values["ours"].values()), None), dict(best_first), values["reference"])


def table(made: list[Row]) -> Table:
    result = Table("", "bits", "noria", "best peer", "ratio", "others")
    for column in result.columns[1:5]:
        column.justify = "right"
    for row in made:
        others = {**row.peers, **row.references}
        best = next(iter(row.peers), "")
        rest = [f"{name} {value:.0f} ({_ratio(row, value)})" for name, value in others.items() if name != best]
        result.add_row(
            row.case,
            row.bits,
            "-" if row.ours is None else f"{row.ours:.0f}",
            f"{best} {row.peers[best]:.0f}" if best else "-",
            _ratio(row, row.peers[best]) if best else "-",
            ", ".join(rest),
        )
    return result


def _ratio(row: Row, value: float) -> str:
    return "-" if row.ours is None else f"{row.ours / value:.2f}"


def arguments() -> argparse.Namespace:
    usual = Workload(choose_threads())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder of the peers; without it only Noria is measured")
    parser.add_argument("--gguf", type=Path, help="measure only Noria and llama.cpp, offline, with this file's blocks")
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--only", choices=("offline", "online"))
    parser.add_argument("--engines", default="", help="measure those whose name contains one of these, comma-separated")
    parser.add_argument("--threads", type=int, default=usual.threads)
    offline = parser.add_argument_group("offline", "Servers get the requests of benchmarks/peers/servers.py.")
    offline.add_argument("--prefill", type=_numbers, default=usual.prefill, help="lengths of prompts, comma-separated")
    offline.add_argument("--streams", type=_numbers, default=usual.streams, help="numbers of streams, comma-separated")
    offline.add_argument("--prompt", type=int, default=usual.prompt, help="tokens of each stream's prompt")
    offline.add_argument("--tokens", type=int, default=usual.tokens, help="tokens that each stream generates")
    parser.add_argument("--output", type=Path, help="JSON file in place of benchmarks/results/DATE-MACHINE.json")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def main() -> None:
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # for Noria's engine and transformers
    peers = args.peers and args.peers.resolve()
    work = Workload(args.threads, args.prefill, args.streams, args.prompt, args.tokens)
    known = engines_on(args.gguf.resolve(), peers, work) if args.gguf else engines(peers, work)
    chosen = [
        engine
        for engine in known
        if any(part in engine.name for part in args.engines.split(","))
        and args.only in (None, "online" if engine.online else "offline")
    ]
    if not chosen:
        raise SystemExit("no engine is left to measure: see --engines, --only, --peers")
    started = datetime.now(UTC)
    about = {"started": started.isoformat(timespec="seconds"), "rounds": args.repeat, "workload": asdict(work)}
    if any(engine.online for engine in chosen):
        about["http"] = {case: asdict(load) for case, load in servers.LOADS.items()}
    about["model"] = args.gguf.stem if args.gguf else EMBEDDED
    about |= machine.describe(peers)
    name = f"{started:%Y-%m-%d}-{machine.kind()}{f'-{args.gguf.stem}' if args.gguf else ''}.json"
    file = args.output or RESULTS / name
    file.parent.mkdir(exist_ok=True)
    made: list[Row] = []
    for found in run(chosen, args.repeat):
        made = list(rows(chosen, found))
        report = about | {"medians": [asdict(row) for row in made], "measured": found}
        file.write_text(json.dumps(report, indent=1) + "\n")
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print_json(json.dumps(about))
    console.print(table(made))


if __name__ == "__main__":
    main()
