"""`noria verify`: check the signature of receipts, and compute their answers again."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import typer

from model.errors import OptionError, counted, quoted
from model.options import option, required
from service.commands.flags import takes
from service.commands.receipts import again, junit
from service.commands.receipts.cases import Case, from_json, read_cases, read_json
from service.commands.receipts.stored import response_id, stored_request
from service.commands.target import TargetOptions
from service.receipts.arithmetic import Arithmetic, no_promise
from service.receipts.compare import CUT, STATED, Difference
from service.receipts.keys import is_public
from service.receipts.read import faults, faults_around, found_in, texts
from service.receipts.receipt import Receipt

AT_ONCE = 8
"""Answers of a batch that are computed again at a time."""


@dataclass(frozen=True, slots=True)
class VerifyOptions(TargetOptions):
    """The options of `noria verify`."""

    receipt: Path = required(
        "File with a receipt, with an answer or the last event of a stream that has receipts, or with the results of "
        "noria batch."
    )
    request: Path | None = option(
        None,
        "File with the body of the request, as it was sent.",
        unset="what a receipt has that was made with it, or what the server at --url has of a stored response",
    )
    key: str | None = option(
        None, "Public key that must have signed, in base64, or a file with it.", unset="any: only changes are found"
    )
    signature_only: bool = option(False, "Check the signature alone, and compute nothing.")
    answers_only: bool = option(
        False,
        "Compare with the answers of the server as it is, not as the receipt says: other weights, data types or "
        "defaults are no failure if the answer is the same.",
    )
    junit: Path | None = option(None, "File for a report in JUnit's XML.", unset="no report")


@takes(VerifyOptions, "NORIA_VERIFY_")
def verify(options: VerifyOptions) -> None:
    """Check receipts: their signatures, and their answers, which are computed again.

    The exit code is 0 if all is equal; 3 if a signature, the model, a request or an answer differs; 4 if only an
    answer differs, on a machine that does not promise equal bits; 1 if one could not be checked. Without --url the
    command starts its own server, which reads the environment variables of noria serve.
    """
    options.check_target()
    if options.junit is not None:
        junit.check_place(options.junit)
    cases, key = read_cases(options.receipt), public_key(options.key)
    if options.request is not None and cases[0].name:
        raise OptionError('--request is for one answer; a batch has its requests if they say "receipt": "full"')
    for case in cases:
        with case.checked():
            inspect(options, key, case)
    compute_all(options, [case for case in cases if case.body is not None])
    for line in summary(cases):
        typer.echo(line)
    if options.junit is not None:
        junit.write(options.junit, cases)
    if cases[0].error and not cases[0].name:
        raise OptionError(cases[0].error)
    raise typer.Exit(again.exit_code(cases))


def inspect(options: VerifyOptions, key: str | None, case: Case) -> None:
    """Check an answer in itself, and find the request that is computed again. Raises OptionError."""
    if case.error:
        return
    case.receipts = found_in(case.answer, case.place)
    body = None if options.signature_only else request_of(options, case.answer, case.receipts[0])
    wrong = [Difference("signature", fault) for one in case.receipts for fault in faults(one, key)]
    keys = ", ".join(dict.fromkeys(one["key"] for one in case.receipts))
    case.tell(*([item.text for item in wrong] or [f"signature: valid, by the key {keys}"]))
    case.texts, case.body = texts(case.answer, streamed=bool(body and body.get("stream"))), body
    changed = [Difference("around", fault) for fault in faults_around(case.receipts, case.texts)]
    case.tell(*(item.text for item in changed))
    case.found = [*wrong, *changed]


def compute_all(options: VerifyOptions, cases: Sequence[Case]) -> None:
    """Compute the requests again, on one server. Raises OptionError without one."""
    if not cases:
        return
    like = None if options.answers_only else cases[0].receipts[0]
    with again.server(options, like) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(partial(compute, options, client, again.arithmetic_at(client)), cases))


def compute(options: VerifyOptions, client: httpx.Client, here: Arithmetic, case: Case) -> None:
    """Compute a request again, and add what differs to its case."""
    with case.checked():
        why_not = no_promise(case.receipts[0], here)
        case.promised = not why_not
        case.tell(f"equal bits: {f'not promised: {why_not}' if why_not else 'promised here'}")
        assert case.body is not None
        found = again.compared(client, case.receipts, case.body, complete=bool(case.texts))
        if options.answers_only:
            found = again.with_causes(found)
        elif others := [item.message for item in found if item.field == "defaults"]:
            raise OptionError(
                f"{others[0]}; start the server at --url with those of the receipt, or verify without --url"
            )
        case.tell(*(item.text for item in found))
        if not found:
            case.tell(f"equal: {counted(sum(one['n_tokens'] for one in case.receipts), 'token')}, computed again")
        elif why_not:
            case.tell(again.NO_PROOF)
        if not found and any(item.field == "signature" for item in case.found):
            case.tell(f"what was changed is not computed again: one of {', '.join(STATED)}")
        case.found += found


def summary(cases: Sequence[Case]) -> Iterator[str]:
    """Yield the lines at the end: of one answer what was not compared, of a batch each problem and the count."""
    first, *_ = cases
    if not first.name:
        if not first.error and first.answer.keys() > {"receipts"} and (not first.texts or None in first.texts):
            yield "text: not all of the answer is compared, because the file ends a stream or has tool calls"
        return
    wrong = [case for case in cases if case.problem]
    yield from (f"{case.name}: {case.problem}" for case in wrong)
    if any(case.found and not case.promised for case in wrong):
        yield again.NO_PROOF
    yield f"verify: {len(cases) - len(wrong)} of {counted(len(cases), 'answer')} passed"


def request_of(options: VerifyOptions, answer: Any, receipt: Receipt) -> Mapping[str, Any]:
    """Return the body of the request: in a file, in the receipt, or as the server has it. Raises OptionError."""
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
    """Return the body in a file or in the receipt; None if there is none. Raises OptionError."""
    if path is None and "content" not in receipt:
        return None
    place = "the body in the receipt" if path is None else str(path)
    body = from_json(receipt["content"]["body"], place) if path is None else read_json(path)
    if not isinstance(body, dict):
        raise OptionError(f"{place} must be a JSON object, the body of a request")
    return body


def public_key(given: str | None) -> str | None:
    """Return the public key that is meant: the text, or what a file of this name holds. Raises OptionError."""
    if given is None or is_public(given):
        return given
    try:
        text = Path(given).read_text().strip()
    except (OSError, ValueError):
        text = ""
    if not is_public(text):
        raise OptionError(f"--key must be a public key as noria receipts key prints it, or a file with it, got {given}")
    return text
