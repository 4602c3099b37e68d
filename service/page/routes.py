"""The routes of the page: `/`, `/docs` and the files below `/page/`. They need no key; what the page asks for does."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from service.access.record import Policy
from service.page.files import File, files

CONTENT_POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' data: blob:",  # pictures in a conversation
        "media-src 'self' data: blob:",  # recordings
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "object-src 'none'",
    )
)
"""The rules of a browser for the page: nothing from another origin, and no inline script or style."""
HEADERS: Mapping[str, str] = {
    "cache-control": "no-cache",  # a browser asks again, and mostly gets a 304
    "content-security-policy": CONTENT_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Page:
    """A route of the page. It is no part of the API, thus the OpenAPI document leaves it out."""

    path: str
    handler: Callable[[Request], Awaitable[Response]]
    name: str
    methods: tuple[str, ...] = ("GET", "HEAD")
    policy: Policy = Policy(open=True, quiet=True, page=True)  # noqa: RUF009 - frozen


async def _index(request: Request) -> Response:
    return respond(request, files()["index.html"])


async def _asset(request: Request) -> Response:
    found = files().get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return respond(request, found)


def respond(request: Request, file: File) -> Response:
    """Return the file, or a 304 where the browser has it already."""
    headers = {**HEADERS, "etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


def start_at(prefix: str) -> Page:
    """Return a route from the prefix of all paths to the page, whose links need the slash at the end."""

    async def start(request: Request) -> Response:
        return RedirectResponse(f"{prefix}/", 307)

    return Page(prefix, start, "page_start")


PAGES = (Page("/", _index, "page"), Page("/docs", _index, "page_docs"), Page("/page/{name:path}", _asset, "page_file"))
