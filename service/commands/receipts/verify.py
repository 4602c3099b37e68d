"""`noria verify`: check the signature of receipts, and compute their answers again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import typer

from model.errors import OptionError, counted, quoted
from model.options import option, required
from service.commands.flags import takes
from service.commands.receipts import again
from service.commands.receipts.stored import response_id, stored_request
from service.commands.target import TargetOptions
from service.receipts.arithmetic import no_promise
from service.receipts.compare import CUT, STATED, Difference
from service.receipts.keys import is_public
from service.receipts.read import faults, faults_around, found_in, texts
from service.receipts.receipt import Receipt


@dataclass(frozen=True, slots=True)
class VerifyOptions(TargetOptions):
    """The options of `noria verify`."""

    receipt: Path = required("File with a receipt, or with an answer or the last event of a stream that has receipts.")
    request: Path | None = option(
        None,
        "File with the body of the request, as it was sent.",
        unset="what a receipt has that was made with it, or what the server at --url has of a stored response",
    )
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
    options.check_target()
    answer = read_json(options.receipt)
    receipts, key = found_in(answer, str(options.receipt)), public_key(options.key)
    body = None if options.signature_only else request_of(options, answer, receipts[0])
    wrong = [Difference("signature", fault) for one in receipts for fault in faults(one, key)]
    keys = ", ".join(dict.fromkeys(one["key"] for one in receipts))
    typer.echo("\n".join(fault.message for fault in wrong) or f"signature: valid, by the key {keys}")
    around = texts(answer, streamed=bool(body and body.get("stream")))
    for fault in (changed := [*faults_around(receipts, around)]):
        typer.echo(fault)
    found, promised = ([], True) if body is None else computed(options, receipts, body, complete=bool(around))
    if wrong and body is not None and not found:
        typer.echo(f"what was changed is not computed again: one of {', '.join(STATED)}")
    if answer.keys() > {"receipts"} and (not around or None in around):
        typer.echo("text: not all of the answer is compared, because the file ends a stream or has tool calls")
    wrong += [Difference("around", fault) for fault in changed]
    raise typer.Exit(again.exit_code([*wrong, *found], promised=promised))


def computed(
    options: VerifyOptions, receipts: Sequence[Receipt], body: Mapping[str, Any], *, complete: bool
) -> tuple[list[Difference], bool]:
    """What differs when the request is computed again, and whether equal bits are promised. It tells both."""
    with again.server(options, receipts[0]) as client:
        why_not = no_promise(receipts[0], again.arithmetic_at(client))
        typer.echo(f"equal bits: {f'not promised: {why_not}' if why_not else 'promised here'}")
        found = again.compared(client, receipts, body, complete=complete)
    if others := [item.message for item in found if item.field == "defaults"]:
        raise OptionError(f"{others[0]}; start the server at --url with those of the receipt, or verify without --url")
    for item in found:
        typer.echo(f"{item.field}: {item.message}")
    if not found:
        typer.echo(f"equal: {counted(sum(one['n_tokens'] for one in receipts), 'token')}, computed again")
    elif why_not:
        typer.echo(again.NO_PROOF)
    return found, not why_not


def request_of(options: VerifyOptions, answer: Any, receipt: Receipt) -> Mapping[str, Any]:
    """The body of the request: in a file, in the receipt, or as the server has it. Raises OptionError."""
    if receipt["finish"] in CUT and not receipt["n_tokens"]:
        raise OptionError("time cut the answer before its first token: there is nothing to compute again")
    if (endpoint := receipt["endpoint"]) not in again.ENDPOINTS:
        raise OptionError(f"endpoint must be one of {', '.join(again.ENDPOINTS)}, the receipt has {quoted(endpoint)}")
    body = given_request(options.request, receipt)
    id = response_id(answer) if endpoint == again.RESPONSES else None
    if options.url and options.request is None and id is not None and (body is None or again.state_in(body)):
        with again.server(options) as client:
            return stored_request(client, id)
    if body is None:
        raise OptionError(
            "the receipt has hashes only, and nothing to compute: give the request's body with --request FILE, or for "
            "a stored response its server with --url, or check the signature alone with --signature-only"
        )
    again.check_body(body)
    return body


def given_request(path: Path | None, receipt: Receipt) -> dict[str, Any] | None:
    """The body in a file or in the receipt; None if there is none. Raises OptionError."""
    if path is None and "content" not in receipt:
        return None
    place = "the body in the receipt" if path is None else str(path)
    body = from_json(receipt["content"]["body"], place) if path is None else read_json(path)
    if not isinstance(body, dict):
        raise OptionError(f"{place} must be a JSON object, the body of a request")
    return body


def read_json(path: Path) -> Any:
    """The JSON in a file. Raises OptionError."""
    try:
        return from_json(path.read_bytes(), str(path))
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from error


def from_json(text: bytes | str, place: str) -> Any:
    """The JSON in a text. Raises OptionError."""
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise OptionError(f"{place} is not JSON: {error}") from None


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
