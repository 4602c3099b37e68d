"""The socket to serve on, bound before the slow imports and the loading of the model."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path

from model.errors import OptionError

SEND_BYTES = 2**16
"""The system's buffer for a response, which connections inherit. A client that does not read soon stops its request."""
BACKLOG = 2048
SOCKET_MODE = 0o666
"""Of a Unix socket's file: it is like a port of 127.0.0.1, which every user of the machine reaches."""


def listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Open a listening socket. Clients may connect before the server runs. Raises OptionError, which names `flag`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"cannot listen on {host}:{port}: {reason}; choose another --host or {flag}") from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    return sock


def is_local(sock: socket.socket) -> bool:
    """Return whether only this machine can connect: a Unix socket, or one at a loopback address."""
    if sock.family == socket.AF_UNIX:
        return True
    address = ip_address(sock.getsockname()[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


@contextmanager
def listen_at(path: Path) -> Iterator[socket.socket]:
    """Open a listening Unix socket, whose file is removed at the end. Raises OptionError.

    A server that was killed leaves its file, which is replaced. A file at which a server listens stays, and one that
    is no socket.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            if path.is_socket() and _nobody_listens(path):
                path.unlink()
            sock.bind(str(path))
            path.chmod(SOCKET_MODE)
            sock.listen(BACKLOG)
            own = path.lstat()
        except OSError as error:
            raise OptionError(f"cannot listen on --uds {path}: {_reason(error, path)}; choose another path") from error
        try:
            yield sock
        finally:
            with suppress(FileNotFoundError):
                if os.path.samestat(path.lstat(), own):  # not that of a server that came later
                    path.unlink()


def _reason(error: OSError, path: Path) -> str:
    if error.errno == errno.EADDRINUSE:
        return "a server listens there" if path.is_socket() else "this file is no socket"
    return error.strerror or str(error)


def _nobody_listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False
