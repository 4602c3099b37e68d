"""The routes of the page: `/`, `/docs` and the files below `/page/`. They need no key; what the page asks for does."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from service.access.record import Policy
from service.api.routes import Handler

ASSETS = StaticFiles(directory=Path(__file__).parent / "assets")
CONTENT_POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' data: blob:",  # pictures in a conversation
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "object-src 'none'",
    )
)
"""What a browser lets the page do: nothing from another origin, and no inline script or style."""
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
    handler: Handler
    name: str
    methods: tuple[str, ...] = ("GET", "HEAD")
    policy: Policy = Policy(open=True, quiet=True, page=True)  # noqa: RUF009 - frozen


async def _file(request: Request) -> Response:
    """A file of the page, or a 304 where the browser has it already."""
    response = await ASSETS.get_response(request.path_params.get("name", "index.html"), request.scope)
    response.headers.update(HEADERS)
    return response


def start_at(prefix: str) -> Page:
    """A route that leads from the prefix of all paths to the page, whose links need the slash at the end."""

    async def start(request: Request) -> Response:
        return RedirectResponse(f"{prefix}/", 307)

    return Page(prefix, start, "page_start")


PAGES = (
    Page("/", _file, "page"),
    Page("/docs", _file, "page_docs"),
    Page("/page/{name:path}", _file, "page_file"),
)
