"""The table of finish reasons: for each the word of every API, and the terminal's note on an incomplete answer."""

from typing import NamedTuple

CALLS = "tool_calls"
"""The reason of an answer that stops with calls. Only the reader of calls knows it; for the engine it is "stop"."""


class Finish(NamedTuple):
    """A finish reason of completions and chat.

    `anthropic` is its `stop_reason`; None: no answer of that API ends in this way. `responses` is the reason of an
    incomplete response, `note` the note on an incomplete answer; both are empty for a complete one.
    Anthropic's API has no word for a repetition, and a client that reads `max_tokens` would continue it.
    """

    name: str
    anthropic: str | None = None
    responses: str = ""
    note: str = ""


FINISHES = {
    row.name: row
    for row in (
        Finish("abort", note="cut: the request was cancelled"),
        Finish("timeout", note="cut at the time limit"),
        Finish("length", "max_tokens", "max_output_tokens", "cut: the context, or what the server allows, is full"),
        Finish("repetition", "end_turn", "repetition", "cut: it repeated itself"),
        Finish("stop", "end_turn"),
        Finish(CALLS, "tool_use"),
    )
}
