"""`noria`: the command line. Every flag of `serve` is also a variable NORIA_<FLAG>.

Imports here are few: `serve` starts the engine process before anything slow is imported, so that both load at once.
"""

import inspect
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from model.checkpoint.resolve import EMBEDDED
from model.errors import NoriaError, OptionError
from service.settings import Settings

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes: "4GiB", "512MiB", "1.5G" or a plain number; all units are powers of 1024."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size; write 4GiB, 512MiB or bytes")
    return int(float(match[1]) * UNITS[match[2].upper()])


def _option(text: str, **limits: Any) -> Any:
    return typer.Option(help=text, **limits)


def _size(text: str) -> Any:
    return typer.Option(help=text, parser=parse_size, metavar="SIZE")


def serve(
    model: Annotated[
        str, typer.Argument(help="A directory, a .gguf file, a hub name or the embedded model.", envvar="NORIA_MODEL")
    ] = EMBEDDED,
    host: Annotated[str, _option("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _option("Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    device: Annotated[Literal["auto", "cpu", "cuda"], _option("Where to compute.")] = "auto",
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"], _option("Of weights and activations.")
    ] = "auto",
    quantize: Annotated[
        Literal["auto", "none", "fp8", "int8", "int4"],
        _option(
            "Scheme for the weights; auto: none on a GPU or with --dtype, else a GGUF's own blocks (int4), else int8."
        ),
    ] = "auto",
    attention: Annotated[str, _option("Attention backend.")] = "auto",
    kv_dtype: Annotated[
        Literal["auto", "int8", "fp8"],
        _option("Of keys and values; auto is the model's. Half their memory: int8 on a CPU, fp8 on a GPU."),
    ] = "auto",
    deterministic: Annotated[
        bool, _option("No bit of an answer depends on what is served beside it; slower for some schemes.")
    ] = False,
    sliding_window: Annotated[
        int | None, _option("Give every layer this window, in tokens; else the checkpoint's.", min=1)
    ] = None,
    max_model_len: Annotated[int | None, _option("Longest prompt plus output, in tokens.", min=1)] = None,
    max_sequences: Annotated[
        int | None, _option("Sequences computed at once; else 64, on a GPU 256, or --max-step-tokens if less.", min=1)
    ] = None,
    max_step_tokens: Annotated[
        int | None, _option("Tokens computed in a step; else 512, on a GPU 2048, or --max-sequences if more.", min=1)
    ] = None,
    cache_memory: Annotated[int | None, _size("For keys and values, such as 4GiB; else from the free memory.")] = None,
    gpu_memory_utilization: Annotated[
        float | None,
        _option("Part of the GPU's memory that may be taken, 0.9 by default: keys and values get the rest.", max=1),
    ] = None,
    threads: Annotated[
        int | None, _option("Threads that compute on the CPU; else one for each core it may use.", min=1)
    ] = None,
    served_model_name: Annotated[list[str] | None, _option("Id of the model; repeat for aliases.")] = None,
    chat_template: Annotated[Path | None, _option("File with a Jinja chat template.")] = None,
    api_key: Annotated[list[str] | None, _option("Required of clients; repeat for more.", show_envvar=True)] = None,
    api_key_file: Annotated[Path | None, _option("File of API keys, one a line.")] = None,
    cors_origin: Annotated[list[str] | None, _option("Origin that browsers may call from; repeat for more.")] = None,
    ssl_certfile: Annotated[Path | None, _option("TLS certificate chain (PEM).")] = None,
    ssl_keyfile: Annotated[Path | None, _option("TLS private key (PEM).")] = None,
    max_queue: Annotated[int, _option("Requests that may wait beyond those computed.", min=0)] = 256,
    max_body: Annotated[int, _size("Largest request body.")] = "8MiB",  # type: ignore[assignment]
    drain_timeout: Annotated[float, _option("Seconds for running requests after SIGTERM.", min=0)] = 30.0,
    step_timeout: Annotated[float, _option("Seconds after which a step counts as hung.", min=1)] = 60.0,
    cache_dir: Annotated[Path | None, _option("For what GGUF files are converted to; else ~/.cache/noria.")] = None,
    revision: Annotated[str | None, _option("Branch, tag or commit of a hub model.")] = None,
    log_format: Annotated[Literal["human", "json"], _option("Of the log on stderr.")] = "human",
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _option("Least level to log.")] = "info",
) -> None:
    """Serve MODEL over HTTP with OpenAI's API."""
    values = dict(locals())
    keys = tuple(values.pop("api_key") or ()) + _read_keys(values.pop("api_key_file"))
    for name in ("served_model_name", "cors_origin"):
        values[name] = tuple(values[name] or ())
    settings = Settings(
        api_keys=keys, cors_origins=values.pop("cors_origin"), max_body_bytes=values.pop("max_body"), **values
    )
    raise typer.Exit(run(settings))


PLANNED = (
    *("model", "device", "dtype", "quantize", "kv_dtype", "sliding_window", "max_model_len", "max_sequences"),
    *("max_step_tokens", "cache_memory", "gpu_memory_utilization", "cache_dir", "revision"),
)
"""Flags of `serve` that `plan` takes too."""


def plan(
    memory: Annotated[int | None, _size("Of the GPU, such as 80GiB; with --device cpu else what is free.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    **served: Any,
) -> None:
    """Say what MODEL takes and how many sequences fit, before anything is loaded; for a GPU unless --device cpu."""
    from service.commands.plan import show

    show(Settings(**served), memory, as_json=json)


def _borrow() -> inspect.Signature:
    """The parameters of `plan`, as `typer` is to see them."""
    own = [parameter for parameter in inspect.signature(plan).parameters.values() if parameter.name != "served"]
    of_serve = inspect.signature(serve).parameters
    borrowed = [of_serve[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in PLANNED]
    return inspect.Signature([*own, *borrowed])


plan.__signature__ = _borrow()  # type: ignore[attr-defined]


def run(settings: Settings) -> int:
    """Serve until told to stop; the exit code. Raises NoriaError for what cannot be started."""
    settings.check()
    from service.http.listening import listen

    with listen(settings.host, settings.port) as sock:
        from service.engine.client import EngineClient
        from service.engine.process import EngineProcess

        client = EngineClient(
            EngineProcess,
            step_timeout=settings.step_timeout,
            on_report=lambda report: metrics.observe_report(report),
            on_restart=lambda: metrics.observe_restart(),
        )
        client.spawn()
        from service import logs
        from service.http.server import Server
        from service.metrics import Metrics

        logs.configure(settings.log_format, settings.log_level)
        metrics = Metrics(lambda: client.stats)
        progress = settings.log_format == "human" and sys.stderr.isatty()
        server = Server(settings, client, metrics, sock.getsockname()[1], progress=progress)
        server.run([sock])
    return int(server.failed)


def _read_keys(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        keys = tuple(line.strip() for line in path.read_text().splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--api-key-file {path}: cannot be read ({type(error).__name__})") from error
    if not keys:
        raise OptionError(f"--api-key-file {path}: holds no key; write one a line")
    return keys


def _show_version(wanted: bool) -> None:
    if wanted:
        from service import version

        typer.echo(f"noria {version()}")
        raise typer.Exit


def build(arguments: list[str]) -> typer.Typer:
    """The commands. `chat` and `bench` import slow things: they are left out when `serve` is asked for."""
    app = typer.Typer(name="noria", add_completion=False, pretty_exceptions_enable=False)

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None:
        """Serves Mistral-family language models over HTTP."""

    app.command(context_settings={"auto_envvar_prefix": "NORIA"})(serve)
    if arguments[:1] != ["serve"]:
        from service.commands.bench.bench import bench
        from service.commands.chat import chat

        app.command(context_settings={"auto_envvar_prefix": "NORIA"})(plan)
        app.command()(chat)
        app.command()(bench)
    return app


def main() -> None:
    """Entry point: what a person can cause is one line on stderr; exit code 2 for the command line, else 1."""
    arguments = sys.argv[1:] or ["--help"]
    try:
        raise SystemExit(build(arguments)(arguments, standalone_mode=False))
    except typer.TyperException as error:
        _fail(f"{error.format_message()} (noria --help lists the commands, noria COMMAND --help their flags)", 2)
    except NoriaError as error:
        _fail(str(error), 1)
    except typer.Abort:
        raise SystemExit(130) from None


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"noria: {message}", err=True)
    raise SystemExit(code)
