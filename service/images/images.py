"""Images of requests, from data URLs to pixels."""

import hashlib
from dataclasses import dataclass, field

from model.chat.media import ImageTokens
from model.errors import quoted
from model.machine.decoding import Fields
from model.media import ImageFormat, MediaSpan
from service.errors.errors import InvalidRequest
from service.media.media import Media
from service.media.source import Source, of_base64

NOT_FETCHED = "Noria never fetches images: send the image as a base64 data URL, data:image/png;base64,..."


def read_source(url: str, param: str) -> Source:
    """Read the image in a base64 data URL. `param` names its field. Raises InvalidRequest.

    The type that the URL names must be one of images. The content alone decides how it is decoded.
    """
    scheme, _, rest = url.partition(":")
    if scheme.strip().lower() != "data":
        raise InvalidRequest(f"{param} is no data URL, got {quoted(url)}. {NOT_FETCHED}", param=param)
    header, comma, text = rest.partition(",")
    kind, *options = header.lower().split(";")
    if not comma or "base64" not in map(str.strip, options):
        message = f"{param} must be a base64 data URL such as data:image/png;base64,..., got {quoted(url)}"
        raise InvalidRequest(message, param=param)
    return read_base64(text, kind.strip(), param)


def read_base64(text: str, kind: str, param: str) -> Source:
    """Return the image in base64 `text`, which may have line breaks. `kind` is its MIME type. Raises InvalidRequest."""
    if not kind.startswith("image/"):
        raise InvalidRequest(f"{param} must have a type of images such as image/png, got {quoted(kind)}", param=param)
    return of_base64(text, param)


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """RGB bytes [rows * token_side, columns * token_side, 3]. Equal digests have equal sizes and pixels."""

    rows: int
    columns: int
    digest: str
    inputs: bytes = field(repr=False)

    def tokens(self, ids: ImageTokens) -> list[int]:
        """Return the tokens of its rows."""
        rows = ([ids.placeholder] * self.columns + [ids.row_break]) * self.rows
        return [*rows[:-1], ids.end]

    def spans(self, start: int) -> tuple[MediaSpan, ...]:
        """Return its place, if these tokens begin at `start`."""
        return (MediaSpan(start, self.rows, self.columns, self.digest),)


class Images(Media[ImageFormat, DecodedImage]):
    """The images of all requests."""

    kind, noun, limited = "images", "image", "images (--max-images)"

    def made(self, answer: Fields, inputs: bytes) -> DecodedImage:
        """Make an image of its pixels, with their digest."""
        rows, columns = answer["rows"], answer["columns"]
        digest = hashlib.blake2b(f"{rows} {columns} ".encode(), digest_size=16)
        digest.update(inputs)
        return DecodedImage(rows, columns, digest.hexdigest(), inputs)
