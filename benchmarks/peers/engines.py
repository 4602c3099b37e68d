"""All measured engines and servers, on the embedded model or on another one, and how each is run.

Offline: Noria's engine, llama.cpp by its own tools, and OpenVINO GenAI, transformers, vLLM and PACE by a file each,
which their own Python runs. Online: see servers.py.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks import machine
from benchmarks.peers import pace, servers, vllm, without_http
from benchmarks.peers.loads import Load, Measured
from benchmarks.workload import PREFILL_REPEATS, Workload, decode_case, prefill_case
from model.checkpoint.resolve import EMBEDDED

OURS = {"bf16": "16", "int8": "8", "int4": "4"}
"""Noria's measured schemes, and their bits a weight."""
LLAMA = {"bf16": "16", "q8_0": "8", "q4_0": "4", "q4_1": "4"}
"""The formats of llama.cpp, as in the names of its files, and their bits a weight."""
VLLM = {"bf16": ("16", "smollm2-hf"), "int8": ("8", "smollm2-w8a8")}
"""Weights of vLLM, their bits, and the checkpoint; benchmarks/peers/w8a8.py writes the second one."""
SERVED = {"int8": ("8", ("--quantize", "int8")), "bf16": ("16", ("--quantize", "none", "--dtype", "bfloat16"))}
"""Weights of `noria serve`, their bits, and its flags."""
NO_TARGETS = ("--target-first-token-ms", "0", "--target-inter-token-ms", "0")
LLAMA_SERVED = ("q8_0", "bf16")
KINDS = ("ours", "peer", "reference")


@dataclass(frozen=True, slots=True)
class Engine:
    """A measured engine or server. `kind` is one of KINDS; "reference" is Noria in another way, to compare."""

    name: str
    bits: str
    kind: str
    online: bool
    measure: Callable[[], Measured]


@dataclass(frozen=True, slots=True)
class Online:
    """What the servers get: loads, and the seconds of each."""

    loads: dict[str, Load]
    seconds: float


def engines(peers: Path | None, work: Workload, online: Online) -> Iterator[Engine]:
    """All engines, on the embedded model."""
    for name, bits in OURS.items():
        yield _ours(name, bits, EMBEDDED, work)
    if peers is not None:
        yield from _offline_peers(peers, work)
    yield from _servers(peers, work, online)


def engines_on(file: Path, peers: Path | None, work: Workload) -> Iterator[Engine]:
    """The engines that run a GGUF file's own blocks."""
    yield _ours("int4", "its own", str(file), work)
    if peers is not None:
        yield Engine("llama.cpp", "its own", "peer", False, partial(_llama, peers, file, work))


def engines_on_native(folder: Path, peers: Path | None, work: Workload) -> Iterator[Engine]:
    """The engines that run a checkpoint in Mistral's format."""
    for name in ("bf16", "int8"):
        yield _ours(name, OURS[name], str(folder), work)
    if peers is not None:
        yield _vllm("bf16", "16", peers / "vllm", folder, work)


def _ours(scheme: str, bits: str, model: str, work: Workload) -> Engine:
    command = _module(Path(sys.executable), "engine", model, _json(work), scheme)
    return Engine(f"noria {scheme}", bits, "ours", False, partial(_json_of, command))


def _offline_peers(peers: Path, work: Workload) -> Iterator[Engine]:
    def peer(name: str, bits: str, measure: Callable[[], Measured]) -> Engine:
        return Engine(name, bits, "peer", False, measure)

    for name, bits in LLAMA.items():
        yield peer(f"llama.cpp {name}", bits, partial(_llama, peers, _file(peers, name), work))
    yield peer("openvino", "8", _by_python(peers, "openvino", _file(peers, "q8_0"), work))
    yield peer("transformers", "16", _by_python(peers, "transformers", _file(peers, "bf16"), work))
    for name, (bits, folder) in VLLM.items():
        yield _vllm(name, bits, peers / "vllm", peers / "models" / folder, work)
    model, environment = peers / "models" / "smollm2-hf", pace.environment(work.threads)
    yield peer("pace", "16", _by_python(peers / "pace", "pace", model, work, environment))


def _vllm(name: str, bits: str, home: Path, model: Path, work: Workload) -> Engine:
    measure = _by_python(home, "vllm", model, work, vllm.environment(home, work.threads))
    return Engine(f"vllm {name}", bits, "peer", False, measure)


def _by_python(
    home: Path, module: str, model: Path, work: Workload, environment: Mapping[str, str] = {}
) -> Callable[[], Measured]:
    command = _module(home / "bin" / "python", f"peers.{module}", str(model), _json(work))
    return partial(_json_of, command, environment)


def _servers(peers: Path | None, work: Workload, online: Online) -> Iterator[Engine]:
    def server(name: str, bits: str, kind: str, run: servers.Server) -> Engine:
        return Engine(name, bits, kind, True, partial(servers.speeds, run, online.loads, online.seconds))

    for name, (bits, flags) in SERVED.items():
        yield server(f"noria serve {name}", bits, "ours", partial(servers.noria, EMBEDDED, flags))
        without = partial(servers.noria, EMBEDDED, flags + NO_TARGETS)
        yield server(f"noria serve {name} without targets", bits, "reference", without)
    cases = json.dumps(without_http.cases(online.loads))
    command = _module(Path(sys.executable), "peers.without_http", EMBEDDED, cases, str(online.seconds))
    yield Engine("without HTTP", "8", "reference", True, partial(_json_of, command))
    if peers is None:
        return
    for name in LLAMA_SERVED:
        run = partial(servers.llama, peers / "bin" / "llama-server", _file(peers, name), work.threads)
        yield server(f"llama-server {name}", LLAMA[name], "peer", run)
    for name, (bits, folder) in VLLM.items():
        run = partial(servers.vllm_server, peers / "vllm", peers / "models" / folder, work.threads)
        yield server(f"vllm serve {name}", bits, "peer", run)


def _file(peers: Path, kind: str) -> Path:
    return peers / "models" / f"smollm2-{kind}.gguf"


def _json(work: Workload) -> str:
    return json.dumps(asdict(work))


def _module(python: Path, name: str, *arguments: str) -> list[str]:
    return [str(python), "-m", f"benchmarks.{name}", *arguments]


def _output(command: list[str], environment: Mapping[str, str] = {}) -> str:
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=machine.ROOT, env=os.environ | environment
    )
    return done.stdout


def _json_of(command: list[str], environment: Mapping[str, str] = {}) -> Measured:
    """What a command prints: the last line that is an object. A peer's processes may print more when they end."""
    lines = [line for line in _output(command, environment).splitlines() if line.startswith("{")]
    found: Measured = json.loads(lines[-1])
    return found


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
