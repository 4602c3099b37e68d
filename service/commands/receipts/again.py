"""Requests that are sent once more, to a server that computes their answers and receipts anew."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from model.config.cache_formats import KV_DTYPES
from model.errors import OptionError, quoted
from service.commands.endpoint import refusal
from service.commands.receipts.cases import Case
from service.commands.target import TargetOptions, target
from service.receipts.arithmetic import Arithmetic, arithmetic_of
from service.receipts.compare import ANSWER, Difference, differences
from service.receipts.read import found_in
from service.receipts.receipt import Receipt

RESPONSES = "/v1/responses"
SEED = ("seed", "random_seed")
MAX_TOKENS = ("max_tokens", "max_completion_tokens", "n_predict")
ENDPOINTS = {
    "/v1/chat/completions": MAX_TOKENS,
    "/v1/completions": MAX_TOKENS,
    "/v1/fim/completions": MAX_TOKENS,
    "/v1/messages": MAX_TOKENS,
    RESPONSES: ("max_output_tokens",),
}
"""The endpoints whose answers have receipts, and the names of their field for the number of tokens."""
LEFT_OUT = ("stream", "stream_options", "return_progress", "timeout", "priority", "background", "store")
"""Fields that change how an answer is sent or served, and no token of it. Another server may refuse them."""
STATE = ("previous_response_id", "conversation")
"""Fields that name what a server has stored."""
UNSET = ("NORIA_PREFIX_STORE", "NORIA_PREFIX_STORE_SIZE")
"""The server of the command computes pages itself: those on disk may be of the server whose answer is checked."""
FROM_RECEIPT = ("NORIA_REASONING_BUDGET",)
"""A server that computes as a receipt says has no default but the receipt's."""
DIFFERS, UNPROMISED = 3, 4
"""Exit codes: the receipt and the answer do not agree; the answer differs where nothing promises equal bits."""
NO_PROOF = "an answer that differs here is no proof of a fault: no equal bits are promised"


@contextmanager
def server(options: TargetOptions, like: Receipt | None = None) -> Iterator[httpx.Client]:
    """Give a client of the command's server. One of our own computes as the receipt `like` says. Raises OptionError."""
    flags, unset = (flags_of(like), (*UNSET, *FROM_RECEIPT)) if like else ([], UNSET)
    with target(options, flags, unset, signs=True) as found, found.client() as client:
        yield client


def flags_of(like: Receipt) -> list[str]:
    """Return the flags of a server that computes in the same scheme with the same defaults.

    It is lenient, as that of the receipt may have been: the hash of the request decides.
    """
    arithmetic, defaults = like["arithmetic"], like["defaults"]
    found = ["--lenient", "--quantize", arithmetic["quantize"]]
    if arithmetic["quantize"] == "none":
        found += ["--dtype", arithmetic["dtype"]]
    if arithmetic["kv_dtype"] in KV_DTYPES:
        found += ["--kv-dtype", arithmetic["kv_dtype"]]
    found += ["--repetition-detection", defaults["repetition_detection"]]
    if defaults["reasoning_budget"] is not None:
        found += ["--reasoning-budget", str(defaults["reasoning_budget"])]
    return found


def reply(client: httpx.Client, method: str, path: str, problem: str, **options: Any) -> Any:
    """Return the JSON that a server answers. Raises OptionError, with the `problem` before the server's reason."""
    try:
        response = client.request(method, path, **options)
        if response.is_success:
            return response.json()
    except httpx.TransportError as error:
        raise OptionError(f"nothing answers at {client.base_url}: {error}") from error
    except ValueError:
        raise OptionError(f"{problem}: {path} of {client.base_url} answers no JSON; is it Noria?") from None
    raise OptionError(f"{problem}: {refusal(response)}")


def arithmetic_at(client: httpx.Client) -> Arithmetic:
    """Return how the server computes. Raises OptionError for one that does not say."""
    problem = f"{client.base_url} does not say how it computes"
    try:
        return arithmetic_of(reply(client, "GET", "/version", problem)["engine"])
    except (KeyError, TypeError, AttributeError):
        raise OptionError(f"{problem} at /version; is it Noria?") from None


def body_for(receipt: Receipt, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request, with the receipt's seed and number of tokens where it has none itself.

    Another server may have the model under another name; only an adapter is named.
    """
    made = {name: value for name, value in body.items() if name not in (*LEFT_OUT, "model")}
    for names, value in ((SEED, int(receipt["seed"])), (ENDPOINTS[receipt["endpoint"]], receipt["max_tokens"])):
        if all(made.get(name) is None for name in names):
            made[names[0]] = value
    return made | ({"model": receipt["adapter"]["name"]} if receipt["adapter"] else {})


def state_in(body: Mapping[str, Any]) -> str | None:
    """Return the field of a request that names stored state; None for a request that is all there is."""
    return next((name for name in STATE if body.get(name) is not None), None)


def check_body(body: Mapping[str, Any]) -> None:
    """Raise OptionError for a request whose prompt is not all in its body."""
    if name := state_in(body):
        raise OptionError(
            f"{name} must be null, got {quoted(body[name])}: the answer depends on what its server had stored, which "
            "neither the request nor a receipt has; noria verify ANSWER --url ADDRESS asks that server for it"
        )


def answers(client: httpx.Client, endpoint: str, body: Mapping[str, Any]) -> list[Receipt]:
    """Return the receipts of a request's choices, with their content. Raises OptionError where there is no answer."""
    sent = {**body, "receipt": "full", **({"store": False} if endpoint == RESPONSES else {})}
    found = reply(client, "POST", endpoint, "it cannot be computed again", json=sent)
    return found_in(found, f"the answer of {client.base_url}")


def compared(
    client: httpx.Client, receipts: Sequence[Receipt], body: Mapping[str, Any], *, complete: bool = False
) -> list[Difference]:
    """Compute the request of these receipts again, and return what differs. Raises OptionError.

    `complete` says that they are the receipts of all choices.
    """
    again = answers(client, receipts[0]["endpoint"], body_for(receipts[0], body))
    missing = Difference("choices", f"{len(receipts)} in the answer, {len(again)} here")
    return [missing] * (complete and len(again) != len(receipts)) + [
        item
        for one in receipts
        for item in differences(one, same_choice(one, again), lambda token: token_name(client, token))
    ]


def same_choice(receipt: Receipt, found: Sequence[Receipt]) -> Receipt:
    """Return the receipt of the same choice of the same prompt, as far as there is one."""
    return max(found, key=lambda one: (one["choice"] == receipt["choice"], one["prompt"] == receipt["prompt"]))


def with_causes(found: Sequence[Difference]) -> list[Difference]:
    """Return the differences of the answer, and then their likely causes; nothing if the answer is the same."""
    of_answer = [item for item in found if item.field in (*ANSWER, "choices")]
    return of_answer + [item for item in found if of_answer and item not in of_answer]


def exit_code(cases: Sequence[Case]) -> int:
    """Return 1 if one was not checked, `DIFFERS`, `UNPROMISED` if only answers differ and may, or 0, in this order."""
    if any(case.error for case in cases):
        return 1
    wrong = [case.promised or any(item.field not in ANSWER for item in case.found) for case in cases if case.found]
    return 0 if not wrong else DIFFERS if any(wrong) else UNPROMISED


def token_name(client: httpx.Client, token: int) -> str:
    """Return the text of a token; empty if the server does not tell it."""
    try:
        return str(reply(client, "POST", "/detokenize", "", json={"tokens": [token]})["prompt"])
    except (OptionError, KeyError, TypeError):
        return ""
