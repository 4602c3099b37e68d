"""How ranks find each other: through a store of torch.distributed, then over sockets of our own.

Rank 0 listens, and writes its port and a secret into the store. The store may outlive rank 0's process: each process of
rank 0 counts a generation, and the others join the latest one.
"""

import fcntl
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from model.errors import OptionError, one_line
from model.ranks.links import RankLink
from model.ranks.world import LOOPBACK, World
from model.version import version

MEETING_SECONDS = 120.0
"""How long ranks wait for each other: those of other hosts import torch, and may be started by hand."""
RETRY_SECONDS = 0.2
HELLO_SECONDS = 10.0
"""How long rank 0 waits for the first message on a connection, and another rank for the connection."""
GENERATION = "noria/generation"
SIOCGIFADDR = 0x8915


class Joined(NamedTuple):
    """One generation of ranks: the store for torch.distributed, and the links; rank 0 has one for each other rank."""

    store: dist.Store
    links: Mapping[int, RankLink]


class Host:
    """Rank 0's side of the meeting. `world` has the port of the store."""

    def __init__(self, world: World) -> None:
        """Open the store, listen, and say where. Raises OptionError if the address cannot be used."""
        self._secret = secrets.token_hex(16)
        try:
            store = _store(world, is_master=not world.agent, seconds=MEETING_SECONDS)
            self._listener = socket.create_server((LOOPBACK if _is_loopback(world.host) else "", 0))
        except (OSError, RuntimeError) as error:
            raise OptionError(
                f"rank 0 cannot open the meeting at {world.address} (MASTER_ADDR and MASTER_PORT): {one_line(error)}"
            ) from error
        self.world = replace(world, port=store.port)
        generation = store.add(GENERATION, 1)
        self._store = dist.PrefixStore(f"noria/{generation}", store)
        self._store.set("address", json.dumps([self._listener.getsockname()[1], self._secret]))

    def meet(self, about: Mapping[str, Any], watch: Callable[[], None], seconds: float = MEETING_SECONDS) -> Joined:
        """Wait for all other ranks. `about` is what rank 0 was started with. `watch` may raise meanwhile.

        Raises OptionError for a rank that does not come, or that was started with something else.
        """
        links: dict[int, RankLink] = {}
        deadline = time.monotonic() + seconds
        with self._listener:
            while len(links) < self.world.size - 1:
                watch()
                if time.monotonic() > deadline:
                    raise self._missing(links, seconds)
                for rank, link, theirs in self._arrivals():
                    links[rank] = link
                    _check(rank, link, theirs, {**started_with(about), **versions()})
        for link in links.values():
            link.send("welcome", about)
        return Joined(self._store, links)

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def _missing(self, links: Mapping[int, RankLink], seconds: float) -> OptionError:
        missing = ", ".join(str(rank) for rank in range(1, self.world.size) if rank not in links)
        return OptionError(
            f"rank {missing} of {self.world.size} has not come to {self.world.address} within {seconds:g} s; "
            "start noria serve on every host with the same flags"
        )

    def _arrivals(self) -> Iterator[tuple[int, RankLink, Any]]:
        """Yield the rank, link and options of the next connection, if one comes soon and knows the secret."""
        self._listener.settimeout(RETRY_SECONDS)
        with suppress(TimeoutError):
            link = RankLink(self._listener.accept()[0])
            try:
                _, hello, _ = link.receive(HELLO_SECONDS)
                arrival = hello["rank"], link, hello["about"]
                known = secrets.compare_digest(hello["secret"], self._secret)
            except (OSError, ValueError, TypeError, KeyError):
                known = False
            if known:
                yield arrival
            else:
                link.release()


def join(world: World, about: Mapping[str, Any] | None, seconds: float = MEETING_SECONDS) -> tuple[Joined, Any]:
    """Join the latest generation; returns also what rank 0 was started with. `about` None accepts anything.

    Raises OptionError if rank 0 cannot be reached, or refuses this rank.
    """
    deadline, last = time.monotonic() + seconds, "it has not begun"
    while (left := deadline - time.monotonic()) > 0:
        try:
            return _attempt(world, about, left)
        except (OSError, RuntimeError, ValueError) as error:
            last = one_line(error)
            time.sleep(RETRY_SECONDS)
    raise OptionError(
        f"rank {world.rank} cannot reach rank 0 at {world.address}: it tried for {seconds:g} s to find its engine "
        f"there; the last error: {last}"
    )


def _attempt(world: World, about: Mapping[str, Any] | None, left: float) -> tuple[Joined, Any]:
    # The store would try without end, write stack traces to stderr, and not say that a name is unknown.
    socket.create_connection((world.host, world.port), timeout=min(left, HELLO_SECONDS)).close()
    store = _store(world, is_master=False, seconds=left)
    if (generation := store.add(GENERATION, 0)) == 0:
        raise ConnectionError("rank 0 has not begun to load")
    own = dist.PrefixStore(f"noria/{generation}", store)
    own.set_timeout(timedelta(seconds=HELLO_SECONDS))
    port, secret = json.loads(own.get("address"))
    link = RankLink(socket.create_connection((world.host, port), timeout=min(left, HELLO_SECONDS)))
    try:
        return Joined(own, {0: link}), _greet(world, link, secret, about, left)
    except BaseException:
        link.release()
        raise


def _greet(world: World, link: RankLink, secret: str, about: Mapping[str, Any] | None, left: float) -> Any:
    """Return the options that rank 0 was started with. Raises OptionError if it refuses this rank."""
    mine = None if about is None else {**started_with(about), **versions()}
    link.send("hello", {"rank": world.rank, "secret": secret, "about": mine})
    # Until all ranks are there. A rank without flags of its own is a child of rank 0, and waits as long as that lives.
    kind, body, _ = link.receive(None if about is None else max(left, HELLO_SECONDS))
    if kind == "refused":
        raise OptionError(body)
    return body


def started_with(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options on which ranks agree: `model`, `threads` differ by host, a later engine keeps its length."""
    differ = {"model", "threads", "max_model_len", "adapters"}
    return {f"--{name.replace('_', '-')}": value for name, value in options.items() if name not in differ}


def versions() -> dict[str, str]:
    return {"Noria": version(), "PyTorch": torch.__version__}


def difference(rank: int, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Return a line about the first difference of a rank from rank 0."""
    for name, value in own.items():
        if theirs.get(name) != value:
            return (
                f"rank {rank} has {name} {theirs.get(name)}, rank 0 has {value}: all ranks need the same flags, the "
                "same model and the same version of Noria"
            )
    return None


def _check(rank: int, link: RankLink, theirs: Mapping[str, Any] | None, own: Mapping[str, Any]) -> None:
    """Refuse a rank that differs. Raises OptionError."""
    if theirs is not None and (problem := difference(rank, own, theirs)) is not None:
        link.send("refused", problem)
        raise OptionError(problem)


def _store(world: World, *, is_master: bool, seconds: float) -> dist.TCPStore:
    timeout = timedelta(seconds=seconds)
    return dist.TCPStore(world.host, world.port, None, is_master, timeout=timeout, wait_for_workers=False)


def use_interface(host: str) -> None:
    """Let gloo and nccl talk over the interface that reaches `host`, unless the user has chosen one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):
        sock.connect((host, 1))  # sends nothing
        own = sock.getsockname()[0]
        name = next((name for _, name in socket.if_nameindex() if _address(sock, name) == own), None)
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            if name is not None:
                os.environ.setdefault(variable, name)


def _address(sock: socket.socket, interface: str) -> str | None:
    """Return the IPv4 address of an interface, from the system's call SIOCGIFADDR; None if it has none."""
    with suppress(OSError):
        found = fcntl.ioctl(sock.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(found[20:24])
    return None


def _is_loopback(host: str) -> bool:
    with suppress(OSError):
        return socket.gethostbyname(host).startswith("127.")
    return False
