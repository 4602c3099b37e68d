"""The socket to serve on, bound before the slow imports and the loading of the model."""

import socket

from model.errors import OptionError

SEND_BYTES = 2**18
"""The system's buffer for a response, which connections inherit. A client that does not read soon stops its request."""


def listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A listening socket. Clients that connect before the server runs wait. Raises OptionError, which names `flag`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"cannot listen on {host}:{port}: {reason}; choose another --host or {flag}") from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    return sock
