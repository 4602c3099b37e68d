"""The socket to serve on, bound before the slow imports and the loading of the model."""

import socket

from model.errors import OptionError


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Clients that connect before the server runs wait. Raises OptionError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"cannot listen on {host}:{port}: {reason}; choose another --host or --port") from error
