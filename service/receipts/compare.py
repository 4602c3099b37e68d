"""A receipt beside the one of the same request, computed again: which fields differ, and at which token."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from service.receipts.receipt import MARK, Receipt, digest, token_bytes

CUT = ("timeout", "abort")
"""Finish reasons of an answer that time has cut: it is the beginning of the one that is computed again."""
FACTS = {
    "weights": "the model's files are others",
    "adapter": "the adapter is another",
    "windows": "the attention windows are others",
    "softmax_scale": "the scale of attention scores is another (--softmax-scale)",
    "images": "the images are others",
    "prompt": "the prompt has other tokens or images",
    "defaults": "the defaults of the server are others",
    "request": "the parameters of the request are others, or its adapter, or its prompt",
    "seed": "the seed is another",
    "max_tokens": "the limit of tokens is another",
}
"""The meaning of another value of each field. The first field that differs is the likeliest cause."""
ANSWER = ("tokens", "text", "finish", "n_tokens", "marks")
STATED = ("version", "created", "model", "arithmetic", "defaults", "key", "signature")
"""The fields that are not computed again: only the signature shows that one was changed."""


class Difference(NamedTuple):
    """A field of a receipt that differs, and how.

    Of the field `signature`, or of the answer `around` the receipt, the message says all.
    """

    field: str
    message: str

    @property
    def text(self) -> str:
        return self.message if self.field in ("signature", "around") else f"{self.field}: {self.message}"


def differences(given: Receipt, found: Receipt, name: Callable[[int], str]) -> Iterator[Difference]:
    """Yield the differences between a receipt and `found`, which was computed again and has its `content`.

    `name` gives a token's text.
    """
    for field, message in FACTS.items():
        one, other = _plain(given, field), _plain(found, field)
        if one != other and (field != "defaults" or given["request"] != found["request"]):
            yield Difference(field, f"{message}: {one} in the receipt, {other} here")
    if given["finish"] in CUT:
        found = _cut(found, given)
    index = first_token(given, found)
    if index is not None:
        yield Difference("tokens", told(given, found, index, name))
        return
    for field in ANSWER:
        one, other = _plain(given, field), _plain(found, field)
        if one != other:
            yield Difference(field, f"{one} in the receipt, {other} here, after the same tokens")


def first_token(given: Receipt, found: Receipt) -> int | None:
    """Return the index of the first generated token that differs; None if there is none.

    Without the `content` of `given` the marks tell it, which belong to the prompt.
    """
    parts = _tokens if "content" in given else _marks
    one, other = parts(given), parts(found)
    if one == other:
        return None
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def told(given: Receipt, found: Receipt, index: int, name: Callable[[int], str]) -> str:
    """Return a sentence about the first token that differs."""
    ids, known = _tokens(found), _tokens(given)
    here = f"{ids[index]} {name(ids[index])!r} here" if index < len(ids) else "none here: the answer ends before it"
    there = "another in the receipt"
    if index >= given["n_tokens"]:
        there = "none in the receipt: its answer ends before it"
    elif index < len(known):
        there = f"{known[index]} {name(known[index])!r} in the receipt"
    return f"token {index + 1} of {given['n_tokens']} differs: {there}, {here}"


def _cut(found: Receipt, given: Receipt) -> Receipt:
    """Return the receipt as if time had cut the answer after as many tokens. Its text cannot be known."""
    n_tokens, content = given["n_tokens"], found["content"]
    ids = content["token_ids"][:n_tokens]
    cut: Any = {name: given[name] for name in ("finish", "text")}
    cut |= {"n_tokens": len(ids), "tokens": digest(token_bytes(ids)), "marks": found["marks"][: MARK * n_tokens]}
    return {**found, **cut, "content": {**content, "token_ids": ids}}


def _plain(receipt: Receipt, field: str) -> Any:
    """Return a value to compare: of an adapter its files, whatever its name."""
    value: Any = receipt[field]  # type: ignore[literal-required]
    return value.get("files", value) if isinstance(value, dict) else value


def _tokens(receipt: Receipt) -> list[Any]:
    return receipt["content"]["token_ids"] if "content" in receipt else []


def _marks(receipt: Receipt) -> list[Any]:
    marks = receipt["marks"]
    return [marks[start : start + MARK] for start in range(0, len(marks), MARK)]
