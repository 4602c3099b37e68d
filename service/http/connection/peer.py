"""What the system knows of the client at the other end of a connection."""

import asyncio
import socket
import struct
import sys
from typing import Any

BYTES_ACKED = 120
"""Offset of the field `tcpi_bytes_acked` in Linux's `struct tcp_info`."""


def address(name: Any) -> tuple[str, int] | None:
    """Host and port of a socket's name; None for a socket of the file system."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


def has_reset(transport: asyncio.Transport) -> bool:
    """Whether the client has reset the connection. The transport does not notice while it does not read."""
    return bool(transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


def bytes_acknowledged(transport: asyncio.Transport) -> int:
    """The number of bytes that the client's system has taken; 0 where the system cannot tell.

    The transport's own buffer may shrink only when a whole write is done.
    """
    sock = transport.get_extra_info("socket")
    if sys.platform != "linux" or sock is None or sock.family == socket.AF_UNIX:
        return 0
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_ACKED + 8)
    return int(struct.unpack_from("=Q", info, BYTES_ACKED)[0]) if len(info) == BYTES_ACKED + 8 else 0
