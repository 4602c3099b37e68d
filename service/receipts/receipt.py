"""A receipt: its fields, their hashes, and the bytes that are signed."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Annotated, Any, Literal, NotRequired

import orjson
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from model.sampling_params import Stage, declared
from service.engine.messages import Submit
from service.generation.request import ModelRequest
from service.receipts.arithmetic import Arithmetic

FORMAT: Literal["noria-receipt-1"] = "noria-receipt-1"
MARK = 4
"""Hexadecimal digits of the mark of a token."""
NO_EFFECT = (Stage.REPORT, Stage.SCHEDULE)
"""Stages of parameters that change no token."""
EXACT = ConfigDict(extra="forbid")
"""A reader refuses other fields: nobody has signed them."""

Seed = Annotated[str, Field(pattern=r"^-?[0-9]{1,19}$")]
"""A text: not every reader of JSON has integers of 64 bits."""
Count = Annotated[int, Field(ge=0, lt=2**53)]
TokenId = Annotated[int, Field(ge=0, lt=2**32)]


@with_config(EXACT)
class AdapterNamed(TypedDict):
    """A LoRA adapter: its name, and the SHA-256 of its files."""

    name: str
    files: str


@with_config(EXACT)
class Content(TypedDict):
    """The content that a receipt hashes: the request's body as it was sent, all tokens and the text of the choice."""

    body: str
    token_ids: list[TokenId]
    text: str


@with_config(EXACT)
class Defaults(TypedDict):
    """The values of the flags of these names, which change tokens where a request does not set them."""

    repetition_detection: str
    reasoning_budget: Count | None


@with_config(EXACT)
class Receipt(TypedDict):
    """The receipt of one choice. It holds hashes, and `content` only where the request asks for it.

    `weights` is the SHA-256 of the model's files, `windows` are those of attention, `softmax_scale` is that of latent
    attention. `prompt` is the hash of all prompt tokens and images, `request` that of the prompt, the sampling
    parameters and all else that decides the answer. `defaults` are those of the server. `seed` is that of the request,
    or the one that the server drew; `max_tokens` likewise. `choice` is the index of the choice among those of its
    prompt. `tokens` is the hash of all generated tokens, `marks` has four hexadecimal digits for each of them, which
    only who knows the prompt can compute. `text` is the SHA-256 of the text. `signature` is by the key with the public
    part `key`.
    """

    format: Literal["noria-receipt-1"]
    version: str
    created: Count
    endpoint: str
    model: str
    weights: str
    adapter: AdapterNamed | None
    windows: list[Count | None]
    softmax_scale: str | None
    arithmetic: Arithmetic
    prompt: str
    images: list[str]
    request: str
    defaults: Defaults
    seed: Seed
    max_tokens: Count
    choice: Count
    finish: str
    n_tokens: Count
    tokens: str
    marks: str
    text: str
    content: NotRequired[Content]
    key: str
    signature: str


class Signed(TypedDict):
    """The field that receipts add to an answer: one of each choice, in their order."""

    receipts: NotRequired[list[Receipt]]


def digest(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Return four bytes for each token, the lowest first."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def prompt_bytes(submit: Submit) -> bytes:
    """Return all that a prompt consists of: the tokens, and places and digests of images."""
    return canonical({"tokens": submit.prompt, "images": [asdict(span) for span in submit.media]})


def request_digest(request: ModelRequest, prompt: str, choice: int, adapter: AdapterNamed | None) -> str:
    """Return the hash of the request as Noria computes it. `prompt` is the hash of its prompt.

    Parameters that change no token are left out, so a streamed answer and a whole one have the same request.
    """
    params, rows = request.params, declared(type(request.params))
    about = {
        "prompt": prompt,
        "choice": choice,
        "adapter": None if adapter is None else adapter["files"],
        "params": {name: value for name, value in asdict(params).items() if rows[name].stage not in NO_EFFECT},
        "starts_message": request.starts_message,
        "visible_control": sorted(request.visible_control),
        "reasoning": None if request.reasoning is None else asdict(request.reasoning),
    }
    return digest(canonical(about))


def marks(prompt: bytes, tokens: Sequence[int]) -> str:
    """Return the marks of tokens: the beginnings of the hashes of the prompt and all tokens up to each.

    The first differing token of two answers to one prompt is that of the first differing mark. Who does not know the
    prompt learns nothing of the tokens from them.
    """
    state, found = sha256(b"noria marks\0" + prompt), []
    for token in tokens:
        state.update(token_bytes([token]))
        found.append(state.hexdigest()[:MARK])
    return "".join(found)


def canonical(value: Any) -> bytes:
    """Return JSON without spaces and with sorted names: RFC 8785's form of it, as a receipt has no fractions."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def signed_bytes(receipt: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: the receipt without its signature."""
    return canonical({name: value for name, value in receipt.items() if name != "signature"})
