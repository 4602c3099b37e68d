"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`: a recording to text."""

from functools import partial
from typing import ClassVar, Literal

import orjson
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from model.chat.media import TRANSCRIBE
from model.chat.reasoning import PARTS
from model.chat.transcription import transcribes, transcription
from service.access.record import Policy
from service.api.answering import answered
from service.api.audio.answer_types import Transcript
from service.api.audio.shape import TranscriptShape
from service.api.call import Answer, Call
from service.api.forms import form_parser
from service.api.lanes import SMALL_BYTES
from service.api.media import Media, PlacedRecording, expanded, heard
from service.api.prompt import Chat, chat_request
from service.api.routes import post
from service.errors.errors import InvalidRequest
from service.generation.request import ModelRequest
from service.generation.served import ServedModel
from service.media.source import of_bytes
from service.schema.fields import only, optional, ranged
from service.schema.generation import StreamBody
from service.schema.options import Names, Options, given

FORMATS = ("json", "text", "verbose_json")
TIMED = ("srt", "vtt", "diarized_json")
"""Formats that need times of words or sentences, or speakers."""
INSTRUCTION = "Translate what is said into English. Answer with the translation alone."


class RecordingBody(StreamBody):
    """A recording to put into words."""

    harmless = only(chunking_strategy=("auto",), include=([],))
    noticed = only(prompt=(), timestamp_granularities=(["segment"],))
    task: ClassVar[Literal["transcribe", "translate"]] = "transcribe"
    file: bytes = Field(description="The file: WAV, FLAC, OGG (Vorbis or Opus) or MP3.")
    prompt: str | None = optional("OpenAI's field. It has no effect: the model's prompt has no place for it.")
    response_format: str | None = optional(f"{', '.join(FORMATS)}. Default: json.", max_length=64)
    temperature: float | None = ranged("temperature", "The temperature of sampling. Default: 0.")
    seed: int | None = ranged("seed")
    max_tokens: int | None = ranged("max_tokens", "The maximum number of tokens. Default: all that fit.", least=1)

    def check(self) -> None:
        super().check()
        if self.receipt:
            raise InvalidRequest("receipt is not supported here: transcripts have no receipts", param="receipt")
        if self.resume is not None:
            raise InvalidRequest("resume is not supported here: send the recording again", param="resume")
        if self.response_format in TIMED:
            why = "the model gives neither times nor speakers"
            raise self._refused(f"response_format {self.response_format} is not supported: {why}")
        if self.response_format not in (None, *FORMATS):
            raise self._refused(f"response_format must be one of {', '.join(FORMATS)}, got {self.response_format!r}")
        if self.stream and self.response_format not in (None, "json"):
            raise self._refused(f"response_format must be json when stream is true, got {self.response_format}")

    def _refused(self, message: str) -> InvalidRequest:
        return InvalidRequest(message, param="response_format")


class TranscriptionBody(RecordingBody):
    """The form of `POST /v1/audio/transcriptions`."""

    language: str | None = optional("The language that is spoken, as a code of ISO 639-1: en.", pattern="^([a-z]{2})?$")


class TranslationBody(RecordingBody):
    """The form of `POST /v1/audio/translations`."""

    task = "translate"
    language: ClassVar[str | None] = "en"


async def made_request(call: Call, body: TranscriptionBody | TranslationBody, shape: TranscriptShape) -> ModelRequest:
    """Decode the recording, and write the prompt. Raises InvalidRequest and Unavailable."""
    state, served, owner = call.state, call.served, call.record.cache_owner
    check_hears(served, body.task)
    source = of_bytes(body.file, "file")
    call.hold(max(0, call.record.body_bytes - SMALL_BYTES))
    media = await Media.of(partial(heard, state, [source], served.info, owner))
    (recording,) = media.items
    assert isinstance(recording, PlacedRecording), "it was heard"
    shape.seconds = recording.audio.seconds
    return await call.on_lane(lambda: _request(body, served, media))


def _request(body: TranscriptionBody | TranslationBody, served: ServedModel, media: Media) -> ModelRequest:
    parts = [{"type": "audio"}, {"type": "text", "text": INSTRUCTION}]
    options = Options(given(temperature=body.temperature or 0.0, seed=body.seed))
    messages = [{"role": "user", "content": INSTRUCTION, PARTS: parts}]
    chat = Chat(messages, options=options, max_tokens=body.max_tokens, names=Names("file"))
    if body.task == "translate":
        return chat_request(chat, served, media)
    assert served.chat is not None, "a model without a chat format hears nothing"
    tokens = transcription(served.chat, served.tokenizer, body.language)
    return chat_request(chat, served, media, expanded(tokens, media, served, "file"))


def check_hears(served: ServedModel, task: str) -> None:
    """Raise InvalidRequest for a model that takes no audio, or was not trained to transcribe."""
    if "audio" not in served.media_roles:
        raise InvalidRequest(f"{served.names[0]} takes no audio: choose a model that hears", param="model")
    assert served.chat is not None, "a model without a chat format hears nothing"
    if task == "transcribe" and not transcribes(served.chat, served.tokenizer):
        why = f"its tokenizer has no {TRANSCRIBE}"
        raise InvalidRequest(f"{served.names[0]} does not transcribe: {why}", param="model")


async def _answered(call: Call, body: TranscriptionBody | TranslationBody) -> Answer:
    about = {"task": body.task, "language": body.language or None} if body.response_format == "verbose_json" else None
    shape = TranscriptShape(about)
    await call.admitted(body.model_copy(update={"receipt": False}), shape)  # no program could verify a receipt
    response = await answered(call, made_request(call, body, shape), shape)
    if isinstance(response, Response) and body.response_format == "text":
        return PlainTextResponse(orjson.loads(response.body)["text"] + "\n")
    return response


POLICY = Policy(operation="chat")


@post(
    "/v1/audio/transcriptions",
    body=TranscriptionBody,
    request={"file": "@speech.mp3", "language": "en"},
    answer=Transcript,
    policy=POLICY,
    form=form_parser,
    or_text=True,
)
async def transcriptions(call: Call, body: TranscriptionBody) -> Answer:
    """Transcribe a recording

    The answer is JSON, or plain text with the `response_format` text.
    """
    return await _answered(call, body)


@post(
    "/v1/audio/translations",
    body=TranslationBody,
    request={"file": "@speech.mp3"},
    answer=Transcript,
    policy=POLICY,
    form=form_parser,
    or_text=True,
)
async def translations(call: Call, body: TranslationBody) -> Answer:
    """Translate a recording into English

    The model is instructed to translate what it hears.
    """
    return await _answered(call, body)
