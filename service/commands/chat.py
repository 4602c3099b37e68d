"""`noria chat`: talk to a model in the terminal, on a running server or on one of its own."""

import json
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from model.errors import NoriaError, OptionError
from service.commands.endpoint import base_url, error_message, event_data, find_model, headers
from service.commands.own_server import embedded_server

HELP = """\
/help   this list
/reset  forget the conversation, keep the system message
/exit   end, as Ctrl-D does
Ctrl-C stops an answer."""

# A model's text must not steer the terminal: no control characters but tab and new line.
CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


def chat(
    model: Annotated[
        str | None,
        typer.Argument(
            help="What to serve (as for serve), or with --url a model id of that server.", show_default=False
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(envvar="NORIA_CHAT_URL", help="A running server; without, one is started and ended.")
    ] = None,
    system: Annotated[str | None, typer.Option(envvar="NORIA_CHAT_SYSTEM", help="System message.")] = None,
    temperature: Annotated[
        float | None, typer.Option(envvar="NORIA_CHAT_TEMPERATURE", help="The server's default when left out.", min=0)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(envvar="NORIA_CHAT_MAX_TOKENS", help="Longest answer, in tokens.", min=1)
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="NORIA_CHAT_API_KEY", help="Key of the server at --url.")
    ] = None,
) -> None:
    """Talk to a model. With a pipe for input, all of it is one message, and the answer is printed plain.

    A server of its own takes the NORIA_* variables of `noria serve`.
    """
    options = {"temperature": temperature, "max_tokens": max_tokens}
    chosen = {name: value for name, value in options.items() if value is not None}
    try:
        with _running_server(url, api_key) if url else _own_server(model) as client:
            _talk(Conversation(client, find_model(client, model if url else None), system, chosen))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@contextmanager
def _running_server(url: str, api_key: str | None) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base_url(url), headers=headers(api_key), timeout=None) as client:
        yield client


@contextmanager
def _own_server(model: str | None) -> Iterator[httpx.Client]:
    status = Console(stderr=True).status("")  # shows nothing unless on a terminal

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
    """Messages so far, and the server that continues them. `options` are fields of every request."""

    def __init__(self, client: httpx.Client, model: str, system: str | None, options: dict[str, Any]) -> None:
        self.model = model
        self._client = client
        self._options = options
        self._begin = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._begin)

    def reset(self) -> None:
        self._messages = list(self._begin)

    def ask(self, text: str) -> Generator[str, None, None]:
        """The answer, piece by piece; closing early stops the server's work too.

        What was answered becomes part of the conversation, also when it was stopped; a message without any answer
        does not. Raises OptionError with the server's word when it cannot answer.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        answer = ""
        try:
            for piece in self._stream(messages):
                answer += piece
                yield piece
        except httpx.TransportError as error:
            raise OptionError(f"the connection broke: {error or type(error).__name__}") from error
        finally:
            if answer:
                self._messages = [*messages, {"role": "assistant", "content": answer}]

    def _stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
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
                    yield (choice["delta"].get("content") or "").translate(CONTROLS)


def _talk(conversation: Conversation) -> None:
    if sys.stdin.isatty():
        _interact(conversation)
        return
    text = sys.stdin.buffer.read().decode(errors="replace").strip()
    if not text:
        raise OptionError("no message: the input is empty")
    _print_answer(conversation, text)


def _interact(conversation: Conversation) -> None:
    import readline  # noqa: F401  gives input() editing and history

    typer.echo(f"{conversation.model} listens; /help lists commands, Ctrl-D ends.")
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
        _print_answer(conversation, text)
    except KeyboardInterrupt:
        typer.echo(" [stopped]")
    except NoriaError as error:
        typer.secho(str(error), err=True, fg="red")


def _print_answer(conversation: Conversation, text: str) -> None:
    with closing(conversation.ask(text)) as pieces:
        for piece in pieces:
            typer.echo(piece, nl=False)
    typer.echo()
