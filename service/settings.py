"""All options with which the service was started, frozen. Each is declared once, here or in a class above `Settings`.

`commands/flags.py` reads the declarations. Imports here are light: `serve` needs them before it starts the engine.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

from model.errors import OptionError
from model.options import option
from service.model_settings import ModelSettings, check_file, read_text

LEVELS = ("debug", "info", "warning", "error")
METRIC_NAMES = ("noria", "vllm")
HOST, PORT = "127.0.0.1", 8000
PROXIES = ("127.0.0.1", "::1")
"""The peers that are believed about clients, unless others are named."""
ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^A-Z/?#@,\s]+")
"""As a browser writes an origin: in lower case and without a path."""
HOST_NAME = re.compile(r"\*|[A-Za-z0-9._-]+")
ROOT_PATH = re.compile(r"(/(?!\.)[A-Za-z0-9._~-]+)+")
STORE_BOUNDS = {"memory": (2**26, 3600.0), "off": (0, 0.0)}
FILE_BOUNDS = (2**30, 30 * 86400.0)
"""Bytes, and seconds since the last use, of the store of responses, and of one in a file."""
BUDGET_SHARE = 0.9
"""Default part of the free memory that several models may take."""
MIN_KEY_BYTES = 16
MAX_SOCKET_PATH = 107
"""Bytes of a Unix socket's path (unix(7))."""


@dataclass(frozen=True, slots=True)
class Settings(ModelSettings):
    """The options of a model and those of the server. None leaves the choice to the model or the machine."""

    more_models: tuple[str, ...] = option(
        (), "More models to serve behind the same port.", unset="none", is_argument=True, is_typed=True, group="Model"
    )
    models: Path | None = option(
        None,
        "TOML file with the models to serve, each with its own flags (docs/several-models.md). It is read again at "
        "SIGHUP.",
        unset="MODEL alone",
    )
    memory_budget: int | None = option(
        None,
        "Memory that several models may take together, by the numbers of noria plan. A model that does not fit beside "
        "the others is loaded when it is used, in the place of an idle one.",
        unset=f"{BUDGET_SHARE:.0%} of the memory that is free at the start, of a GPU --gpu-memory-utilization",
        is_size=True,
    )
    host: str | None = option(None, "Address to listen on.", unset=HOST, group="Network")
    port: int | None = option(None, "Port to listen on; 0 picks a free one.", unset=str(PORT), least=0, most=65535)
    uds: Path | None = option(
        None,
        "Unix socket to listen on, instead of an address and a port. Every user who can enter its directory may "
        "connect.",
        unset="none",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "Name by which clients call the server, such as noria.example.org, or * for any. A request whose Host has "
        "another name gets a 403; localhost and IP addresses pass. To give several, separate them by commas or repeat "
        "the flag.",
        unset="that of --host on a loopback address without keys, otherwise any",
    )
    root_path: str | None = option(
        None,
        "Prefix of all paths, such as /noria, below which a reverse proxy publishes the server. Requests may come with "
        "the prefix or without it.",
        unset="none",
    )
    forwarded_allow_ips: tuple[str, ...] = option(
        (),
        "Address or network of a reverse proxy, such as 10.0.0.0/8. The server believes its X-Forwarded-For and "
        "X-Forwarded-Proto, for the log and for traces. To give several, separate them by commas or repeat the flag. "
        "Peers at --uds are always believed.",
        unset=" and ".join(PROXIES),
    )
    api_keys: tuple[str, ...] = option(
        (),
        "API key that clients must send; repeat the flag for more keys.",
        name="api_key",
        unset="no key is needed",
        group="Access",
    )
    api_key_file: Path | None = option(
        None, "File with more API keys: one a line, or, in a .toml or .json file, entries with names and limits."
    )
    objectives: tuple[str, ...] = option(
        (),
        "Priority of requests whose header x-llm-d-inference-objective has this name, as NAME=NUMBER. The lowest is "
        "first, and no lower than their key may send. Repeat the flag for more names.",
        name="objective",
        unset="names of objectives have no effect",
    )
    cache_isolation: str = option(
        "key",
        "Who reuses cached prompts. key: only the API key that sent them. none: all keys, which saves time where they "
        "share long prompts, and lets a key find out what others have sent (docs/security.md).",
        choices=("key", "none"),
    )
    cors_origins: tuple[str, ...] = option(
        (),
        "Web origin whose pages may call the API (CORS); repeat the flag for more origins.",
        name="cors_origin",
        unset="none",
    )
    ssl_certfile: Path | None = option(None, "TLS certificate chain (PEM).")
    ssl_keyfile: Path | None = option(None, "TLS private key (PEM).")
    lenient: bool = option(
        False,
        "Accept fields that mean nothing here. The header x-noria-ignored and the log name them. Without this flag "
        "a request with them gets a 400.",
    )
    max_body_bytes: int = option(
        8 * 2**20, "Size of the largest request body.", name="max_body", is_size=True, group="Limits"
    )
    max_connections: int = option(
        4096,
        "Number of open connections, as far as descriptors allow. At the limit the server closes the one that has "
        "waited longest for a request. If none waits, the new one gets a 503, but not for /live, /ready and /health.",
        least=1,
    )
    max_connections_per_address: int = option(
        2048, "Number of open connections of one client address. Behind a proxy all clients have its address.", least=1
    )
    max_images: int = option(16, "Number of images in one request.", least=1, group="Images")
    max_image_pixels: int = option(
        2**25, "Pixels of an image (width times height) before it is resized.", least=1, most=2**30
    )
    responses_store: str = option(
        "memory",
        "Where responses and conversations of /v1/responses are stored: memory, off, or the path of a file (SQLite), "
        "which survives a restart and serves one server.",
        group="State",
    )
    responses_store_size: int | None = option(
        None,
        "Bytes that the store may hold. At the limit the least recently used is removed.",
        unset="64MiB in memory, 1GiB in a file",
        is_size=True,
    )
    responses_store_seconds: float | None = option(
        None,
        "Seconds after its last use for which a response or a conversation is kept.",
        unset="an hour in memory, 30 days in a file",
        least=1,
    )
    resume_seconds: float = option(
        60.0,
        "For a request with the header x-noria-resume: 1: seconds for which its stream goes on without its client, and "
        "for which the server has its events.",
        least=0,
        most=86400,
    )
    resume_key_file: Path | None = option(
        None,
        "File with the secret by which event ids are sealed, at least 16 bytes. Replicas with the same file go on with "
        "each other's streams (docs/state.md).",
        unset="only the server that began a stream goes on with it",
    )
    health_port: int | None = option(
        None,
        "Port for /live, /ready and /health on a thread of its own, which no load delays.",
        unset="only --port has them",
        least=1,
        most=65535,
        group="Operation",
    )
    drain_timeout: float = option(30.0, "Seconds that running requests get to finish after SIGTERM.", least=0)
    receipts: bool = option(
        False,
        "Add a signed receipt to every answer, not only where a request asks for it (docs/state.md). It needs "
        "--receipt-key.",
        group="Receipts",
    )
    receipt_key: Path | None = option(
        None,
        "File with the private key that signs receipts; noria receipts key FILE makes one. It needs the package of the "
        "extra receipts.",
        unset="a request for a receipt gets a 400",
    )
    log_format: str = option("human", "Format of the log on stderr.", choices=("human", "json"), group="Observe")
    log_level: str = option("info", "Lowest level that is logged.", choices=LEVELS)
    log_level_file: Path | None = option(
        None, "File with the level to log, read at the start and at SIGHUP. It takes precedence over --log-level."
    )
    canary: str = option(
        "off",
        "Ask each model the same question every minute, and compare the bits of the answers, where they are promised "
        "(docs/determinism.md). report: a wrong one is a metric and an alert. unready: then /ready also answers 503.",
        choices=("off", "report", "unready"),
    )
    record_dir: Path | None = option(
        None,
        "Directory for records of the last ten minutes: one is written when an engine or the server dies, and at "
        "SIGUSR2. noria explain FILE reads it (docs/operations.md).",
        unset="none is written",
    )
    record_dir_size: int = option(
        2**27, "Bytes of records in --record-dir. The oldest are removed.", is_size=True, least=2**23
    )
    metrics_names: str = option(
        "noria",
        "Names in /metrics. vllm: those of the metrics that vLLM has too, for routers that know only these.",
        choices=METRIC_NAMES,
    )
    kv_events: str | None = option(
        None,
        "Address, such as tcp://*:5557, at which routers learn by ZeroMQ which pages are cached, as of vLLM. It needs "
        "one model and the packages of the extra events (docs/kubernetes.md).",
        unset="nobody learns that",
    )
    kv_events_replay: str | None = option(
        None, "Address, such as tcp://*:5558, at which a router asks again for events that it has missed.", unset="none"
    )
    otlp_endpoint: str | None = option(
        None,
        "URL of an OpenTelemetry collector that takes traces by OTLP over HTTP, such as http://127.0.0.1:4318. It "
        "needs the packages of the extra otel (docs/operations.md).",
        unset="no traces",
    )

    def check(self) -> None:
        """Raise OptionError for options that cannot work, before anything is started."""
        ModelSettings.check(self)
        self._check_store()
        self.level()
        self._check_place()
        self._check_tls()
        if self.receipts and self.receipt_key is None:
            raise OptionError("--receipts needs --receipt-key FILE; noria receipts key FILE makes the file")
        check_file("--receipt-key", self.receipt_key)
        if self.record_dir is not None and not self.record_dir.is_dir():
            raise OptionError(f"--record-dir {self.record_dir}: no such directory")
        if self.resume_key_file is not None and len(self.resume_key) < MIN_KEY_BYTES:
            raise OptionError(f"--resume-key-file {self.resume_key_file}: must have at least {MIN_KEY_BYTES} bytes")
        self._check_events()
        _ = self.objective_priorities
        if self.otlp_endpoint is not None:
            _check_collector(self.otlp_endpoint)

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port to listen on, unless there is a Unix socket."""
        return self.host or HOST, PORT if self.port is None else self.port

    @property
    def hosts(self) -> frozenset[str]:
        """Return the names of --allowed-hosts, in lower case."""
        return frozenset(name.lower().removesuffix(".") for name in _split(self.allowed_hosts))

    @property
    def proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Return the peers that are believed about clients."""
        return tuple(map(ip_network, _split(self.forwarded_allow_ips) or PROXIES))

    @property
    def objective_priorities(self) -> dict[str, int]:
        """Return the priority of each name of --objective. Raises OptionError."""
        found = {}
        for text in self.objectives:
            name, _, number = text.partition("=")
            if not (name and re.fullmatch(r"-?[0-9]{1,9}", number)):
                raise OptionError(f"--objective must be NAME=NUMBER, such as premium=-10, got {text[:80]!r}")
            found[name] = int(number)
        return found

    @property
    def resume_key(self) -> bytes:
        """Return the secret that seals event ids, without white space at its ends. Raises OptionError."""
        if self.resume_key_file is None:
            return secrets.token_bytes(32)
        return read_text("--resume-key-file", self.resume_key_file).strip().encode()

    @property
    def responses_bounds(self) -> tuple[int, float]:
        """Return the bytes of the store of responses, and the seconds for which it holds them."""
        size, seconds = STORE_BOUNDS.get(self.responses_store, FILE_BOUNDS)
        return self.responses_store_size or size, self.responses_store_seconds or seconds

    def _check_store(self) -> None:
        path = Path(self.responses_store)
        if self.responses_store == ":memory:":
            raise OptionError("--responses-store :memory: is no path: a store in memory is --responses-store memory")
        if self.responses_store not in STORE_BOUNDS and (path.is_dir() or not path.absolute().parent.is_dir()):
            problem = "it is a directory" if path.is_dir() else "no such directory"
            raise OptionError(f"--responses-store {path}: {problem}; expected memory, off or the path of a file")
        if self.responses_store == "off" and (self.responses_store_size or self.responses_store_seconds):
            raise OptionError("--responses-store off cannot be used with --responses-store-size or -seconds")

    def _check_place(self) -> None:
        """Raise OptionError for a wrong socket or prefix, or wrong proxies, names or origins."""
        for name in _split(self.forwarded_allow_ips):
            _check_network(name)
        wrong = next((name for name in _split(self.allowed_hosts) if not HOST_NAME.fullmatch(name)), None)
        if wrong is not None:
            raise OptionError(
                "--allowed-hosts must be names such as noria.example.org, without scheme and port, or *, got "
                f"{wrong[:80]!r}"
            )
        wrong = next((origin for origin in self.cors_origins if not ORIGIN.fullmatch(origin)), None)
        if wrong is not None:
            raise OptionError(
                "--cors-origin must be an origin as browsers send it, such as https://app.example.org, in lower case "
                f"and without a path, or *, got {wrong[:80]!r}"
            )
        if self.root_path is not None and not ROOT_PATH.fullmatch(self.root_path):
            raise OptionError(
                "--root-path must be a path such as /noria, of letters, digits and -._~ between slashes, without a "
                f"slash at its end, got {self.root_path[:80]!r}"
            )
        if self.uds is None:
            return
        if self.port is not None:
            raise OptionError(f"--uds {self.uds} and --port {self.port} exclude each other: choose one")
        if self.host is not None and self.health_port is None:
            raise OptionError(f"--uds {self.uds} and --host {self.host} exclude each other: choose one")
        if (size := len(str(self.uds).encode())) > MAX_SOCKET_PATH:
            raise OptionError(f"--uds {self.uds}: a socket's path may have at most {MAX_SOCKET_PATH} bytes, got {size}")

    def _check_events(self) -> None:
        if self.kv_events is None:
            if self.kv_events_replay is not None:
                raise OptionError("--kv-events-replay needs --kv-events")
            return
        from importlib.util import find_spec

        if not (find_spec("zmq") and find_spec("msgspec")):
            raise OptionError("--kv-events needs packages that are not installed (the extra events): pyzmq, msgspec")

    def _check_tls(self) -> None:
        if self.ssl_certfile is None and self.ssl_keyfile is None:
            return
        if self.ssl_certfile is None:
            raise OptionError("--ssl-keyfile needs --ssl-certfile")
        check_file("--ssl-certfile", self.ssl_certfile)
        check_file("--ssl-keyfile", self.ssl_keyfile)
        import ssl

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        except OSError as error:
            raise OptionError(f"--ssl-certfile {self.ssl_certfile} cannot be used: {error}") from error

    def level(self) -> str:
        """Return the level to log: that of the file, if there is one. Raises OptionError."""
        path = self.log_level_file
        if path is None:
            return self.log_level
        level = read_text("--log-level-file", path).strip().lower()
        if level not in LEVELS:
            raise OptionError(f"--log-level-file {path}: must hold one of {', '.join(LEVELS)}, got {level[:40]!r}")
        return level


def _split(given: Sequence[str]) -> list[str]:
    """Return names that are given with commas, by repetition of the flag, or both."""
    return [name.strip() for names in given for name in names.split(",")]


def _check_network(name: str) -> None:
    try:
        ip_network(name)
    except ValueError as error:
        raise OptionError(
            f"--forwarded-allow-ips must be addresses or networks such as 10.0.0.0/8, got {name[:80]!r} ({error})"
        ) from error


def _check_collector(url: str) -> None:
    from importlib import import_module
    from importlib.util import find_spec
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or parts.query or parts.fragment:
        raise OptionError(f"--otlp-endpoint must be an http or https URL such as http://127.0.0.1:4318, got {url!r}")
    try:
        installed = find_spec("opentelemetry.sdk.trace") and find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:  # of the package around it
        installed = None
    if installed is None:
        raise OptionError(
            "--otlp-endpoint needs packages that are not installed (the extra otel): "
            "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        )
    try:
        import_module("opentelemetry.propagate")
    except ValueError as error:
        raise OptionError(f"--otlp-endpoint: OTEL_PROPAGATORS has a wrong value: {error}") from error
