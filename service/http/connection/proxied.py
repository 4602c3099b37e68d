"""What a reverse proxy changes about a request: the address of its client, its scheme and the prefix of its path."""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

Address = IPv4Address | IPv6Address
FOR, PROTO = b"x-forwarded-for", b"x-forwarded-proto"
SCHEMES = (b"http", b"https")
HOP = re.compile(r"\[(.+)\](?::\d+)?|([^:]+):\d+")
"""An address with a port, or an IPv6 address in brackets."""
SCOPE = re.compile(r"[A-Za-z0-9._-]{1,32}")
"""The name of an interface, after an IPv6 address and %."""


class Proxied:
    """ASGI middleware that undoes these changes. It is the outermost one.

    It removes `prefix` from the paths that begin with it; some proxies have removed it. X-Forwarded-For and
    X-Forwarded-Proto count if the peer is in one of the networks `believed`, or connects by a Unix socket. `Forwarded`
    and X-Forwarded-Prefix never count: a proxy that does not write them passes on what the client claims.
    """

    def __init__(self, app: ASGIApp, prefix: str | None, believed: Sequence[IPv4Network | IPv6Network]) -> None:
        self.app = app
        self._prefix = prefix or ""
        self._believed = believed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self._prefix and scope["raw_path"].startswith(b"%b/" % self._prefix.encode()):
                scope["raw_path"] = scope["raw_path"][len(self._prefix) :]
                scope["path"] = scope["path"][len(self._prefix) :]
            peer = scope.get("client")
            if peer is None or self._believes(_address(peer[0])):
                self._look_behind(scope)
        await self.app(scope, receive, send)

    def _look_behind(self, scope: Scope) -> None:
        """Replace the address and the scheme of the proxy by those of the client."""
        hops = [hop for value in _values(scope, FOR) for hop in value.decode("latin-1").split(",")]
        if (client := self._client(hops)) is not None:
            scope["client"] = (str(client), 0)
        if (scheme := next(reversed(_values(scope, PROTO)), b"").strip()) in SCHEMES:
            scope["scheme"] = scheme.decode()

    def _client(self, hops: Sequence[str]) -> Address | None:
        """The last address that is not a believed proxy's, else the first one: each proxy adds that of its peer.

        What is no address does not count, and nothing before it.
        """
        client = None
        for hop in reversed(hops):
            address = _address(hop.strip())
            client = address or client
            if not self._believes(address):
                break
        return client

    def _believes(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._believed)


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for other, value in scope["headers"] if other == name]


def _address(hop: str) -> Address | None:
    """The address, which may have a port; None for any other text."""
    if (match := HOP.fullmatch(hop)) is not None:
        hop = match[1] or match[2]
    if "%" in hop and not SCOPE.fullmatch(hop.partition("%")[2]):  # ip_address takes any text here
        return None
    try:
        return ip_address(hop)
    except ValueError:
        return None
