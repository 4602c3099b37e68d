"""The bytes of a file in a request."""

import base64
import binascii
import hashlib
from dataclasses import dataclass, replace

from service.errors.errors import InvalidRequest

WHITE_SPACE = str.maketrans("", "", " \t\r\n")


@dataclass(frozen=True, slots=True)
class Source:
    """The bytes of a file, the field that had them, and their digest."""

    data: bytes
    param: str
    digest: bytes

    def owned_by(self, owner: str) -> "Source":
        """Return this file with a digest of this owner alone: nobody's time tells what others have sent."""
        digest = hashlib.blake2b(self.digest + owner.encode(), digest_size=16).digest()
        return replace(self, digest=digest) if owner else self


def of_bytes(data: bytes, param: str) -> Source:
    """Return the file with these bytes. Raises InvalidRequest if there are none."""
    if not data:
        raise InvalidRequest(f"{param} has no data", param=param)
    return Source(data, param, hashlib.blake2b(data, digest_size=16).digest())


def of_base64(text: str, param: str) -> Source:
    """Decode the file in base64 `text`, which may have line breaks. Raises InvalidRequest."""
    try:
        data = base64.b64decode(text.translate(WHITE_SPACE), validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: not ASCII
        raise InvalidRequest(f"{param} is no valid base64: {error}", param=param) from None
    return of_bytes(data, param)
