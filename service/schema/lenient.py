"""Fields that `--lenient` lets pass without effect: their names for the client, and a line in the log."""

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote

from service.schema.fields import Body

log = logging.getLogger("noria.request")

MAX_NAMES = 16
MAX_NAME_CHARS = 64
MAX_CLIENTS = 4096


def ignored_fields(body: Body) -> tuple[str, ...]:
    """The paths of the fields without effect, such as "messages[0].mood", as a header can have them. The first few."""
    paths = [*islice(_paths(body, ""), MAX_NAMES + 1)]
    more = ("...",) if len(paths) > MAX_NAMES else ()
    return (*(quote(path, safe="[]")[:MAX_NAME_CHARS] or '""' for path in paths[:MAX_NAMES]), *more)


def _paths(body: Body, before: str) -> Iterator[str]:
    yield from (before + name for name in body.without_effect())
    for name, field in type(body).model_fields.items():
        yield from _inside(getattr(body, name), before + (field.alias or name))


def _inside(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Body):
        yield from _paths(value, f"{path}.")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _inside(item, f"{path}[{index}]")


class Notices:
    """Warnings in the log about ignored fields, one for each client. It remembers the last clients."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, None] = OrderedDict()

    def note(self, client: str, path: str, names: Sequence[str]) -> None:
        """Log the first request of a client that has ignored fields."""
        known = client in self._clients
        self._clients[client] = None
        self._clients.move_to_end(client)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        if not known:
            fields = {"client": client, "path": path, "fields": ", ".join(names)}
            log.warning("--lenient: a client sends fields that mean nothing here", extra={"fields": fields})
