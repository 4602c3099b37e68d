"""The images of chat requests: who may send them, and the tokens that stand for them in a prompt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from model.chat.images import ImageTokens, refused_image
from model.chat.reasoning import PARTS
from model.image_spans import ImageSpan
from service.api.chat_request import ChatRequest
from service.errors.errors import InvalidRequest
from service.generation.served import ServedModel
from service.images.decoder import DecodedImage
from service.images.source import Source, read_source

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Pending(Generic[T]):
    """A result that `make` gives once the images of its request are decoded. `make` takes time, as tokenizing does."""

    sources: Sequence[Source]
    make: Callable[[Sequence[DecodedImage]], T]


def with_images(
    request: ChatRequest, served: ServedModel, make: Callable[[Sequence[DecodedImage]], T]
) -> T | Pending[T]:
    """What `make` gives for the images of a request; pending if it has any. Raises InvalidRequest."""
    sources = _sources(request, served)
    return Pending(sources, make) if sources else make(())


def then(result: T | Pending[T], finish: Callable[[T], R]) -> R | Pending[R]:
    """`finish` of the result, which may be pending."""
    if not isinstance(result, Pending):
        return finish(result)
    make = result.make
    return Pending(result.sources, lambda images: finish(make(images)))


def _sources(request: ChatRequest, served: ServedModel) -> list[Source]:
    """The images of all messages, in order."""
    check_roles(request, served)
    return [read_source(part["url"], part["field"]) for _, part in _parts(request)]


def check_roles(request: ChatRequest, served: ServedModel) -> None:
    """Raise InvalidRequest for an image in a message where the model takes none."""
    for role, part in _parts(request):
        if role not in served.image_roles:
            why = refused_image(role, served.image_roles)
            raise InvalidRequest(f"{part['field']} is not supported: {why}", param=part["field"])


def _parts(request: ChatRequest) -> list[tuple[str, dict[str, str]]]:
    """The role and the part of each image, as `service.schema.conversation.image_part` makes it."""
    return [
        (message["role"], part)
        for message in request.messages
        for part in message.get(PARTS, ())
        if part["type"] == "image"
    ]


class Spanned(NamedTuple):
    """Token ids, and the places of images among them."""

    tokens: list[int]
    spans: tuple[ImageSpan, ...] = ()

    def shortened(self, tokens: list[int], n_begin: int) -> "Spanned":
        """The end of the prompt: `tokens` are the first `n_begin` and the last of these, without those between them.

        Images among the tokens that are left out are left out too. Raises InvalidRequest for a cut inside an image.
        """
        n_cut = len(self.tokens) - len(tokens)
        first = n_begin + n_cut
        if divided := [span for span in self.spans if span.start < first < span.stop]:
            start, stop = divided[0].start, divided[0].stop
            raise InvalidRequest(
                f"truncate_prompt_tokens cuts through an image: it leaves out the first {first} tokens of the prompt, "
                f"and the image has the tokens {start} to {stop - 1}",
                param="truncate_prompt_tokens",
            )
        return Spanned(
            tokens, tuple(replace(span, start=span.start - n_cut) for span in self.spans if span.start >= first)
        )

    def pixels(self, images: Sequence[DecodedImage]) -> bytes:
        """The bytes of the images that are left, the last of `images`."""
        return b"".join(image.pixels for image in images[len(images) - len(self.spans) :])


def expanded(tokens: list[int], images: Sequence[DecodedImage], served: ServedModel, param: str) -> Spanned:
    """The prompt with the rows of each image in place of its token `[IMG]`.

    Raises InvalidRequest, naming `param`, if the chat format has not written one token for each image.
    """
    if not images:
        return Spanned(tokens)
    ids = ImageTokens.of(served.tokenizer)
    assert ids is not None, "no chat format writes images without these tokens"
    if (found := tokens.count(ids.image)) != len(images):
        message = f"{param} cannot be written: the model's chat format has places for {found} of {len(images)} images"
        raise InvalidRequest(message, param=param)
    whole: list[int] = []
    spans: list[ImageSpan] = []
    done = 0
    for image in images:
        place = tokens.index(ids.image, done)
        whole += tokens[done:place]
        spans.append(ImageSpan(len(whole), image.rows, image.columns, image.digest))
        whole += ([ids.image] * image.columns + [ids.row_break]) * image.rows
        whole[-1] = ids.end
        done = place + 1
    return Spanned(whole + tokens[done:], tuple(spans))
