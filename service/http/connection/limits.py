"""What one connection may send, and the time that it has."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds.

    `head_bytes` bounds the head of a request, and the bytes between two parts of a body: chunk extensions and trailers.
    `body_seconds` is the time between two parts of a body. All of it has `body_seconds`, and one second more for each
    `body_rate` bytes. A connection ends after `idle_seconds` without a request, and after
    `unread_seconds` in which a client does not read the 128 KiB that the server holds for it.
    After a response that ends the connection, the client has `linger_seconds` and `linger_bytes` for the rest of its
    request: a connection that is closed on unread bytes is reset, and the client would lose the response.
    """

    head_bytes: int = 32 * 2**10
    url_bytes: int = 8 * 2**10
    line_bytes: int = 8 * 2**10
    fields: int = 100
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    body_rate: int = 16 * 2**10
    idle_seconds: float = 75.0
    unread_seconds: float = 60.0
    linger_seconds: float = 2.0
    linger_bytes: int = 16 * 2**20


LIMITS = Limits()
