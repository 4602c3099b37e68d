"""A server with OpenAI's API, as a client of it needs it: address, headers, models, events and errors."""

import json
from typing import Any
from urllib.parse import quote

import httpx

from model.errors import OptionError

DETAIL_CHARS = 300
CARD_SECONDS = 10.0


def base_url(url: str) -> str:
    """Return the address without a trailing `/v1`, which SDKs need. Raises OptionError for text that is no address."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise OptionError(f"--url {url} is not an address ({error}); expected http://HOST:PORT") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise OptionError(f"--url {url} is not an address; expected http://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1")


def headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def event_data(line: str) -> str:
    """Return the data in a line of an event stream; empty for a line without data."""
    return line[5:].strip() if line.startswith("data:") else ""


def error_message(body: Any) -> str:
    """Return the message in an error body, of OpenAI's shape or any other; at most 300 characters."""
    if isinstance(body, bytes):
        try:
            body = json.loads(body)
        except ValueError:
            body = body.decode(errors="replace")
    error = body.get("error") or body if isinstance(body, dict) else body
    message = error.get("message") or error if isinstance(error, dict) else error
    return (message if isinstance(message, str) else json.dumps(message, ensure_ascii=False))[:DETAIL_CHARS]


def refusal(response: httpx.Response) -> str:
    """Return why a server refused: the message in its JSON, else status and text. The body must have been read."""
    try:
        return error_message(response.json())
    except ValueError:
        text = " ".join(response.text.split())[:DETAIL_CHARS]
        status = f"the server answered {response.status_code} {response.reason_phrase}".rstrip()
        return f"{status}: {text}" if text else status


def find_model(client: httpx.Client, model: str | None) -> str:
    """Return `model`, or the first model that the server lists. Raises OptionError without a server or a model."""
    if not model:
        return next(iter(list_models(client)))
    fetch(client)
    return model


def list_models(client: httpx.Client) -> dict[str, dict[str, Any]]:
    """Return the cards of the models that the server lists, by their ids. Raises OptionError as `find_model` does."""
    response = fetch(client)
    if not response.is_success:
        raise OptionError(f"/v1/models answered {response.status_code}: {error_message(response.content)}")
    try:
        cards = {str(card["id"]): dict(card) for card in response.json()["data"]}
    except (ValueError, KeyError, TypeError):
        cards = {}
    if not cards:
        raise OptionError(f"{client.base_url} lists no model at /v1/models; is it an OpenAI endpoint?")
    return cards


def fetch(client: httpx.Client, path: str = "/v1/models") -> httpx.Response:
    """Return the answer of a server. Raises OptionError without a server."""
    try:
        return client.get(path)
    except httpx.TransportError as error:
        raise OptionError(f"cannot connect to {client.base_url} ({error}); is the server running?") from error


def read_card(client: httpx.Client, model: str) -> Any:
    """Return the card of one model. Raises httpx.HTTPError, or ValueError for an answer that is not JSON."""
    return client.get(f"/v1/models/{quote(model)}", timeout=CARD_SECONDS).json()


def is_noria(client: httpx.Client, model: str) -> bool:
    """Return whether the server is Noria, by the card of its model."""
    try:
        return bool(read_card(client, model)["owned_by"] == "noria")
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return False


def server_version(client: httpx.Client) -> str | None:
    """Return the version at `/version`, which noria and vLLM have; None for a server without this endpoint."""
    response = client.get("/version")
    try:
        return str(response.json()["version"]) if response.is_success else None
    except (ValueError, KeyError, TypeError):
        return None
