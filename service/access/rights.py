"""The rights that the entry of a key in the key file gives."""

from ipaddress import ip_address

from starlette.types import Scope

from service.access.record import RequestRecord
from service.errors.errors import Forbidden

FORWARDING = (b"forwarded", b"x-forwarded-", b"x-real-ip", b"via")
"""The beginnings of header fields that reverse proxies add."""


def check_right(record: RequestRecord, right: str, what: str) -> None:
    """Raise Forbidden if the request has a key without this right."""
    if record.key is not None and not getattr(record.key.entry, right):
        message = f"the key {record.tenant} may not {what}: its entry in --api-key-file needs {right}"
        raise Forbidden(message, code="not_allowed")


def sees_all(scope: Scope) -> bool:
    """Return whether the sender may see the requests of all keys.

    It may by its key, or without keys by a direct connection of this machine: one of a proxy does not count.
    """
    record: RequestRecord = scope["noria.record"]
    if record.key is not None:
        return record.key.entry.sees_all
    if any(name.startswith(FORWARDING) for name, _ in scope["headers"]):
        return False
    address = ip_address(scope["client"][0] if scope["client"] else "::1")  # a Unix socket has no address
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def check_sees_all(scope: Scope) -> None:
    """Raise Forbidden if the sender may not see the requests of all keys."""
    check_right(scope["noria.record"], "sees_all", "list requests")
    if not sees_all(scope):
        raise Forbidden("without keys only a direct connection of this machine may list requests", code="not_allowed")
