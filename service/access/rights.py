"""Who may see and cancel the requests of others."""

from ipaddress import ip_address

from starlette.types import Scope

from service.access.record import RequestRecord
from service.errors.errors import Forbidden

FORWARDING = (b"forwarded", b"x-forwarded-", b"x-real-ip", b"via")
"""The beginnings of header fields that reverse proxies add."""


def sees_all(scope: Scope) -> bool:
    """Whether the sender may see the requests of all keys: by its key, or without keys by its direct connection."""
    record: RequestRecord = scope["noria.record"]
    return _is_direct(scope) if record.key is None else record.key.entry.sees_all


def check_sees_all(scope: Scope) -> None:
    """Raise Forbidden if the sender may not see the requests of all keys."""
    if not sees_all(scope):
        record: RequestRecord = scope["noria.record"]
        message = "without API keys only a direct connection from the server's own machine may list requests"
        if record.key is not None:
            message = f"the key {record.tenant} may not list requests: its entry in --api-key-file needs sees_all"
        raise Forbidden(message, code="not_allowed")


def _is_direct(scope: Scope) -> bool:
    """Whether the client is on this machine, and no proxy says that it forwards for another one."""
    if any(name.startswith(FORWARDING) for name, _ in scope["headers"]):
        return False
    if scope["client"] is None:  # a Unix socket
        return True
    address = ip_address(scope["client"][0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
