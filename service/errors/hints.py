"""Answers to requests that no route takes. They name the path or the method that was probably meant, or the reason."""

import re
from collections.abc import Iterable, Mapping

from starlette.exceptions import HTTPException

from model.errors import quoted
from service.errors.errors import ApiError, Forbidden, HttpError
from service.errors.wording import MAX_MEANT_CHARS, meant

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
OTHERS: Mapping[str, str] = {
    "/completion": COMPLETIONS,  # llama.cpp
    "/infill": COMPLETIONS,
    "/embedding": "/v1/embeddings",
    "/props": "/version",
    "/generate": COMPLETIONS,  # TGI
    "/v1/complete": "/v1/messages",  # Anthropic
    "/v1/generate": COMPLETIONS,
    "/v1/chat": CHAT,
    "/chat": CHAT,
    "/v1": "/v1/models",
    "/index.html": "/",
    "/swagger": "/docs",
    "/redoc": "/docs",
    "/swagger.json": "/openapi.json",
    "/openapi.yaml": "/openapi.json",
    "/healthz": "/health",
    "/livez": "/live",
    "/readyz": "/ready",
}
"""Paths of other servers -> ours for the same purpose."""
WHERE = "on the machine of the server"
NEVER: Mapping[str, str] = {
    "/api/pull": f"downloads no model for a client: run noria pull NAME {WHERE}, and name it to noria serve",
    "/api/push": "uploads no model",
    "/api/create": "makes no model: name its files, its chat template and its adapters to noria serve",
    "/api/copy": "copies no model: an alias of --models, or --served-model-name, gives it another name",
    "/api/delete": f"deletes no model for a client: run noria rm NAME {WHERE}",
}
"""Paths of Ollama's API that change the models of a machine -> the words of the 403 that they always get."""
VERSION = re.compile("^(/v[0-9]+)?/")


class Hints:
    """The hints for these routes: their paths and methods. Each is made in less than a millisecond, whatever the path.

    Each path that they name begins with `prefix`, which clients use behind a reverse proxy.
    """

    def __init__(self, routes: Iterable[tuple[str, tuple[str, ...]]], prefix: str = "") -> None:
        self._prefix = prefix
        self._methods: dict[str, tuple[str, ...]] = {}
        for path, methods in routes:
            self._methods[path] = (*self._methods.get(path, ()), *methods)
        self._paths = sorted((path for path in self._methods if "{" not in path), key=len, reverse=True)

    def error(self, error: HTTPException, method: str, path: str) -> ApiError:
        """Return the error of a request that no route takes, with what was probably meant."""
        if path in NEVER:
            return Forbidden(f"{path} is not allowed: this server {NEVER[path]}", code="not_allowed")
        message, headers = str(error.detail), dict(error.headers or {})
        if error.status_code == 404:
            near = self.meant(path)
            hint = f": did you mean {self._methods[near][0]} {self._prefix}{near}?" if near else ""
            message = f"there is no route {quoted(path)[1:-1]}{hint}"
        elif error.status_code == 405 and "Allow" in headers:
            headers["Allow"] = ", ".join(self._taken(path)) or headers["Allow"]
            message = f"{quoted(path)[1:-1]} takes {headers['Allow']}, not {quoted(method)[1:-1]}"
        return HttpError(error.status_code, message, headers)

    def _taken(self, path: str) -> list[str]:
        """Return the methods of all routes with this path. Starlette names those of the first route only."""
        found = (methods for known, methods in self._methods.items() if pattern(known).fullmatch(path))
        return [method for methods in found for method in methods]

    def meant(self, path: str) -> str | None:
        """Return the route that a path was probably meant to be."""
        plain = re.sub("/+", "/", path[: MAX_MEANT_CHARS + 1].lower()).rstrip("/")
        if not plain or len(plain) > MAX_MEANT_CHARS:
            return None
        if (other := OTHERS.get(plain)) in self._methods:
            return other
        for known in self._paths:  # the longest first: /v1/v1/chat/completions ends with two of them
            if plain.endswith((known, VERSION.sub("/", known))):
                return known
        return meant(plain, self._paths)


def pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of the paths of a route such as /v1/requests/{id}."""
    return re.compile(re.sub(r"\\{.*?\\}", ".+", re.escape(path)))
