"""Requests that are sent once more, to a server that computes their answers and receipts anew."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from model.errors import OptionError, quoted
from model.linear.schemes import KV_DTYPES
from service.commands.endpoint import base_url, error_message, headers, refusal
from service.commands.own_server import embedded_server
from service.commands.pulse import Loading
from service.receipts.arithmetic import Arithmetic, arithmetic_of, no_promise
from service.receipts.compare import ANSWER, Difference
from service.receipts.keys import make_key
from service.receipts.read import found_in
from service.receipts.receipt import Receipt

RESPONSES = "/v1/responses"
ENDPOINTS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/fim/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    RESPONSES: "max_output_tokens",
}
"""The endpoints whose answers have receipts, and their field for the number of tokens."""
LEFT_OUT = ("stream", "stream_options", "return_progress", "timeout", "priority", "background", "store")
"""Fields that change how an answer is sent or served, and no token of it. Another server may refuse them."""
UNSET = ("NORIA_PREFIX_STORE",)
"""The server of the command computes pages itself: those on disk may be of the server whose answer is checked."""
DIFFERS, UNPROMISED = 3, 4
"""Exit codes: the receipt and the answer do not agree; the answer differs where nothing promises equal bits."""


@contextmanager
def server(
    model: str | None, url: str | None, api_key: str | None, like: Arithmetic | None = None
) -> Iterator[httpx.Client]:
    """A client of the server at `url`, or of one of our own with this model, which computes `like` a receipt says.

    Raises OptionError.
    """
    if url:
        if model:
            raise OptionError("--model and --url exclude each other: the server at --url has its model")
        with httpx.Client(base_url=base_url(url), headers=headers(api_key), timeout=None) as client:
            yield client
        return
    with tempfile.TemporaryDirectory(prefix="noria-") as folder, Loading() as loading:
        key = Path(folder) / "key.pem"
        make_key(key)
        arguments = ["--receipt-key", str(key), *(flags_of(like) if like else ())]
        with embedded_server(model, loading.note, arguments, UNSET) as client:
            loading.close()
            yield client


def flags_of(like: Arithmetic) -> list[str]:
    """The flags of a server that computes in the same scheme."""
    found = ["--quantize", like["quantize"]]
    if like["quantize"] == "none":
        found += ["--dtype", like["dtype"]]
    return [*found, "--kv-dtype", like["kv_dtype"]] if like["kv_dtype"] in KV_DTYPES else found


def arithmetic_at(client: httpx.Client) -> Arithmetic:
    """How the server computes. Raises OptionError for one that does not say."""
    try:
        response = client.get("/version")
        return arithmetic_of(response.json()["engine"])
    except httpx.TransportError as error:
        raise OptionError(f"nothing answers at {client.base_url}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OptionError(f"{client.base_url} does not say how it computes at /version; is it Noria?") from None


def body_for(receipt: Receipt, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request, so that its answer is that of the receipt: with its seed and its number of tokens.

    Another server may have the model under another name; only an adapter is named.
    """
    kept = {name: value for name, value in body.items() if name not in (*LEFT_OUT, "model")}
    seed = {"seed": int(receipt["seed"]), ENDPOINTS[receipt["endpoint"]]: receipt["max_tokens"]}
    for other in ("random_seed", "max_completion_tokens", "n_predict"):
        kept.pop(other, None)
    adapter = {"model": receipt["adapter"]["name"]} if receipt["adapter"] else {}
    return kept | seed | adapter


def check_body(body: Mapping[str, Any], *, stored: bool) -> None:
    """Raise OptionError for a request whose prompt is not all in its body, and not `stored` where it is computed."""
    for name in ("conversation", *(() if stored else ("previous_response_id",))):
        if body.get(name) is not None:
            raise OptionError(
                f"{name} must be null, got {quoted(body[name])}: the answer depends on what its server had stored, "
                "which neither the request nor a receipt has"
            )


def answers(client: httpx.Client, endpoint: str, body: Mapping[str, Any]) -> list[Receipt]:
    """The receipts of a request's choices, with their content. Raises OptionError where there is no answer."""
    not_stored = {"store": False} if endpoint == RESPONSES else {}
    try:
        response = client.post(endpoint, json={**body, **not_stored, "receipt": "full"})
    except httpx.TransportError as error:
        raise OptionError(f"nothing answers at {client.base_url}: {error}") from error
    if not response.is_success:
        raise OptionError(f"it cannot be computed again: {refusal(response)}")
    return found_in(response.json(), f"the answer of {client.base_url}")


def same_choice(receipt: Receipt, found: Sequence[Receipt]) -> Receipt:
    """That of the receipts which is of the same choice of the same prompt, as far as there is one."""
    return max(found, key=lambda one: (one["choice"] == receipt["choice"], one["prompt"] == receipt["prompt"]))


def promise(receipt: Receipt, here: Arithmetic) -> str:
    """Why equal bits are not promised for a receipt; empty if they are."""
    return no_promise(
        receipt["arithmetic"], here, adapter=receipt["adapter"] is not None, images=bool(receipt["images"])
    )


def exit_code(found: Sequence[Difference], *, promised: bool) -> int:
    """0 without a difference, `UNPROMISED` if only answers differ and may, else `DIFFERS`."""
    if not found:
        return 0
    return DIFFERS if promised or any(item.field not in ANSWER for item in found) else UNPROMISED


def token_name(client: httpx.Client, token: int) -> str:
    """The text of a token; empty if the server does not tell it."""
    try:
        return str(client.post("/detokenize", json={"tokens": [token]}).json()["prompt"])
    except (httpx.HTTPError, ValueError, KeyError):
        return ""


def read_json(path: Path) -> Any:
    """The JSON in a file. Raises OptionError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise OptionError(f"{path} is not JSON: {error_message(str(error))}") from None
