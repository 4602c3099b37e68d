"""The table of finish reasons: for each the word of every API, and what the terminal says of an incomplete answer."""

from typing import NamedTuple

CALLS = "tool_calls"
"""The reason of an answer that stops with calls. Only the reader of calls knows it; for the engine it is "stop"."""


class Finish(NamedTuple):
    """A finish reason of completions and chat.

    `anthropic` is its `stop_reason`, `responses` the status in the Responses API. None: an answer of that API does not
    end so. `note` is empty for a complete answer.
    """

    name: str
    anthropic: str | None = None
    responses: str | None = None
    note: str = ""


FINISHES = {
    row.name: row
    for row in (
        Finish("abort", note="cut: the request was cancelled"),
        Finish("timeout", note="cut at the time limit"),
        Finish("length", "max_tokens", "incomplete", "cut: the context, or what the server allows, is full"),
        Finish("stop", "end_turn", "completed"),
        Finish(CALLS, "tool_use", "completed"),
    )
}
