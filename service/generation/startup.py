"""Loads the served model: the service reads tokenizer and chat format while the engine loads the network."""

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from model.chat.ends import end_tokens
from model.chat.formats import ChatFormat, load_chat
from model.chat.reasoning import STYLES, Marks, has_tokens
from model.checkpoint.config import doubts as file_doubts
from model.checkpoint.config import read_config
from model.checkpoint.digest import network_files, stamp
from model.checkpoint.embedded import EMBEDDED, EMBEDDED_DESCRIPTION
from model.checkpoint.generation_config import GenerationDefaults, read_generation
from model.checkpoint.model_files import is_gguf, model_files
from model.checkpoint.resolve import resolve, resolve_again
from model.errors import ModelError, OptionError, ParameterError
from model.machine.host import return_free_memory
from model.options import RunnerOptions
from model.sharding.layout import Layout
from model.sharding.shard import check
from model.tokenizers.base import Tokenizer
from model.tokenizers.huggingface import HuggingFaceTokenizer
from model.tokenizers.load import load_tokenizer
from model.tokenizers.roles import read_roles
from service.engine.client import EngineClient
from service.generation.adapters import given_adapters
from service.generation.served import ServedModel, longest_piece
from service.model_settings import read_text
from service.settings import Settings

log = logging.getLogger("noria")
T = TypeVar("T")
IN_GGUF = {"tokenizer_config.json": "GGUF keys", "generation_config.json": "GGUF keys and known texts"}
"""Files that Noria makes of a GGUF file's metadata -> their origin."""


@dataclass(frozen=True, slots=True)
class TextSide:
    """The parts of a model's directory that the service reads. `roles` and `doubts` are lines about it for the log."""

    tokenizer: Tokenizer
    chat: ChatFormat | None
    defaults: GenerationDefaults
    longest_piece: int
    roles: str
    doubts: tuple[str, ...] = ()


async def load_served(settings: Settings, client: EngineClient) -> ServedModel:
    """Load the served model: its files are found, then tokenizer and network load at the same time.

    Raises NoriaError as soon as either fails; the caller closes the client, which ends an engine that still loads.
    """
    directory = await in_thread(lambda: resolve(settings.model, revision=settings.revision, progress=client.note))
    await in_thread(lambda: check_layout(settings, directory))
    source = (directory, await in_thread(lambda: _stamp(directory)))
    options = await in_thread(lambda: runner_options(settings, directory))

    async def renew() -> dict[str, Any]:
        """Return the runner's options for another engine: the model's files may have gone, or moved."""
        find = partial(resolve_again, settings.model, directory, progress=client.note)
        return options | {"model": str(await in_thread(find))}

    read = partial(load_text_side, directory, settings.chat_template, options["template"])
    text = asyncio.create_task(in_thread(lambda: _frozen(read())))
    network = asyncio.create_task(client.start(options, renew))
    try:
        side, _ = await asyncio.gather(text, network)
    finally:
        text.cancel()
        network.cancel()
    assert client.info is not None
    log.info("%s", side.roles)
    for doubt in side.doubts:
        log.warning("%s", doubt)
    return ServedModel(
        settings.names,
        side.tokenizer,
        side.chat,
        side.defaults,
        side.longest_piece,
        client.info,
        marks_of(settings, side.chat, side.tokenizer),
        settings.reasoning_budget,
        settings.read_repetition(),
        description=EMBEDDED_DESCRIPTION if settings.model == EMBEDDED else None,
        source=source,
    )


def check_layout(settings: Settings, directory: Path) -> None:
    """Raise OptionError, before any rank starts, if ranks cannot share the model as the options say."""
    if settings.layout != Layout():
        check(read_config(directory, max_model_len=settings.max_model_len), settings.layout)


def load_text_side(directory: Path, chat_template: Path | None, template: str | None = None) -> TextSide:
    """Load the tokenizer, chat format and generation defaults of a model directory. `template` is the file's text."""
    files = model_files(directory)
    roles = read_roles(files, template or _read(chat_template))
    tokenizer = load_tokenizer(files, roles)
    chat = load_chat(files, tokenizer, roles=roles)
    if chat is not None and chat_template is not None:
        _try_template(chat, chat_template)
    ends = end_tokens(files, roles, tokenizer, chat)
    told = roles.told(tokenizer, ends, IN_GGUF if is_gguf(directory) else {})
    own = tokenizer.doubts if isinstance(tokenizer, HuggingFaceTokenizer) else ()
    doubts = (*file_doubts(directory), *own, *roles.doubts(tokenizer))
    return TextSide(tokenizer, chat, read_generation(files, ends), longest_piece(tokenizer), told, doubts)


def _frozen(side: TextSide) -> TextSide:
    """Freeze the text side, which stays: else a large body makes the collector walk over it, and all threads wait.

    Making it took several times its memory, in an arena of this thread. The engine still loads.
    """
    gc.collect()
    gc.freeze()
    return_free_memory()
    return side


def marks_of(settings: Settings, chat: ChatFormat | None, tokenizer: Tokenizer) -> Marks | None:
    """Return the marks of the model's thoughts, None for a model without reasoning. Raises OptionError."""
    chosen = settings.reasoning_style
    if chosen == "tokens" and not has_tokens(tokenizer):
        message = "--reasoning-style tokens needs a tokenizer with [THINK] and [/THINK]: use tags, none or auto"
        raise OptionError(message)
    style = (chat and chat.reasoning_style) if chosen == "auto" else chosen
    marks = STYLES.get(style or "none")
    if marks is None and settings.reasoning_budget is not None:
        raise OptionError(
            f"--reasoning-budget {settings.reasoning_budget} needs a model with reasoning, and this one has none: "
            "leave it out, or name the marks of its thoughts with --reasoning-style"
        )
    return marks


def _try_template(chat: ChatFormat, path: Path) -> None:
    """Refuse a template that cannot write the simplest conversation. Raises OptionError."""
    try:
        chat.encode([{"role": "user", "content": "Hello"}])
    except ParameterError as error:
        raise OptionError(f"--chat-template {path} cannot render a single user message: {error}") from error


def runner_options(settings: Settings, directory: Path, *, weights: bool = True) -> dict[str, Any]:
    """Return the keyword arguments of the runner: the fields of RunnerOptions. A plan needs no `weights`."""
    options = {field.name: getattr(settings, field.name) for field in fields(RunnerOptions)}
    adapters = tuple((adapter.number, str(adapter.path)) for adapter in given_adapters(settings))
    draft = settings.draft_model and str(resolve(settings.draft_model, weights=weights))
    template = _read(settings.chat_template)
    return options | {"model": str(directory), "draft_model": draft, "adapters": adapters, "template": template}


def _read(path: Path | None) -> str | None:
    return read_text("--chat-template", path) if path else None


def _stamp(directory: Path) -> str:
    """Return the stamp of the network's files; empty if one is missing, which the engine's error will name."""
    try:
        return stamp(network_files(directory))
    except (ModelError, OSError):
        return ""


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` on a daemon thread: an executor's thread would keep the process from ending."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # a caller that is cancelled leaves the thread a future to end

    def run() -> None:
        try:
            result.set_result(work())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, name="noria-load", daemon=True).start()
    return await asyncio.wrap_future(result)
