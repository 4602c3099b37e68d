"""The requests that a browser may send for a web page: pages of others must not use a server that needs no key.

A browser sends the requests of any page to any address that it reaches, this machine's own among them. It lets a page
read the answers of the page's own origin only. But the owner of a name may point it at any address (DNS rebinding):
this server then has the page's own origin, and only Host tells them apart. Sec-Fetch-Site and Origin, which no page can
change, tell the other pages. Programs send neither.
"""

import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from model.errors import quoted
from service.errors.errors import Forbidden

ANY = "*"
AUTHORITY = re.compile(r"(?:\[([^]]+)\]|([^:]+))(?::\d*)?")
"""The value of Host: an IPv6 address in brackets, or another address or a name, and perhaps a port."""
OWN = ("same-origin", "none")
"""Values of Sec-Fetch-Site: a page of this server sends the request, or a person does."""


@dataclass(frozen=True, slots=True)
class BrowserRules:
    """The names under which the server answers, and the origins whose pages may call it.

    `hosts` are names in lower case, besides localhost and IP addresses; None: any name.
    """

    hosts: frozenset[str] | None = None
    origins: tuple[str, ...] = ()

    def refusal(self, headers: Mapping[bytes, bytes], *, is_page: bool) -> Forbidden | None:
        """Return why the request gets a 403, None if it passes. `is_page`: links on any site may lead to the route."""
        host, origin, site, mode = (
            None if (value := headers.get(name)) is None else value.decode("latin-1")
            for name in (b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode")
        )
        name = None if host is None else name_of(host)
        if host is not None and not self._answers(name):
            return Forbidden(
                f"this server does not answer under the name {quoted(host)}: a web page could have pointed it here; "
                "start the server with --allowed-hosts and the name, or use localhost or the IP address",
                code="host_not_allowed",
            )
        if (is_page and mode == "navigate") or self._is_own(site, origin, name):
            return None
        if ANY in self.origins or origin in self.origins:
            return None
        whose = "another site" if origin is None else quoted(origin)
        return Forbidden(
            f"a web page of {whose} may not call this server; allow its origin with --cors-origin",
            code="origin_not_allowed",
        )

    def _answers(self, name: str | None) -> bool:
        return self.hosts is None or ANY in self.hosts or (name is not None and (name in self.hosts or is_local(name)))

    def _is_own(self, site: str | None, origin: str | None, name: str | None) -> bool:
        """Return whether no other page sends the request.

        Browsers leave out Sec-Fetch-Site on plain HTTP to other machines. Then Origin is compared without its port: a
        proxy may have removed that of Host.
        """
        if site is not None:
            return site in OWN
        return origin is None or (name is not None and origin_name(origin) == name)


def name_of(host: str) -> str | None:
    """Return the name or address in the value of Host, in lower case and without port, brackets and final dot."""
    match = AUTHORITY.fullmatch(host)
    return None if match is None else (match[1] or match[2]).lower().removesuffix(".")


def origin_name(origin: str) -> str | None:
    """Return the name or address in an origin; None for `null` and for what is none."""
    with suppress(ValueError):
        return name_of(urlsplit(origin).netloc)
    return None


def is_local(name: str) -> bool:
    """Return whether no one can own the name: an address, or a name of the browser's own machine (RFC 6761)."""
    return name == "localhost" or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    """Return whether browsers take the name for an address. They know every form that C does, such as 127.1."""
    with suppress(OSError, ValueError):
        socket.inet_aton(name)
        return True
    with suppress(OSError, ValueError):
        socket.inet_pton(socket.AF_INET6, name.partition("%")[0])
        return True
    return False
