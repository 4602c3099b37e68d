"""Another server's OpenAI endpoint, as `noria bench` and `noria chat` meet it: its address, its models, its errors."""

import json
from typing import Any

import httpx

from model.errors import OptionError

DETAIL_CHARS = 300


def base_url(url: str) -> str:
    """The address without the `/v1` that SDKs want. Raises OptionError when it is none."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise OptionError(f"--url {url} is no address ({error}); expected http://HOST:PORT") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise OptionError(f"--url {url} is no address; expected http://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1")


def headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def event_data(line: str) -> str:
    """The data of one line of an event stream; empty for any other line."""
    return line[5:].strip() if line.startswith("data:") else ""


def error_message(body: Any) -> str:
    """The message inside an error body of OpenAI's shape, or of another, in at most 300 characters."""
    if isinstance(body, bytes):
        try:
            body = json.loads(body)
        except ValueError:
            body = body.decode(errors="replace")
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:DETAIL_CHARS]


def find_model(client: httpx.Client, model: str | None) -> str:
    """`model`, or the first that the server lists. Raises OptionError when nothing answers, or no model is listed."""
    try:
        response = client.get("/v1/models")
    except httpx.TransportError as error:
        raise OptionError(f"cannot connect to {client.base_url} ({error}); is the server running?") from error
    if model:
        return model
    if not response.is_success:
        raise OptionError(f"/v1/models answered {response.status_code}: {error_message(response.content)}")
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise OptionError(f"{client.base_url} lists no model at /v1/models; is it an OpenAI endpoint?") from error


def server_version(client: httpx.Client) -> str | None:
    """What `/version` says, as noria and vLLM have it; None from a server without."""
    response = client.get("/version")
    try:
        return str(response.json()["version"]) if response.is_success else None
    except (ValueError, KeyError, TypeError):
        return None
