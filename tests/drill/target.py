"""The server under drill: a real `noria serve` process, started as a user starts it, and its state."""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from model.machine.host import free_memory
from tests.drill.processes import Process, send, tree
from tests.drill.row import Broken, NotPossible
from tests.e2e.server import MODEL, LiveServer, free_port

START_SECONDS = 120.0
STOP_SECONDS = 45.0
FIND_SECONDS = 10.0
CACHE_BYTES = 192 * 2**20
FLAGS = {
    "MAX_SEQUENCES": "16",
    "MAX_MODEL_LEN": "8192",
    "CACHE_MEMORY": f"{CACHE_BYTES >> 20}MiB",
    "STEP_TIMEOUT": "10",
    "DRAIN_TIMEOUT": "10",
}
"""Flags that keep the server small. They are given as variables: a tree without one of these flags still starts."""
KEYS = {"steady": "victim-key", "flood": "flood-key", "limited": "limited-key"}
SERVE = (sys.executable, "-m", "service", "serve")


def key_file(folder: Path, **extra: str) -> Path:
    """A file with the keys of the drill; `limited` may send three requests a minute."""
    lines = []
    for name, key in (KEYS | extra).items():
        lines += ["[[keys]]", f'name = "{name}"', f'key = "{key}"']
        lines += ["requests_per_minute = 3"] if name == "limited" else []
    path = folder / "keys.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _clock(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Its clock jumps when the file `clock` changes. The monotonic clock stays true, as on a real machine."""
    libraries = sorted(Path("/usr").glob("lib*/**/faketime/libfaketimeMT.so.1"))
    if not libraries:
        raise NotPossible("faketime is not installed (Debian: apt-get install faketime)")
    (folder / "clock").write_text("+0")
    variables = {"LD_PRELOAD": str(libraries[0]), "FAKETIME_TIMESTAMP_FILE": str(folder / "clock")}
    own = {"FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_DISABLE_SHM": "1"}
    return [*SERVE], variables | own


def _images(folder: Path) -> tuple[list[str], dict[str, str]]:
    """It serves a small random model with an image encoder."""
    from tests.model.pixtral import save_hf  # it imports torch

    return [*SERVE, str(save_hf("mistral3", folder / "model"))], {"NORIA_MAX_MODEL_LEN": "2048"}


def _audio(folder: Path) -> tuple[list[str], dict[str, str]]:
    """It serves a small random model with an audio encoder."""
    from tests.model.voxtral import save_native  # it imports torch

    return [*SERVE, str(save_native(folder / "model"))], {"NORIA_MAX_MODEL_LEN": "2048"}


def _responses(folder: Path) -> tuple[list[str], dict[str, str]]:
    """It stores responses in a file."""
    (folder / "disk").mkdir()
    variables = {"NORIA_RESPONSES_STORE": str(folder / "disk/responses.db"), "NORIA_FINISH_AFTER_RESTART": "true"}
    return [*SERVE], variables


def _latent(folder: Path) -> tuple[list[str], dict[str, str]]:
    """It serves a small random model with latent attention and experts, and stores its pages in files."""
    from tests.model.network.latent_models import mistral4, save_native  # they import torch
    from tests.model.tokenizers.tekken_files import N_SPECIAL, SMALL, write_tekken

    model = mistral4(vocab_size=SMALL + N_SPECIAL, kv_lora_rank=64, v_head_dim=32, max_position_embeddings=8192)
    write_tekken(save_native(model, folder / "model"), "v15")
    return [*SERVE, str(folder / "model")], {"NORIA_PREFIX_STORE": str(folder / "pages")}


OTHER, THIRD, LARGE = "other", "third", "large"
"""The models of a server with several, besides the first."""


def _models(folder: Path) -> tuple[list[str], dict[str, str]]:
    """It serves the embedded model, the same with a shorter context, and two small random ones that load on demand.

    The KV cache of the last takes half of the memory. The younger of the first two engines is that of the
    second model.
    """
    from tests.model.network.latent_models import mistral4, save_native  # they import torch
    from tests.model.tokenizers.tekken_files import N_SPECIAL, SMALL, write_tekken

    model = mistral4(vocab_size=SMALL + N_SPECIAL, kv_lora_rank=64, v_head_dim=32, max_position_embeddings=8192)
    write_tekken(save_native(model, folder / THIRD), "v15")
    (folder / "models.toml").write_text(
        f"""
        [[models]]
        name = "{MODEL}"
        source = "{MODEL}"
        [[models]]
        name = "{OTHER}"
        source = "{MODEL}"
        max-model-len = 1024
        [[models]]
        name = "{THIRD}"
        source = "{folder / THIRD}"
        load = "first-request"
        max-model-len = 512
        cache-memory = "16MiB"
        [[models]]
        name = "{LARGE}"
        source = "{folder / THIRD}"
        load = "first-request"
        max-model-len = 512
        cache-memory = "{free_memory() // 2}"
        """
    )
    return [*SERVE], {"NORIA_MODELS": str(folder / "models.toml")}


def _everything(folder: Path) -> tuple[list[str], dict[str, str]]:
    """It serves the embedded model with an adapter, and two small random ones, for images and for audio."""
    import torch

    from tests.model import pixtral, voxtral
    from tests.model.checkpoint.adapter_files import save_peft

    shapes = {f"model.layers.{layer}.self_attn.q_proj.weight": (576, 576) for layer in range(30)}
    weights = {name: torch.empty(shape) for name, shape in shapes.items()}
    save_peft(folder / "adapter", weights, ("q_proj",), r=4, lora_alpha=4)
    pixtral.save_hf("mistral3", folder / "image")
    voxtral.save_native(folder / "audio")
    entry = '[[models]]\nname = "{0}"\nsource = "{1}"\nmax-model-len = 2048\ncache-memory = "64MiB"\n'
    text = entry.format(MODEL, MODEL) + f'lora = ["adapter={folder / "adapter"}"]\n'
    text += "".join(entry.format(kind, folder / kind) for kind in ("image", "audio"))
    (folder / "models.toml").write_text(text)
    return [*SERVE], {"NORIA_MODELS": str(folder / "models.toml")}


@dataclass(frozen=True, slots=True)
class Setup:
    """How a server is started: `prepare` gives its command and variables for the server's own folder.

    Servers of one `model` give the same answers.
    """

    prepare: Callable[[Path], tuple[list[str], dict[str, str]]]
    headers: dict[str, str] = field(default_factory=dict)
    model: str = MODEL


SETUPS = {
    "main": Setup(lambda folder: ([*SERVE], {})),
    "aside": Setup(lambda folder: ([*SERVE], {"NORIA_THREADS": "1"})),  # it runs beside another server
    "keys": Setup(
        lambda folder: ([*SERVE], {"NORIA_API_KEY_FILE": str(key_file(folder))}),
        {"authorization": f"Bearer {KEYS['steady']}"},
    ),
    "faulty runner": Setup(lambda folder: ([sys.executable, "-m", "tests.drill.faulty"], {})),
    "clock": Setup(_clock),
    "images": Setup(_images, model="images"),
    "audio": Setup(_audio, model="audio"),
    "latent": Setup(_latent, model="latent"),
    "models": Setup(_models),
    "everything": Setup(_everything),
    "prefixes": Setup(lambda folder: ([*SERVE], {"NORIA_PREFIX_STORE": str(folder / "pages")})),
    "responses": Setup(_responses),
    "large bodies": Setup(lambda folder: ([*SERVE], {"NORIA_MAX_BODY": "40MiB"})),
}


class Target:
    """One server process with a folder of its own: its log, its cache, its key file. `close` removes the folder.

    `wrapper` is a command that runs the server's.
    """

    def __init__(self, setup: str = "main", *, wrapper: tuple[str, ...] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="noria-drill-"))
        self.port, self.health_port = free_port(), free_port()
        self.headers = SETUPS[setup].headers
        self._command, own = SETUPS[setup].prepare(self.folder)
        flags = {f"NORIA_{name}": value for name, value in FLAGS.items()}
        paths = {"NORIA_HEALTH_PORT": str(self.health_port)}
        self._command = [*wrapper, *self._command, "--port", str(self.port)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("NORIA_")}
        self._environment = clean | flags | paths | own
        self._log: IO[bytes] | None = None
        self.server: LiveServer

    def serve_prefixes(self, directory: Path) -> None:
        """Let it share the pages of another server."""
        self._environment["NORIA_PREFIX_STORE"] = str(directory)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.server.process.pid

    @property
    def log(self) -> str:
        return self.server.log

    def launch(self) -> None:
        """Start the process; returns at once."""
        path = self.folder / "log"
        self._log = path.open("wb")
        process = subprocess.Popen(
            self._command, stdout=self._log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=self._environment
        )
        self.server = LiveServer(process, self.port, path)
        atexit.register(self.close)  # a drill that is ended leaves no server behind

    def start(self) -> None:
        """Start the process and wait until it serves. Raises Broken if it does not."""
        self.launch()
        deadline = time.monotonic() + START_SECONDS
        while not self.ready():
            if not self.alive() or time.monotonic() > deadline:
                raise Broken(f"the server does not start: {self.log[-300:]}")
            time.sleep(0.05)

    def alive(self) -> bool:
        return self.server.process.poll() is None

    def ready(self) -> bool:
        return self.alive() and self.server.ready()

    def metric(self, name: str, **labels: str) -> float:
        return self.server.metric(name, **labels)

    def processes(self) -> list[Process]:
        return tree(self.pid)

    def find(self, kind: str) -> Process:
        """The process of a kind. Waits a little for one that is started late. Raises Broken if there is none."""
        deadline = time.monotonic() + FIND_SECONDS
        while True:
            for process in self.processes():
                if process.kind == kind:
                    return process
            if time.monotonic() > deadline:
                raise Broken(f"no {kind} runs")
            time.sleep(0.05)

    def stop(self) -> int:
        """End the server as an orchestrator does: SIGTERM; returns its exit code. Raises Broken if that takes long."""
        self.server.process.send_signal(signal.SIGTERM)
        try:
            return self.server.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise Broken(f"the server still runs {STOP_SECONDS:g} s after SIGTERM") from None

    def close(self) -> None:
        """End whatever is left, and remove the folder."""
        atexit.unregister(self.close)
        if self._log is not None:
            left = self.processes() if self.alive() else []
            self.server.process.kill()
            self.server.process.wait()
            self.server.http.close()
            self.server.openai.close()
            self._log.close()
            for process in left:
                send(process.pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def running(setup: str = "main", *, before: Callable[[Target], None] = lambda target: None) -> Iterator[Target]:
    """A server of its own for the block, after `before`. Raises Broken if it does not start."""
    target = Target(setup)
    try:
        before(target)
        target.start()
        yield target
    finally:
        target.close()
