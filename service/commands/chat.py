"""`noria chat`: talk to a model in the terminal. The server is a running one, or is started for the chat."""

import json
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx
import typer
from rich.console import Console

from model.errors import NoriaError, OptionError
from model.options import option
from service.commands.endpoint import base_url, error_message, event_data, find_model, headers
from service.commands.flags import takes
from service.commands.own_server import embedded_server

HELP = """\
/help   show this list
/reset  forget the conversation, but not the system message
/exit   end the chat, as Ctrl-D does
Ctrl-C stops an answer."""

# The text of a model must not control the terminal: all control characters are removed but tab and new line.
CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""Names of the thought in a delta: of most servers, and of some."""


class Piece(NamedTuple):
    """A piece of an answer, or of the thought before it."""

    text: str
    is_thought: bool = False


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The options of `noria chat`."""

    model: str | None = option(
        None,
        "Model to serve, as for noria serve. With --url: a model id on that server.",
        unset="the embedded model, with --url the server's first",
        is_argument=True,
    )
    url: str | None = option(None, "Address of a running server.", unset="the chat starts its own server")
    system: str | None = option(None, "System message.")
    temperature: float | None = option(None, "Sampling temperature.", unset="the server's", least=0)
    max_tokens: int | None = option(None, "Length limit of an answer, in tokens.", least=1)
    api_key: str | None = option(None, "API key of the server at --url.")


@takes(ChatOptions, "NORIA_CHAT_")
def chat(options: ChatOptions) -> None:
    """Talk to a model in the terminal.

    If the input is a pipe, all of it is one message, and only the answer is printed. Without --url the chat starts its
    own server, which reads the environment variables of noria serve.
    """
    fields = {"temperature": options.temperature, "max_tokens": options.max_tokens}
    chosen = {name: value for name, value in fields.items() if value is not None}
    url, model = options.url, options.model
    try:
        with _running_server(url, options.api_key) if url else _own_server(model) as client:
            _talk(Conversation(client, find_model(client, model if url else None), options.system, chosen))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@contextmanager
def _running_server(url: str, api_key: str | None) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base_url(url), headers=headers(api_key), timeout=None) as client:
        yield client


@contextmanager
def _own_server(model: str | None) -> Iterator[httpx.Client]:
    status = Console(stderr=True).status("")  # prints nothing unless stderr is a terminal

    def show(stage: str, done: float) -> None:
        status.update(f"{stage} {done:.0%}")
        status.start()

    try:
        with embedded_server(model, show) as client:
            status.stop()
            yield client
    finally:
        status.stop()


class Conversation:
    """The messages so far and the server that answers them. `options` are fields of every request."""

    def __init__(self, client: httpx.Client, model: str, system: str | None, options: dict[str, Any]) -> None:
        self.model = model
        self._client = client
        self._options = options
        self._begin = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._begin)

    def reset(self) -> None:
        self._messages = list(self._begin)

    def ask(self, text: str) -> Generator[Piece, None, None]:
        """The thought and the answer, piece by piece. Closing the generator early stops the server's work too.

        The message and its answer become part of the conversation, even if the answer was stopped early. A message
        without any answer does not. Raises OptionError with the server's error message.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        answer = ""
        try:
            for piece in self._stream(messages):
                answer += "" if piece.is_thought else piece.text
                yield piece
        except httpx.TransportError as error:
            raise OptionError(f"the connection broke: {error or type(error).__name__}") from error
        finally:
            if answer:
                self._messages = [*messages, {"role": "assistant", "content": answer}]

    def _stream(self, messages: list[dict[str, str]]) -> Iterator[Piece]:
        body = {"model": self.model, "messages": messages, "stream": True, **self._options}
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            if not response.is_success:
                raise OptionError(error_message(response.read()))
            for line in response.iter_lines():
                data = event_data(line)
                if not data or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise OptionError(error_message(event))
                for choice in event.get("choices", ()):
                    yield from _pieces(choice["delta"])


def _pieces(delta: dict[str, Any]) -> Iterator[Piece]:
    thought = next((text for name in THOUGHT_FIELDS if (text := delta.get(name))), "")
    for text, is_thought in ((thought, True), (delta.get("content") or "", False)):
        if text:
            yield Piece(text.translate(CONTROLS), is_thought)


def _talk(conversation: Conversation) -> None:
    if sys.stdin.isatty():
        _interact(conversation)
        return
    text = sys.stdin.buffer.read().decode(errors="replace").strip()
    if not text:
        raise OptionError("no message: the input is empty")
    _print_answer(conversation, text, thoughts=False)


def _interact(conversation: Conversation) -> None:
    import readline  # noqa: F401  gives input() editing and history

    typer.echo(f"{conversation.model} is ready. /help lists the commands, Ctrl-D ends the chat.")
    while (line := _read()) != "/exit":
        if line == "/help":
            typer.echo(HELP)
        elif line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            typer.echo(f"no command {line.split()[0]}; /help lists them")
        elif line:
            _answer(conversation, line)


def _read() -> str:
    try:
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        typer.echo()
        return "/exit"


def _answer(conversation: Conversation, text: str) -> None:
    try:
        _print_answer(conversation, text, thoughts=True)
    except KeyboardInterrupt:
        typer.echo(" [stopped]")
    except NoriaError as error:
        typer.secho(str(error), err=True, fg="red")


def _print_answer(conversation: Conversation, text: str, *, thoughts: bool) -> None:
    """Print an answer as it comes. With `thoughts` its thought comes before it, dimmed."""
    before = False
    with closing(conversation.ask(text)) as pieces:
        for piece in pieces:
            if piece.is_thought and not thoughts:
                continue
            if before and not piece.is_thought:
                typer.echo("\n")
            before = piece.is_thought
            typer.echo(typer.style(piece.text, dim=True) if piece.is_thought else piece.text, nl=False)
    typer.echo()
