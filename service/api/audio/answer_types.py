"""Answers of the endpoints for speech, as types."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from service.generation.usage import Timings


class AudioInputTokens(TypedDict):
    text_tokens: int
    audio_tokens: int


class TranscriptUsage(TypedDict):
    type: Literal["tokens"]
    input_tokens: int
    input_token_details: AudioInputTokens
    output_tokens: int
    total_tokens: int


class Transcript(TypedDict):
    """The answer. Only `verbose_json` has `task`, `duration` in seconds, and the `language` that the request named.

    The model gives no times: there are no segments.
    """

    text: str
    task: NotRequired[Literal["transcribe", "translate"]]
    language: NotRequired[str | None]
    duration: NotRequired[float]
    usage: TranscriptUsage
    timings: Timings
