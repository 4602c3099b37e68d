"""Seconds until a model of a server with several answers: `python -m benchmarks.loads MODEL...`.

Each model is asked for one token. "cold": its files were dropped from the system's page cache before; only a whole
machine can say whether the disk itself has them. "warm": the system has its files. "after unload": it was loaded in
this server before. "loaded" is the answer of a model that is loaded already.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from model.checkpoint.resolve import EMBEDDED, default_name, resolve
from service.http.listening import listen

PATIENCE = 600.0
STATES = ("cold", "warm", "after unload", "loaded")


@contextmanager
def serving(models: list[str]) -> Iterator[httpx.Client]:
    """A server whose first model is the embedded one; the others are loaded at their first request."""
    with tempfile.TemporaryDirectory() as folder:
        entries = [f'[[models]]\nname = "first"\nsource = "{EMBEDDED}"\npin = true\ncache-memory = "64MiB"\n']
        more = '[[models]]\nname = "{}"\nsource = "{}"\nload = "first-request"\n'
        entries += [more.format(name(item), item) for item in models]
        path = Path(folder) / "models.toml"
        path.write_text("\n".join(entries))
        with listen("127.0.0.1", 0) as sock:
            port = sock.getsockname()[1]
        command = [sys.executable, "-m", "service", "serve", "--models", str(path), "--port", str(port)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http:
                    _wait(http)
                    yield http
            finally:
                process.terminate()


def name(source: str) -> str:
    return f"of {default_name(source)}"


def _wait(http: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if http.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise TimeoutError("the server does not start")


def drop_files(source: str) -> None:
    """Take the files of a model out of the system's page cache."""
    path = resolve(source)
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def seconds(http: httpx.Client, source: str) -> float:
    """The time until the answer to a request for one token."""
    began = time.perf_counter()
    body = {"model": name(source), "prompt": "wheel", "max_tokens": 1}
    http.post("/v1/completions", json=body).raise_for_status()
    return time.perf_counter() - began


def measure(models: list[str]) -> dict[str, dict[str, float]]:
    """Model -> state -> seconds."""
    found: dict[str, dict[str, float]] = {model: {} for model in models}
    with serving(models) as http:
        for model in models:
            drop_files(model)
            found[model]["cold"] = seconds(http, model)
            found[model]["loaded"] = seconds(http, model)
            http.post("/v1/models/unload", json={"model": name(model)}).raise_for_status()
            found[model]["after unload"] = seconds(http, model)
            http.post("/v1/models/unload", json={"model": name(model)}).raise_for_status()
    with serving(models) as http:
        for model in models:
            found[model]["warm"] = seconds(http, model)
            http.post("/v1/models/unload", json={"model": name(model)}).raise_for_status()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[EMBEDDED], help="As the argument MODEL of noria serve.")
    options = parser.parse_args()
    table = Table("seconds", *STATES)
    for model, found in measure(options.models).items():
        table.add_row(default_name(model), *(f"{found[state]:.2f}" for state in STATES))
    Console().print(table)


if __name__ == "__main__":
    main()
