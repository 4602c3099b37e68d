"""The files of the page as the server sends them. `tests/page` tries them in a browser."""

import httpx
import pytest

from service.page.files import files
from tests.service.live import Live


def test_every_file_is_served_from_here_alone(live: Live) -> None:
    for name, file in files().items():
        response = live.http.get("/" if name == "index.html" else f"/page/{name}")
        assert response.content == file.content
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy.partition("script-src")[2].partition(";")[0]
        again = live.http.get(response.url, headers={"if-none-match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/page/nothing.js", "/page/../files.py", "/page/%2e%2e/files.py", "/page/"])
def test_nothing_else_is_served(live: Live, path: str) -> None:
    response = httpx.get(live.url + path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"
