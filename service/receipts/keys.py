"""The keys of receipts: Ed25519 by the package `cryptography`, which is optional and imported where it is used."""

import base64
import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from model.errors import OptionError

if TYPE_CHECKING:  # it may be missing
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

log = logging.getLogger("noria.receipts")

NO_CRYPTOGRAPHY = "a package that is not installed (the extra receipts): pip install cryptography"
PUBLIC_BYTES = 32
PEM = "a PEM file with an Ed25519 private key, as noria receipts key FILE makes it"


class SigningKey:
    """A private key. `public` is its public part, in base64."""

    def __init__(self, private: "Ed25519PrivateKey") -> None:
        self._private = private
        self.public = base64.b64encode(private.public_key().public_bytes_raw()).decode()

    def sign(self, data: bytes) -> str:
        """Return the signature in base64."""
        return base64.b64encode(self._private.sign(data)).decode()


def read_key(path: Path) -> SigningKey:
    """Read the key in a PEM file. Raises OptionError."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        private = load_pem_private_key(path.read_bytes(), password=None)
    except ModuleNotFoundError:
        raise OptionError(f"the receipt key {path} needs {NO_CRYPTOGRAPHY}") from None
    except OSError as error:
        raise OptionError(f"the receipt key {path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError):  # no PEM; with a password
        raise OptionError(f"{path} holds no receipt key: expected {PEM}") from None
    status = path.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o077:  # as ssh: of files that the user can change
        mode = stat.S_IMODE(status.st_mode)
        log.warning("mode %04o of the receipt key %s lets other users sign in its name; chmod 600 it", mode, path)
    if not isinstance(private, Ed25519PrivateKey):
        raise OptionError(f"{path} holds a key of another kind: expected {PEM}")
    return SigningKey(private)


def make_key(path: Path) -> SigningKey:
    """Make a key in a new file that only its owner may read. Raises OptionError."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    except ModuleNotFoundError:
        raise OptionError(f"a receipt key needs {NO_CRYPTOGRAPHY}") from None
    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
    except OSError as error:
        raise OptionError(f"the receipt key {path} cannot be written: {error.strerror}") from error
    return SigningKey(private)


def is_public(text: str) -> bool:
    try:
        return len(_decoded(text)) == PUBLIC_BYTES
    except ValueError:
        return False


def has_signed(public: str, data: bytes, signature: str) -> bool:
    """Return whether the key with this public part has signed the data. Raises OptionError without the package."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ModuleNotFoundError:
        raise OptionError(f"to check a signature needs {NO_CRYPTOGRAPHY}") from None
    try:
        Ed25519PublicKey.from_public_bytes(_decoded(public)).verify(_decoded(signature), data)
    except (ValueError, InvalidSignature):
        return False
    return True


def _decoded(text: str) -> bytes:
    """Decode base64. Raises ValueError, also for another text of the same bytes: a changed one must not pass."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise ValueError("not the only base64 of these bytes")
    return data
