"""`noria verify`: check the signature of receipts, and compute their answers again."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from model.errors import OptionError
from model.options import option, required
from service.commands.flags import takes
from service.commands.receipts.again import (
    ENDPOINTS,
    answers,
    arithmetic_at,
    body_for,
    check_body,
    exit_code,
    promise,
    read_json,
    same_choice,
    server,
    token_name,
)
from service.commands.receipts.stored import stored_request
from service.receipts.compare import CUT, STATED, Difference, differences
from service.receipts.keys import is_public
from service.receipts.read import faults, found_in
from service.receipts.receipt import Receipt


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of `noria verify`."""

    receipt: Path = required("File with a receipt, or with an answer or the last event of a stream that has receipts.")
    request: Path | None = option(
        None,
        "File with the body of the request, as it was sent.",
        unset="what the receipt has, or the server at --url has stored",
    )
    model: str | None = option(
        None, "Model to compute with, as for noria serve. Not allowed with --url.", unset="the embedded model"
    )
    url: str | None = option(None, "Address of a running server.", unset="the command starts its own server")
    api_key: str | None = option(None, "API key of the server at --url.")
    key: str | None = option(
        None, "Public key that must have signed, in base64, or a file with it.", unset="any: only changes are found"
    )
    signature_only: bool = option(False, "Check the signature alone, and compute nothing.")


@takes(VerifyOptions, "NORIA_VERIFY_")
def verify(options: VerifyOptions) -> None:
    """Check a receipt: its signature, and its answer, which is computed again.

    The exit code is 0 if all is equal; 3 if the signature, the model, the request or the answer differs; 4 if only the
    answer differs, on a machine that does not promise equal bits; 1 if it could not be checked. Without --url the
    command starts its own server, which reads the environment variables of noria serve.
    """
    answer = read_json(options.receipt)
    receipts = found_in(answer, str(options.receipt))
    body = None if options.signature_only else request_of(options, answer, receipts[0])
    key = public_key(options.key)
    wrong = [fault for one in receipts for fault in faults(one, key)]
    typer.echo("\n".join(wrong) or f"signature: valid, by the key {receipts[0]['key']}")
    found, promised = ([], True) if body is None else compared(options, receipts, body)
    if wrong and body is not None and not found:
        typer.echo(f"what was changed is not computed again: one of {', '.join(STATED)}")
    raise typer.Exit(exit_code([*(Difference("signature", fault) for fault in wrong), *found], promised=promised))


def compared(options: VerifyOptions, receipts: Sequence[Receipt], body: Any) -> tuple[list[Difference], bool]:
    """What differs when the request is computed again, and whether equal bits are promised. It tells both."""
    first = receipts[0]
    with server(options.model, options.url, options.api_key, first["arithmetic"]) as client:
        why_not = promise(first, arithmetic_at(client))
        typer.echo(f"equal bits: {f'not promised: {why_not}' if why_not else 'promised here'}")
        again = answers(client, first["endpoint"], body_for(first, body))
        name = partial(token_name, client)
        found = [item for one in receipts for item in differences(one, same_choice(one, again), name)]
    for item in found:
        typer.echo(f"{item.field}: {item.message}")
    if not found:
        typer.echo(f"equal: {sum(one['n_tokens'] for one in receipts)} tokens, computed again")
    elif why_not:
        typer.echo("an answer that differs here is no proof of a fault: no equal bits are promised")
    return found, not why_not


def request_of(options: VerifyOptions, answer: Any, receipt: Receipt) -> Any:
    """The body of the request of an answer that has the receipt. Raises OptionError."""
    if receipt["finish"] in CUT and not receipt["n_tokens"]:
        raise OptionError("time cut the answer before its first token: there is nothing to compute again")
    if receipt["endpoint"] not in ENDPOINTS:
        raise OptionError(f"endpoint must be one of {', '.join(ENDPOINTS)}, the receipt has {receipt['endpoint'][:80]}")
    if options.request is not None:
        body, place = read_json(options.request), str(options.request)
    elif "content" in receipt:
        body, place = json.loads(receipt["content"]["body"]), "the body in the receipt"
    elif options.url and (id := response_id(answer)) is not None:
        with server(None, options.url, options.api_key) as client:
            return stored_request(client, id)
    else:
        raise OptionError(
            "the receipt has hashes only, and nothing to compute: give the request's body with --request FILE, or the "
            "server that has stored the response with --url, or check the signature alone with --signature-only"
        )
    if not isinstance(body, dict):
        raise OptionError(f"{place} must be a JSON object, the body of a request")
    check_body(body, stored=options.url is not None)
    return body


def response_id(answer: Any) -> str | None:
    """The id of a response, or of that in the last event of its stream; None for anything else."""
    response = answer.get("response", answer)
    id = response.get("id") if isinstance(response, dict) else None
    return id if isinstance(id, str) and id.startswith("resp_") else None


def public_key(given: str | None) -> str | None:
    """The public key that is meant: the text, or what a file of this name holds. Raises OptionError."""
    if given is None or is_public(given):
        return given
    try:
        text = Path(given).read_text().strip()
    except (OSError, ValueError):
        text = ""
    if not is_public(text):
        raise OptionError(f"--key must be a public key as noria receipts key prints it, or a file with it, got {given}")
    return text
