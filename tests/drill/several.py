"""Three models behind one port under mixed load: `python -m tests.drill.several [--minutes 10]`.

The embedded model, a small random Mixtral and a small random Pixtral. Answers, with their log probabilities, must equal
to the bit those that each model gave alone. Meanwhile clients leave in the middle, and the Mixtral is unloaded.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from tests.drill.canary import CHAT, COMPLETIONS
from tests.drill.faults.images import image
from tests.e2e.server import MODEL, free_port
from tests.model.images.files import noise, saved
from tests.waiting import eventually

THREADS = 8
PATIENCE = 120.0
UNLOAD_SECONDS = 20.0
LEAVES = 0.1
"""The share of requests whose client leaves."""
Question = tuple[str, dict[str, Any]]
"""The path of a request, and its body."""


def write_models(folder: Path) -> Path:
    """The file of --models, and the two small models."""
    from tests.model.network.oracles import mixtral  # they import torch
    from tests.model.pixtral import save_hf
    from tests.model.tokenizers.tekken_files import N_SPECIAL, SMALL, write_tekken

    experts = mixtral(vocab_size=SMALL + N_SPECIAL, max_position_embeddings=2048)
    experts.save_pretrained(folder / "mixtral", save_original_format=False)
    write_tekken(folder / "mixtral", "v3")
    sources = {"embedded": MODEL, "mixtral": folder / "mixtral", "pixtral": save_hf("mistral3", folder / "pixtral")}
    path = folder / "models.toml"
    entry = '[[models]]\nname = "{}"\nsource = "{}"\ncache-memory = "64MiB"\n'
    path.write_text("\n".join(entry.format(name, source) for name, source in sources.items()))
    return path


def questions() -> list[Question]:
    """Requests whose answers never change: greedy and seeded, plain and with images."""
    found: list[Question] = []
    for model in ("embedded", "mixtral", "pixtral"):
        for number in range(6):
            prompt = {
                "model": model,
                "prompt": "The water wheel turns " * (1 + 7 * number),
                "max_tokens": 4 + 6 * number,
            }
            found.append((COMPLETIONS, {**prompt, "logprobs": 2, "temperature": number % 2, "seed": number}))
    for number in range(3):
        picture = image(saved(noise(64 + 16 * number, 48, seed=number)))
        found.append((CHAT, {**picture.body, "model": "pixtral", "logprobs": True}))
    return found


def answer(http: httpx.Client, question: Question) -> str:
    """All of an answer that must be the same. Raises httpx.HTTPError."""
    path, body = question
    found = http.post(path, json=body).raise_for_status().json()
    return json.dumps(found["choices"])


@contextmanager
def serving(folder: Path) -> Iterator[httpx.Client]:
    port = free_port()
    command = [sys.executable, "-m", "service", "serve", "--models", str(write_models(folder)), "--port", str(port)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NORIA_")}
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log, env=clean) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http:
                eventually(lambda: process.poll() is not None or _ready(http), "the server is ready")
                yield http
        finally:
            process.terminate()


def _ready(http: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return http.get("/ready").status_code == 200
    return False


def load(
    http: httpx.Client, alone: dict[int, str], asked: list[Question], seconds: float
) -> tuple[Counter[str], list[float]]:
    """Ask for so many seconds; returns how answers compare, and their seconds."""
    counts: Counter[str] = Counter()
    taken: list[float] = []
    end = time.monotonic() + seconds

    def ask(thread: int) -> None:
        rng = random.Random(thread)
        while time.monotonic() < end:
            number = rng.randrange(len(asked))
            model, began = asked[number][1]["model"], time.monotonic()
            try:
                if rng.random() < LEAVES:
                    http.post(asked[number][0], json=asked[number][1], timeout=rng.uniform(0.01, 0.2))
                    continue
                equal = answer(http, asked[number]) == alone[number]
                counts[f"{model}: {'equal' if equal else 'other bits'}"] += 1
            except httpx.TimeoutException:
                counts["left"] += 1
                continue
            except httpx.HTTPError as error:
                counts[f"{model}: {type(error).__name__} {error}"[:120]] += 1
            taken.append(time.monotonic() - began)

    stop = threading.Event()

    def unload() -> None:
        while not stop.wait(UNLOAD_SECONDS):
            http.post("/v1/models/unload", json={"model": "mixtral"})
            counts["unloads"] += 1

    with ThreadPoolExecutor(THREADS + 1) as pool:
        unloading = pool.submit(unload)
        for done in [pool.submit(ask, thread) for thread in range(THREADS)]:
            done.result()
        stop.set()
        unloading.result()
    return counts, taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    asked = questions()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as http:
        alone = {number: answer(http, question) for number, question in enumerate(asked)}
        counts, taken = load(http, alone, asked, 60 * options.minutes)
    for name, count in sorted(counts.items()):
        print(f"{count:8} {name}")
    cuts = quantiles(taken, n=100)
    print(f"seconds of an answer: p50 {cuts[49]:.2f}, p99 {cuts[98]:.2f}")
    wrong = [name for name in counts if not name.endswith(("equal", "left", "unloads"))]
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
