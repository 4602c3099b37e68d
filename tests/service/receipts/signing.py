"""Receipts checked by OpenSSL, receipts that lie, and a server with the fake model that signs."""

import base64
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.receipts.keys import make_key, read_key
from service.receipts.receipt import signed_bytes
from tests.service.live import Live, running

ED25519 = bytes.fromhex("302a300506032b6570032100")
"""What stands before the 32 bytes of a public key in DER (RFC 8410)."""


def openssl_accepts(receipt: Mapping[str, Any], folder: Path) -> bool:
    """Whether OpenSSL finds the receipt's signature valid. The signed bytes are written as RFC 8785 says."""
    unsigned = {name: value for name, value in receipt.items() if name != "signature"}
    text = json.dumps(unsigned, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    files = {"message": text.encode(), "signature": base64.b64decode(receipt["signature"])}
    files["public"] = ED25519 + base64.b64decode(receipt["key"])
    for name, data in files.items():
        (folder / name).write_bytes(data)
    command = "openssl pkeyutl -verify -rawin -pubin -keyform DER -inkey public -in message -sigfile signature"
    return subprocess.run(command.split(), cwd=folder, capture_output=True, check=False).returncode == 0


def lie(receipt: Mapping[str, Any], folder: Path, **changes: Any) -> dict[str, Any]:
    """The receipt with changes, signed with the key in `folder`: its signature is valid."""
    changed = {**receipt, **changes}
    return {**changed, "signature": read_key(folder / "key.pem").sign(signed_bytes(changed))}


def write(path: Path, value: Any) -> Path:
    """Write JSON to a file, and return its path."""
    path.write_text(json.dumps(value))
    return path


@contextmanager
def signing(folder: Path, **options: Any) -> Iterator[Live]:
    """A server with a key in `folder`, and a file there that stands for its model."""
    source = folder / "model.gguf"
    source.write_bytes(b"weights")
    if not (folder / "key.pem").exists():
        make_key(folder / "key.pem")
    with running(source=source, receipt_key=folder / "key.pem", **options) as live:
        yield live
