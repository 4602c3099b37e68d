"""Rules of HTTP for the head of a request that the parser does not check."""

import re

from service.http.connection.reader import Head

VERSIONS = ("1.0", "1.1")
SINGLE = (b"host", b"authorization", b"x-api-key", b"content-type", b"content-encoding")
"""Fields that a request has at most once: of two, each reader could believe another one."""
HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:%\[\]-]*")
"""The characters of a host and a port (RFC 3986, 3.2.2)."""


def violation(head: Head) -> str | None:
    """Why the request is not valid HTTP/1.0 or HTTP/1.1; None if it is."""
    if head.version not in VERSIONS:
        return f"HTTP/{head.version} is not supported: use HTTP/1.1"
    names = [name for name, _ in head.fields]
    for name in SINGLE:
        if names.count(name) > 1:
            return f"the header field {name.decode()} may occur once, got {names.count(name)}"
    host = head.value(b"host")
    if host is None and head.version == "1.1":
        return "a request of HTTP/1.1 needs the header field host"
    if host is not None and not HOST.fullmatch(host):
        return "the header field host must be a host name or an address, and a port"
    return None
