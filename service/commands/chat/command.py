"""`noria chat`: talk to a model in the terminal. The server is a running one, or is started for the chat."""

import sys
from contextlib import closing
from dataclasses import dataclass
from io import TextIOWrapper

import typer

from model.errors import OptionError, one_line
from model.options import option
from service.commands.chat.conversation import ChatSession
from service.commands.endpoint import find_model, is_noria
from service.commands.flags import takes
from service.commands.target import TargetOptions, target


@dataclass(frozen=True, slots=True)
class ChatOptions(TargetOptions):
    """The options of `noria chat`."""

    model: str | None = option(
        None,
        "Model to serve, as for noria serve. With --url: a model id on that server.",
        unset="the embedded model, with --url the server's first",
        is_argument=True,
    )
    system: str | None = option(None, "System message.")
    temperature: float | None = option(None, "Sampling temperature.", unset="the server's", least=0)
    max_tokens: int | None = option(None, "Length limit of an answer, in tokens.", least=1)


@takes(ChatOptions, "NORIA_CHAT_")
def chat(options: ChatOptions) -> None:
    """Talk to a model in the terminal.

    If the input is a pipe, all of it is one message, and only the answer is printed. Without --url the chat starts its
    own server, which reads the environment variables of noria serve.
    """
    fields = {"temperature": options.temperature, "max_tokens": options.max_tokens}
    chosen = {name: value for name, value in fields.items() if value is not None}
    system = options.system and options.system.encode(errors="replace").decode()  # bytes of another encoding
    try:
        with target(options) as server, server.client() as client:
            model = find_model(client, options.model if options.url else None)
            _talk(ChatSession(client, model, system, chosen))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _talk(conversation: ChatSession) -> None:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal shows all characters of an answer
    if sys.stdin.isatty():
        from service.commands.chat.models import switch
        from service.commands.chat.terminal import ChatTerminal

        conversation.shows_progress = is_noria(conversation.client, conversation.model)
        if conversation.shows_progress:
            switch(conversation, conversation.model)  # perhaps it is not loaded
        ChatTerminal(conversation).run()
    else:
        _answer_pipe(conversation)


def _answer_pipe(conversation: ChatSession) -> None:
    """Print the answer to all of the input, and nothing else."""
    from service.commands.chat.display import AnswerDisplay

    text = sys.stdin.buffer.read().decode(errors="replace").strip()
    if not text:
        raise OptionError("no message: the input is empty")
    conversation.say(text)
    display = AnswerDisplay(conversation.fields, styled=False)
    try:
        with closing(conversation.answer()) as events:
            for event in events:
                display.show(event)
        display.end()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OptionError(f"the answer cannot be written: {one_line(error)}") from error
