"""The bytes of a file in a request."""

import base64

import pytest

from service.errors.errors import InvalidRequest
from service.media.source import of_base64, of_bytes

DATA = bytes(range(256))
TEXT = base64.b64encode(DATA).decode()


def test_equal_bytes_have_equal_digests() -> None:
    lines = "\r\n".join(TEXT[start : start + 76] for start in range(0, len(TEXT), 76))
    assert of_bytes(DATA, "file") == of_base64(lines, "file")
    assert of_bytes(DATA, "file").digest != of_bytes(DATA[1:], "file").digest


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "x has no data"),
        (" \n", "x has no data"),
        ("AAA", "x is no valid base64"),
        ("AA==AA==", "x is no valid base64"),
        ("AA_-", "x is no valid base64"),
        ("\N{SNOWMAN}AAA", "x is no valid base64"),
    ],
)
def test_other_texts_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        of_base64(text, "x")
    assert caught.value.param == "x"


def test_a_file_without_bytes_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="file has no data"):
        of_bytes(b"", "file")
