"""A host that fails the Nth call of a kind, in SQLite's way: N = 1, 2, 3, ... until a run passes without a failure."""

import contextlib
import errno
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest


class Host:
    """The operating system as the service sees it. `armed`: the Nth call from now on fails; `failed`: it has."""

    def __init__(self, error: OSError, n: int) -> None:
        self.failed = False
        self._error = error
        self._left = n

    def pass_or_fail(self) -> None:
        self._left -= 1
        if not self._left:
            self.failed = True
            raise self._error

    def wrap(self, call: Callable[..., Any], concerns: Callable[..., bool] = lambda *arguments: True) -> Any:
        """`call`, which fails when its turn comes. Calls that do not concern the engine do not count."""

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if concerns(*arguments):
                self.pass_or_fail()
            return call(*arguments, **options)

        return wrapped


def _opens(host: Host, patch: pytest.MonkeyPatch, engines: set[int]) -> None:
    patch.setattr(socket, "socketpair", host.wrap(socket.socketpair))
    patch.setattr(os, "pipe", host.wrap(os.pipe))


def _forks(host: Host, patch: pytest.MonkeyPatch, engines: set[int]) -> None:
    patch.setattr(subprocess.Popen, "__init__", host.wrap(subprocess.Popen.__init__))


def _reads(host: Host, patch: pytest.MonkeyPatch, engines: set[int]) -> None:
    patch.setattr(socket.socket, "recv", host.wrap(socket.socket.recv, lambda sock, *_: id(sock) in engines))


def _writes(host: Host, patch: pytest.MonkeyPatch, engines: set[int]) -> None:
    patch.setattr(socket.socket, "send", host.wrap(socket.socket.send, lambda sock, *_: id(sock) in engines))


def _ends(host: Host, patch: pytest.MonkeyPatch, engines: set[int]) -> None:
    for name in ("kill", "wait"):
        patch.setattr(subprocess.Popen, name, host.wrap(getattr(subprocess.Popen, name)))


KINDS = {
    "open": (errno.EMFILE, _opens),
    "fork": (errno.EAGAIN, _forks),
    "read": (errno.ECONNRESET, _reads),
    "write": (errno.ENOBUFS, _writes),
    "end": (errno.EPERM, _ends),
}


@contextlib.contextmanager
def failing(kind: str, n: int) -> Iterator[Host]:
    """A host whose Nth call of this kind fails: only calls that start, reach or end an engine count."""
    number, arm = KINDS[kind]
    host, engines = Host(OSError(number, os.strerror(number)), n), set()
    pair = socket.socketpair

    def remembered(*arguments: Any) -> tuple[socket.socket, socket.socket]:
        ours, theirs = pair(*arguments)
        engines.add(id(ours))
        return ours, theirs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socketpair", remembered)
        arm(host, patch, engines)
        yield host
