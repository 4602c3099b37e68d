"""What a client may send as an image: base64 data URLs of types of images, and nothing else."""

import base64

import pytest

from service.errors.errors import InvalidRequest
from service.images.source import read_base64, read_source

PARAM = "messages[0].content[1].image_url.url"
DATA = bytes(range(256))
TEXT = base64.b64encode(DATA).decode()


def refused(url: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_source(url, PARAM)
    assert caught.value.param == PARAM
    assert caught.value.message.startswith(PARAM)
    return caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{TEXT}",
        f"data:image/jpeg;base64,{TEXT}",
        f"DATA:IMAGE/PNG;BASE64,{TEXT}",
        f"data:image/png;name=a.png;base64,{TEXT}",
        f"data:image/svg+xml; base64,{TEXT}",  # the content decides
        "data:image/png;base64," + "\r\n".join(TEXT[i : i + 76] for i in range(0, len(TEXT), 76)) + "\n",
    ],
)
def test_a_data_url_has_the_bytes_of_the_file(url: str) -> None:
    source = read_source(url, PARAM)
    assert (source.data, source.param) == (DATA, PARAM)


def test_equal_bytes_have_equal_digests() -> None:
    same, other = read_source(f"data:image/gif;base64,{TEXT}", "a"), read_base64("AAAA", "image/gif", "b")
    assert same.digest == read_base64(TEXT, "image/png", "b").digest != other.digest


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/a.png",
        "http://127.0.0.1:1/a.png",
        "file:///etc/passwd",
        "/etc/passwd",
        "a.png",
        "ftp://example.com/a.png",
        "blob:nonsense",
        TEXT,
        "",
    ],
)
def test_nothing_is_fetched(url: str) -> None:
    assert "Noria never fetches images: send the image as a base64 data URL" in refused(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:", "must be a base64 data URL"),
        ("data:image/png;base64", "must be a base64 data URL"),
        (f"data:image/png,{TEXT}", "must be a base64 data URL"),
        ("data:image/svg+xml,<svg/>", "must be a base64 data URL"),
        (f"data:;base64,{TEXT}", 'must have a type of images such as image/png, got ""'),
        (f"data:text/html;base64,{TEXT}", 'got "text/html"'),
        (f"data:application/pdf;base64,{TEXT}", 'got "application/pdf"'),
        ("data:image/png;base64,", "has no data"),
        ("data:image/png;base64,AAA", "is no valid base64"),
        ("data:image/png;base64,AA==AA==", "is no valid base64"),
        ("data:image/png;base64,AA_-", "is no valid base64"),
        ("data:image/png;base64,AA%3D%3D", "is no valid base64"),
        ("data:image/png;base64,\N{SNOWMAN}AAA", "is no valid base64"),
    ],
)
def test_other_urls_are_refused(url: str, reason: str) -> None:
    assert reason in refused(url)


def test_a_long_url_is_quoted_in_short() -> None:
    assert len(refused("https://example.com/" + "x" * 10**6)) < 400
