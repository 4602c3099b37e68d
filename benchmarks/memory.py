"""Memory of an idle server: the proportional set size of each of its processes, in MB.

A page that n processes share counts 1/n in each. "Beside weights" is the sum of all processes less the weights as
`noria plan` counts them; the cache is empty. `--models N` serves N copies of the model, all of them loaded. `--llama`
starts llama-server with a GGUF file and 8,192 tokens of cache.

    python -m benchmarks.memory [MODEL] [--models 2] [--llama LLAMA_SERVER FILE]
"""

import argparse
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.recovery import POLL_SECONDS, REST_SECONDS, serving
from model.checkpoint.resolve import EMBEDDED, resolve
from model.memory.plan import make_plan
from model.options import RunnerOptions
from service.http.listening import listen

MB = 1e6


def descendants(pid: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from descendants(int(child))


def proportional(pid: int) -> tuple[float, float]:
    """MB of a process, and the part that no file backs."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = (re.search(rf"^{name}: +(\d+) kB", text, re.MULTILINE) for name in ("Pss", "Pss_Anon"))
    whole, anonymous = (int(match[1]) * 1024 / MB for match in found if match)
    return whole, anonymous


def weights_of(model: str) -> float:
    """MB of a model's weights, as `noria plan` counts them."""
    path = resolve(model)
    return make_plan(path, RunnerOptions(str(path), device="cpu"), None).weights / MB


def beside_weights(server: int, model: str = EMBEDDED) -> float:
    """MB of all processes of a server with one model, beside its weights."""
    return sum(proportional(pid)[0] for pid in descendants(server)) - weights_of(model)


def table(server: int, title: str, weights: float) -> Table:
    """A row for each process of a server with so many MB of weights."""
    result = Table(title, "MB", "not of a file")
    rows = [(Path(f"/proc/{pid}/comm").read_text().strip(), *proportional(pid)) for pid in descendants(server)]
    for name, *sizes in rows:
        result.add_row(name, *(f"{size:.0f}" for size in sizes))
    total = sum(size for _, size, _ in rows)
    result.add_section()
    result.add_row("all", f"{total:.0f}", "")
    result.add_row(f"beside weights ({weights:.0f})", f"{total - weights:.0f}", "")
    return result


def ours(model: str, n_models: int) -> Table:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "models.toml"
        rows = (f'[[models]]\nname = "{number}"\nsource = {json.dumps(model)}\n' for number in range(n_models))
        file.write_text("".join(rows))
        with serving(f"--models={file}") as (process, client):
            for number in range(n_models):
                body = {"model": str(number), "prompt": "Once", "max_tokens": 1}
                client.post("/v1/completions", json=body).raise_for_status()
            time.sleep(REST_SECONDS)
            return table(process.pid, f"noria serve, {n_models} x {model}", n_models * weights_of(model))


def llama(binary: str, model: str) -> Table:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    command = [binary, "-m", model, "-c", "8192", "--no-ui", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not _is_healthy(f"http://127.0.0.1:{port}/health"):
                time.sleep(POLL_SECONDS)
            return table(process.pid, "llama-server, 8,192 tokens", Path(model).stat().st_size / MB)
        finally:
            process.kill()


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=EMBEDDED)
    parser.add_argument("--models", type=int, default=1, metavar="N")
    parser.add_argument("--llama", nargs=2, metavar=("LLAMA_SERVER", "FILE"))
    args = parser.parse_args()
    console = Console()
    console.print(ours(args.model, args.models))
    if args.llama:
        console.print(llama(*args.llama))


if __name__ == "__main__":
    main()
