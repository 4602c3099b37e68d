"""The key that signs receipts: its file, what reads it, and servers and commands without the package."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from model.errors import OptionError
from service.receipts.keys import has_signed, is_public, make_key, read_key
from service.settings import Settings
from tests.service.command_line import noria
from tests.service.receipts.signing import ED25519
from tests.uninstalled import uninstalled


def test_the_command_makes_a_key_once_and_prints_its_public_part(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    first = noria("receipts", "key", path)
    assert (first.returncode, first.stderr) == (0, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert noria("receipts", "key", path).stdout == first.stdout
    assert path.read_bytes() == before
    assert is_public(first.stdout.strip())
    command = ["openssl", "pkey", "-in", str(path), "-pubout", "-outform", "DER"]
    der = subprocess.run(command, capture_output=True, check=True).stdout
    assert der == ED25519 + bytes.fromhex(_hex(first.stdout))


def _hex(base64: str) -> str:
    return subprocess.run(["base64", "--decode"], input=base64.encode(), capture_output=True, check=True).stdout.hex()


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644, 0o640, 0o604])
def test_a_key_that_others_may_read_is_named_with_its_mode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path = tmp_path / "key.pem"
    make_key(path)
    path.chmod(mode)
    read_key(path)
    words = f"mode 0{mode:o} of the receipt key {path} lets other users sign in its name; chmod 600 it"
    assert [record.getMessage() for record in caplog.records] == [words] * bool(mode & 0o077)


def test_openssl_makes_keys_too(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(path)], check=True)
    key = read_key(path)
    assert has_signed(key.public, b"text", key.sign(b"text"))
    assert not has_signed(key.public, b"tent", key.sign(b"text"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        ("", "holds no receipt key"),
        ("rsa", "holds a key of another kind"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "key.pem"
    if content == "rsa":
        subprocess.run(["openssl", "genpkey", "-algorithm", "x25519", "-out", str(path)], check=True)
    elif content is not None:
        path.write_text(content)
    with pytest.raises(OptionError, match=words):
        read_key(path)


def test_no_key_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text("important")
    with pytest.raises(OptionError, match="cannot be written: File exists"):
        make_key(path)
    assert noria("receipts", "key", path).returncode == 1
    assert path.read_text() == "important"


def test_a_name_that_no_file_can_have_is_one_line() -> None:
    done = noria("receipts", "key", "x" * 300)
    assert (done.returncode, done.stderr.count("\n"), "cannot be written: File name too long" in done.stderr) == (
        1,
        1,
        True,
    )


def test_options_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--receipts needs --receipt-key FILE; noria receipts key FILE makes"):
        Settings(receipts=True).check()
    with pytest.raises(OptionError, match=r"--receipt-key .*missing: no such file"):
        Settings(receipt_key=tmp_path / "missing").check()


def test_without_the_package_the_start_says_what_to_install(tmp_path: Path) -> None:
    make_key(tmp_path / "key.pem")
    script = f"""{uninstalled("cryptography")}
from pathlib import Path
from model.errors import OptionError
from service.receipts.keys import has_signed, make_key, read_key
from service.access.keys import Keys
from service.app import create_app  # it does without
from service.observe.metrics import Metrics
from service.settings import Settings
key = Path({str(tmp_path / "key.pem")!r})
for attempt in (
    lambda: create_app(Settings(receipt_key=key), (), None, Metrics(), Keys((), None), load=None, on_failed=None),
    lambda: read_key(key),
    lambda: make_key(Path({str(tmp_path / "new.pem")!r})),
    lambda: has_signed("", b"", ""),
):
    try:
        attempt()
    except OptionError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all(line.endswith("(the extra receipts): pip install cryptography") for line in lines), lines
    assert not (tmp_path / "new.pem").exists()
