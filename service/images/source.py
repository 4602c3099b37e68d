"""The images that a request brings: base64 data URLs. Nothing is ever fetched."""

import base64
import binascii
import hashlib
from dataclasses import dataclass

from model.errors import quoted
from service.errors.errors import InvalidRequest

WHITE_SPACE = str.maketrans("", "", " \t\r\n")
NOT_FETCHED = "Noria never fetches images: send the image as a base64 data URL, data:image/png;base64,..."


@dataclass(frozen=True, slots=True)
class Source:
    """The bytes of an image file, the field that had them, and their digest."""

    data: bytes
    param: str
    digest: bytes


def read_source(url: str, param: str) -> Source:
    """The image in a base64 data URL. `param` names its field. Raises InvalidRequest.

    The type that the URL names must be one of images. The content alone decides how it is decoded.
    """
    scheme, _, rest = url.partition(":")
    if scheme.strip().lower() != "data":
        raise InvalidRequest(f"{param} is no data URL, got {quoted(url)}. {NOT_FETCHED}", param=param)
    header, comma, text = rest.partition(",")
    kind, *options = header.lower().split(";")
    if not comma or "base64" not in map(str.strip, options):
        raise InvalidRequest(
            f"{param} must be a base64 data URL such as data:image/png;base64,..., got {quoted(url)}", param=param
        )
    return read_base64(text, kind.strip(), param)


def read_base64(text: str, kind: str, param: str) -> Source:
    """The image in base64 `text`, which may have line breaks. `kind` is its MIME type. Raises InvalidRequest."""
    if not kind.startswith("image/"):
        raise InvalidRequest(f"{param} must have a type of images such as image/png, got {quoted(kind)}", param=param)
    try:
        data = base64.b64decode(text.translate(WHITE_SPACE), validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: not ASCII
        raise InvalidRequest(f"{param} is no valid base64: {error}", param=param) from None
    if not data:
        raise InvalidRequest(f"{param} has no data", param=param)
    return Source(data, param, hashlib.blake2b(data, digest_size=16).digest())
