"""All options with which the service was started, frozen. Every option is declared once, here or in `RunnerOptions`.

`commands/flags.py` reads the declarations. Imports here are light: `serve` needs them before it starts the engine.
"""

import re
from dataclasses import dataclass, fields
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Literal, get_args

from model.chat.reasoning import STYLES
from model.checkpoint.embedded import EMBEDDED_REPETITION
from model.checkpoint.resolve import EMBEDDED, default_name
from model.errors import OptionError, ParameterError, one_line, short
from model.options import RunnerOptions, check_limits, flag_name, option
from model.sampling_params import RepetitionDetection

LEVELS = ("debug", "info", "warning", "error")
ReasoningFormat = Literal["auto", "deepseek", "none", "mistral"]
"""Where a chat has its thoughts."""
MAX_ADAPTER_NAME = 256
"""Characters of an adapter's name."""
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
MAX_SOCKET_PATH = 107
"""Bytes of a Unix socket's path (unix(7))."""


@dataclass(frozen=True, slots=True)
class Settings(RunnerOptions):
    """The options of the runner and those of the service. None leaves the choice to the model or the machine."""

    model: str = option(
        EMBEDDED,
        "Model to serve: a directory, a .gguf file (the first of a split model), a hub name such as org/name or, for a "
        f"GGUF file of one kind, org/name:Q4_K_M, or {EMBEDDED}, which is installed.",
        is_argument=True,
        in_plan=True,
        group="Model",
    )
    revision: str | None = option(
        None, "Branch, tag or commit of a hub model.", unset="the default branch", in_plan=True, group="Model"
    )
    served_model_name: tuple[str, ...] = option(
        (), "Model id that clients use; repeat the flag for aliases.", unset="name of the hub model, folder or file"
    )
    chat_template: Path | None = option(None, "File with a Jinja chat template.", unset="the model's", group="Chat")
    reasoning_style: str = option(
        "auto",
        "How the model marks its reasoning: tokens ([THINK]) or tags (<think>). none leaves it in the answer. "
        "auto reads the tokenizer and the chat template.",
        choices=("auto", *STYLES, "none"),
    )
    reasoning_format: str = option(
        "auto",
        "Where a chat has its thoughts, if neither the request nor the key says: auto and deepseek in "
        "reasoning_content, mistral in chunks of the content, none in its text.",
        choices=get_args(ReasoningFormat),
    )
    reasoning_budget: int | None = option(
        None,
        "Tokens of a thought, if the request does not say. Then the thought ends with its sentence, and the answer "
        "follows.",
        unset="no limit",
        least=0,
    )
    lora: tuple[str, ...] = option(
        (),
        "LoRA adapter as NAME=PATH: requests with the model NAME use the adapter in the directory PATH. Repeat the "
        "flag for more adapters.",
        unset="none",
        group="LoRA adapters",
    )
    lora_dir: Path | None = option(
        None,
        "Directory from which POST /v1/load_lora_adapter may load adapters while the server runs.",
        unset="only --lora loads adapters",
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
        "another name gets a 403; localhost and IP addresses pass. Several are separated by commas, or the flag is "
        "repeated.",
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
        "X-Forwarded-Proto, for the log and for traces. Several are separated by commas, or the flag is repeated. "
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
        None,
        "File with more API keys: one a line, or, in a .toml or .json file, entries with names and limits.",
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
        "they are a 400.",
    )
    max_queue: int = option(
        256, "Number of requests that may wait while others run. The next one gets a 429.", least=0, group="Limits"
    )
    max_queue_tokens: int = option(
        2**20, "Number of prompt tokens that may wait. While as many wait, the next request gets a 429.", least=1
    )
    max_queue_choices: int = option(
        4096,
        "Number of choices (`n` for each prompt) that may wait. While as many wait, the next request gets a 429.",
        least=1,
    )
    max_body_bytes: int = option(8 * 2**20, "Size of the largest request body.", name="max_body", is_size=True)
    max_connections: int = option(
        4096,
        "Number of open connections, as far as descriptors allow. At the limit the server closes the one that has "
        "waited longest for a request. If none waits, the new one gets a 503, but not for /live and /ready.",
        least=1,
    )
    max_connections_per_address: int = option(
        2048, "Number of open connections of one client address. Behind a proxy all clients have its address.", least=1
    )
    repetition_detection: str | None = option(
        None,
        "End an answer that repeats itself, if the request does not say. MAX,MIN,COUNT: as soon as it ends with COUNT "
        "copies of a pattern of MIN to MAX tokens. off: never.",
        unset=f"{EMBEDDED_REPETITION} for {EMBEDDED}, otherwise off",
    )
    max_images: int = option(16, "Number of images in one request.", least=1, group="Images")
    max_image_pixels: int = option(
        2**25, "Pixels of an image (width times height) before it is resized.", least=1, most=2**30
    )
    responses_store: str = option(
        "memory",
        "Where responses and conversations of /v1/responses are stored: memory, off, or the path of a file (SQLite), "
        "which a restart survives and one server uses.",
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
    finish_after_restart: bool = option(
        False,
        "Compute responses in the background again that were running when the server ended. It needs a file as "
        "--responses-store. Otherwise they are marked as failed.",
    )
    resume_seconds: float = option(
        60.0,
        "Seconds for which a stream goes on without its client, and its events are kept, if its request has the header "
        "x-noria-resume: 1.",
        least=0,
        most=86400,
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
    step_timeout: float = option(
        60.0, "Seconds without progress after which a sequence counts as hung, and the engine is replaced.", least=1
    )
    spare_engine: bool = option(
        True,
        "Keep a second engine process ready. It loads the model when the first one dies. This saves a second or more, "
        "and needs about 150 MB.",
    )
    on_engine_loss: str = option(
        "continue",
        "What the engine's end means for a stream that has begun. continue: the next engine goes on with it, as with "
        "all other answers. error: it ends with an error.",
        choices=("continue", "error"),
    )
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
    otlp_endpoint: str | None = option(
        None,
        "URL of an OpenTelemetry collector that takes traces by OTLP over HTTP, such as http://127.0.0.1:4318. It "
        "needs the packages of the extra otel (docs/operations.md).",
        unset="no traces",
    )

    def check(self) -> None:
        """Raise OptionError for options that cannot work, before anything is started."""
        check_limits(self)
        if self.max_sequences and self.max_step_tokens and self.max_sequences > self.max_step_tokens:
            raise OptionError(
                f"--max-sequences {self.max_sequences} is more than --max-step-tokens {self.max_step_tokens}: "
                "each running sequence needs a token of every step; lower the one or raise the other"
            )
        for declared in fields(self):
            value = getattr(self, declared.name)
            if isinstance(value, tuple) and any(not item.strip() for item in value):
                raise OptionError(f"{flag_name(declared)} must not be empty")
        _check_file("--chat-template", self.chat_template)
        self._check_store()
        self._check_prefixes()
        _ = self.repetition
        self._check_adapters()
        self._check_sharding()
        self.level()
        self._check_place()
        self._check_tls()
        _check_receipts(self)
        if self.otlp_endpoint is not None:
            _check_collector(self.otlp_endpoint)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model itself."""
        return self.served_model_name or (default_name(self.model),)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on, unless there is a Unix socket."""
        return self.host or HOST, PORT if self.port is None else self.port

    @property
    def hosts(self) -> frozenset[str]:
        """The names of --allowed-hosts, in lower case. Raises OptionError."""
        return frozenset(_host(name.strip()) for given in self.allowed_hosts for name in given.split(","))

    @property
    def proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The peers that are believed about clients. Raises OptionError."""
        names = [name.strip() for given in self.forwarded_allow_ips for name in given.split(",")]
        return tuple(map(_network, names or PROXIES))

    @property
    def repetition(self) -> RepetitionDetection | None:
        """The default of `repetition_detection`. Raises OptionError."""
        text = self.repetition_detection or (EMBEDDED_REPETITION if self.model == EMBEDDED else "off")
        if text == "off":
            return None
        try:
            sizes = [int(size) for size in text.split(",")]
            return RepetitionDetection(*sizes)
        except (ValueError, TypeError, ParameterError) as error:
            why = f": {error}" if isinstance(error, ParameterError) else ""
            raise OptionError(f"--repetition-detection must be MAX,MIN,COUNT or off, got {short(text)}{why}") from None

    @property
    def adapters_given(self) -> dict[str, Path]:
        """The directories of the adapters of --lora, by name. Raises OptionError."""
        found: dict[str, Path] = {}
        for text in self.lora:
            name, separator, path = text.partition("=")
            if not separator or not path:
                raise OptionError(f"--lora {text}: expected NAME=PATH")
            if (problem := adapter_name_problem(name)) is not None:
                raise OptionError(f"--lora {text}: {problem}")
            if name in found or name in self.names:
                whose = "another adapter" if name in found else "the model"
                raise OptionError(f"--lora {text}: {name!r} is the name of {whose} already")
            found[name] = Path(path).expanduser().absolute()
        return found

    @property
    def responses_bounds(self) -> tuple[int, float]:
        """Bytes of the store of responses, and seconds for which it keeps them."""
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
        if self.finish_after_restart and self.responses_store in STORE_BOUNDS:
            raise OptionError(f"--finish-after-restart needs a file as --responses-store, got {self.responses_store}")

    def _check_prefixes(self) -> None:
        if self.prefix_store is None:
            if self.prefix_store_size is not None:
                raise OptionError("--prefix-store-size needs --prefix-store DIR")
            return
        try:
            Path(self.prefix_store).mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(f"--prefix-store {self.prefix_store}: {one_line(error)}; expected a directory") from error

    def _check_adapters(self) -> None:
        for name, path in self.adapters_given.items():
            if not path.exists():
                raise OptionError(f"--lora {name}={path}: no such file or directory")
        if self.lora_dir is not None and not self.lora_dir.is_dir():
            raise OptionError(f"--lora-dir {self.lora_dir}: no such directory")

    def _check_sharding(self) -> None:
        for flag, value in (
            ("--lora", self.lora),
            ("--lora-dir", self.lora_dir),
            ("--prefix-store", self.prefix_store),
        ):
            if value and self.layout.size > 1:
                raise OptionError(
                    f"{flag} cannot be used with a model that {self.layout.size} ranks share; serve it with one rank"
                )

    def _check_place(self) -> None:
        """Raise OptionError for a wrong socket or prefix, or wrong proxies, names or origins."""
        _ = self.proxies, self.hosts
        if wrong := next((origin for origin in self.cors_origins if not ORIGIN.fullmatch(origin)), None):
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

    def _check_tls(self) -> None:
        if self.ssl_certfile is None and self.ssl_keyfile is None:
            return
        if self.ssl_certfile is None:
            raise OptionError("--ssl-keyfile needs --ssl-certfile")
        _check_file("--ssl-certfile", self.ssl_certfile)
        _check_file("--ssl-keyfile", self.ssl_keyfile)
        import ssl

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        except OSError as error:
            raise OptionError(f"--ssl-certfile {self.ssl_certfile} cannot be used: {error}") from error

    def level(self) -> str:
        """The level to log: that of the file, if there is one. Raises OptionError."""
        path = self.log_level_file
        if path is None:
            return self.log_level
        try:
            level = path.read_text().strip().lower()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"--log-level-file {path}: cannot be read ({type(error).__name__})") from error
        if level not in LEVELS:
            raise OptionError(f"--log-level-file {path}: must hold one of {', '.join(LEVELS)}, got {level[:40]!r}")
        return level


def adapter_name_problem(name: str) -> str | None:
    """Why an adapter cannot have this name; None if it can."""
    if not name.strip() or not name.isprintable():
        return f"the name of an adapter must be printable characters, got {name[:MAX_ADAPTER_NAME]!r}"
    if len(name) > MAX_ADAPTER_NAME:
        return f"the name of an adapter must have at most {MAX_ADAPTER_NAME} characters, got {len(name)}"
    return None


def _network(name: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(name)
    except ValueError as error:
        raise OptionError(
            f"--forwarded-allow-ips must be addresses or networks such as 10.0.0.0/8, got {name[:80]!r} ({error})"
        ) from error


def _host(name: str) -> str:
    if not HOST_NAME.fullmatch(name):
        raise OptionError(
            f"--allowed-hosts must be names such as noria.example.org, without scheme and port, or *, got {name[:80]!r}"
        )
    return name.lower().removesuffix(".")


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


def _check_receipts(settings: Settings) -> None:
    if settings.receipts and settings.receipt_key is None:
        raise OptionError("--receipts needs --receipt-key FILE; noria receipts key FILE makes the file")
    _check_file("--receipt-key", settings.receipt_key)


def _check_file(flag: str, path: Path | None) -> None:
    if path is not None and not path.is_file():
        raise OptionError(f"{flag} {path}: no such file")
