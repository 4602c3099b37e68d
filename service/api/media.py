"""The places of images and audio in a prompt: each takes as many tokens as the model's encoder gives embeddings."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from model.batch import RunnerInfo
from model.chat.media import ONE, AudioTokens, ImageTokens
from model.media import MediaSpan
from service.api.state import State
from service.audio.audio import DecodedAudio, limited, read_audio
from service.engine.mailbox import Restore
from service.errors.errors import InvalidRequest
from service.generation.served import ServedModel
from service.images.images import read_source
from service.media.media import HasInputs
from service.media.source import Source
from service.schema.fields import Json


class Decoded(HasInputs, Protocol):
    """An image or a recording of a request."""

    def tokens(self, ids: Any) -> list[int]:
        """Return the tokens that replace its placeholder; `ids` are the control tokens of its kind."""

    def spans(self, start: int) -> tuple[MediaSpan, ...]:
        """Return its places, if these tokens begin at `start`."""


@dataclass(frozen=True, slots=True)
class Media:
    """The decoded images or audio of a prompt, in the order of their places.

    `again` decodes those of the request again, of which these have the indexes `kept`.
    """

    items: Sequence[Decoded] = ()
    again: Callable[[], Awaitable[Sequence[Decoded]]] | None = None
    kept: Sequence[int] = ()

    @classmethod
    async def of(cls, decode: Callable[[], Awaitable[Sequence[Decoded]]]) -> Self:
        """Decode the media of a request. Raises what `decode` raises."""
        items = await decode()
        return cls(items, decode, range(len(items)))

    def only(self, indexes: Sequence[int]) -> Self:
        """Return the items with these indexes."""
        return replace(self, items=[self.items[at] for at in indexes], kept=[self.kept[at] for at in indexes])

    def after(self, n_spans: int) -> Self:
        """Return the items without those of the first `n_spans` places, which are places of whole items."""
        first = 0
        while n_spans > 0:
            n_spans -= len(self.items[first].spans(0))
            first += 1
        return self.only(range(first, len(self.items)))

    @property
    def inputs(self) -> bytes:
        """Return the encoder's inputs."""
        return b"".join(item.inputs for item in self.items)

    @property
    def restore(self) -> Restore | None:
        """Return a function that decodes the items again, and gives `inputs`. It holds their files, not the pixels."""
        again, kept = self.again, self.kept
        if again is None or not kept:
            return None

        async def restored() -> bytes:
            items = await again()
            return b"".join(items[at].inputs for at in kept)

        return restored


NO_MEDIA = Media()


def source_of(part: Json) -> Source:
    """Return the file in a part, as `service.schema.conversation.media_part` makes it. Raises InvalidRequest."""
    read = read_source if part["type"] == "image" else read_audio
    return read(part["content"], part["field"])


@dataclass(frozen=True, slots=True)
class PlacedRecording:
    """A recording, each of whose chunks takes `chunk_tokens` of the prompt."""

    audio: DecodedAudio
    chunk_tokens: int

    @property
    def inputs(self) -> bytes:
        return self.audio.inputs

    def tokens(self, ids: AudioTokens) -> list[int]:
        return [ids.placeholder] * (self.chunk_tokens * len(self.audio.digests))

    def spans(self, start: int) -> tuple[MediaSpan, ...]:
        n = self.chunk_tokens
        return tuple(MediaSpan(start + at * n, 1, n, name, breaks=0) for at, name in enumerate(self.audio.digests))


async def heard(state: State, sources: Sequence[Source], info: RunnerInfo, owner: str) -> list[PlacedRecording]:
    """Decode the recordings of a request, as the model's encoder reads them. Raises InvalidRequest and Unavailable."""
    assert info.audio is not None, "a model without an audio encoder refuses audio at once"
    found = await state.audio.decode(sources, limited(info), owner)
    return [PlacedRecording(audio, info.audio.chunk_tokens) for audio in found]


async def decoded(state: State, sources: Sequence[Source], info: RunnerInfo, owner: str) -> Sequence[Decoded]:
    """Decode the images or the audio of a request for the model's encoder. Raises InvalidRequest and Unavailable.

    Only requests of the same `owner` (`cache_owner`) share what was decoded.
    """
    if info.images is not None:
        return await state.images.decode(sources, info.images, owner)
    return await heard(state, sources, info, owner)


def expanded(
    tokens: list[int], media: Media, served: ServedModel, param: str
) -> tuple[list[int], tuple[MediaSpan, ...]]:
    """Return the prompt with the tokens of each image or recording in place of its placeholder, and the places of all.

    Raises InvalidRequest, naming `param`, if the chat format has not written one placeholder for each.
    """
    if not media.items:
        return tokens, ()
    ids = AudioTokens.of(served.tokenizer) if served.info.audio else ImageTokens.of(served.tokenizer)
    assert ids is not None, "no chat format writes media without these tokens"
    if (found := tokens.count(ids.placeholder)) != len(media.items):
        what = "recordings" if served.info.audio else "images"
        message = (
            f"{param} cannot be written: the model's chat format has places for {found} of {len(media.items)} {what}"
        )
        raise InvalidRequest(message, param=param)
    whole: list[int] = []
    spans: list[MediaSpan] = []
    done = 0
    for item in media.items:
        place = tokens.index(ids.placeholder, done)
        whole += tokens[done:place]
        spans += item.spans(len(whole))
        whole += item.tokens(ids)
        done = place + 1
    return whole + tokens[done:], tuple(spans)


def spans_after(spans: tuple[MediaSpan, ...], n_begin: int, n_cut: int) -> tuple[MediaSpan, ...]:
    """Return the media that stay in a prompt without the `n_cut` tokens after its first `n_begin`.

    Raises InvalidRequest for a cut inside an image, or between the chunks of a recording.
    """
    first = n_begin + n_cut
    for start, stop, kind in _wholes(spans):
        if start < first < stop:
            param, place = "truncate_prompt_tokens", f"the {kind} has the tokens {start} to {stop - 1}"
            why = f"it leaves out the first {first} tokens of the prompt, and {place}"
            raise InvalidRequest(f"{param} cuts through {ONE[kind]}: {why}", param=param)
    return tuple(replace(span, start=span.start - n_cut) for span in spans if span.start >= first)


def _wholes(spans: Sequence[MediaSpan]) -> list[tuple[int, int, str]]:
    """Return start, stop and kind of each image and each recording, whose chunks follow one another."""
    found: list[tuple[int, int, str]] = []
    for span in spans:
        start = span.start
        if span.kind == "audio" and found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, span.stop, span.kind))
    return found
