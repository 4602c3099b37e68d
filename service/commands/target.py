"""The server that a command talks to: the one at --url, or one of the command's own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from model.errors import OptionError
from model.options import option
from service.commands.endpoint import base_url, headers
from service.commands.own_server import BASE_URL, own_socket
from service.commands.pulse import LoadPulse


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The options of a command that needs a server."""

    model: str | None = option(
        None, "Model to serve, as for noria serve. Not allowed with --url.", unset="the embedded model"
    )
    url: str | None = option(None, "Address of a running server.", unset="the command starts its own server")
    api_key: str | None = option(None, "API key of the server at --url.")

    def check_target(self) -> None:
        """Raise OptionError if there is a model for the server at --url, which has its own."""
        if self.url and self.model:
            raise OptionError("--model and --url exclude each other: the server at --url has its model")


@dataclass(frozen=True, slots=True)
class Target:
    """A server: its address, the headers that it needs, and the path of its socket if it has no port."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    uds: str | None = None

    def client(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=self.uds) if self.uds else None
        return httpx.Client(base_url=self.url, headers=self.headers, transport=transport, timeout=None)

    def async_client(self, limits: httpx.Limits) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=self.uds, limits=limits) if self.uds else None
        return httpx.AsyncClient(
            base_url=self.url, headers=self.headers, limits=limits, transport=transport, timeout=None
        )


@contextmanager
def target(
    options: TargetOptions, arguments: Sequence[str] = (), unset: Sequence[str] = (), *, signs: bool = False
) -> Iterator[Target]:
    """Give the server at --url, or one of our own while the context is open. Raises OptionError.

    The other parameters are those of `own_socket`.
    """
    if options.url:
        yield Target(base_url(options.url), headers(options.api_key))
        return
    with LoadPulse() as loading, own_socket(options.model, loading.note, arguments, unset, signs=signs) as path:
        loading.close()
        yield Target(BASE_URL, uds=path)
