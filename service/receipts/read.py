"""A receipt as a file or a client gives it, checked: its fields, its own hashes and its signature."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from model.errors import OptionError
from service.receipts.keys import has_signed
from service.receipts.receipt import MARK, Receipt, digest, signed_bytes, token_bytes

PLAIN = ("message", "text", "output_text", "thinking", "reasoning")
"""The types of the parts of an answer without calls."""
FIELDS: TypeAdapter[Receipt] = TypeAdapter(Receipt)


def parsed(value: Any, place: str) -> Receipt:
    """Return the receipt in a value of JSON. Raises OptionError, which names `place` and the field that is wrong."""
    try:
        return FIELDS.validate_python(value, strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"])) or "it"
        raise OptionError(f"{place} is no receipt of a known format: {field}: {fault['msg']}") from None


def found_in(value: Any, place: str) -> list[Receipt]:
    """Return the receipts in a value of JSON: one, or those of an answer, or of the last event of its stream.

    Raises OptionError where there is none.
    """
    if isinstance(value, Mapping) and isinstance(value.get("receipts"), list) and value["receipts"]:
        return [parsed(one, f"{place}, receipts[{index}]") for index, one in enumerate(value["receipts"])]
    if isinstance(value, Mapping) and "format" not in value:
        raise OptionError(f'{place} has no receipts: a request gets them with "receipt": true')
    return [parsed(value, place)]


def texts(answer: Any, *, streamed: bool) -> list[str | None]:
    """Return the text of each choice of a whole answer (None: with calls). Receipts and ends of streams have none."""
    try:
        whole = answer.get("response", answer)
        if choices := whole.get("choices"):
            if "text" in choices[0]:
                return [] if streamed else [choice["text"] for choice in choices]
            return [_text(choice["message"]) for choice in choices]
        return [_text(whole)] if {"content", "output"} & whole.keys() and "format" not in whole else []
    except (AttributeError, KeyError, TypeError):
        return []


def _text(message: Mapping[str, Any]) -> str | None:
    """Return the text of a message, or of the messages of a response, without thoughts; None with calls."""
    parts = message.get("output", message.get("content"))
    if isinstance(parts, str) and not message.get("tool_calls"):
        return parts
    if message.get("tool_calls") or any(part["type"] not in PLAIN for part in parts or ()):
        return None
    return "".join((_text(part) if "content" in part else part.get("text")) or "" for part in parts or ())


def faults_around(receipts: Sequence[Receipt], texts: Sequence[str | None]) -> Iterator[str]:
    """Yield how the answer around its receipts differs from what they sign: in the number of choices, or a text."""
    if texts and len(texts) != len(receipts):
        yield f"choices: the answer has {len(texts)}, and {len(receipts)} receipts"
    for index, (one, text) in enumerate(zip(receipts, texts, strict=False)):
        if text is not None and digest(text.encode()) != one["text"]:
            yield f"choices[{index}]: its text is not the signed one"


def faults(receipt: Receipt, key: str | None) -> Iterator[str]:
    """Yield the faults of a receipt in itself, without the model: `key` should have signed it."""
    if key is not None and receipt["key"] != key:
        yield f"key: the receipt is signed with {receipt['key']}, expected {key}"
    if not has_signed(receipt["key"], signed_bytes(receipt), receipt["signature"]):
        yield "signature: a field of the receipt, its key or its signature was changed after it was signed"
    if len(receipt["marks"]) != MARK * receipt["n_tokens"]:
        yield f"marks: {receipt['n_tokens']} tokens have {MARK} digits each, got {len(receipt['marks'])} in all"
    if "content" in receipt:
        content = receipt["content"]
        if digest(token_bytes(content["token_ids"])) != receipt["tokens"]:
            yield "content.token_ids: their hash is not that of the field tokens"
        if digest(content["text"].encode()) != receipt["text"]:
            yield "content.text: its hash is not that of the field text"
