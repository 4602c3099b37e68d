"""Make the receipts of a server's answers: with its key, the digests of its files, and the text of each answer."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from model.checkpoint.digest import adapter_files, files_digest, network_files, stamp
from model.errors import NoriaError
from service import version
from service.access.record import RequestRecord
from service.errors.errors import ApiError, InvalidRequest
from service.generation.choice import Choice, Delta
from service.generation.generation import Generation
from service.generation.request import ModelRequest
from service.generation.served import ServedModel
from service.generation.startup import in_thread
from service.receipts.arithmetic import arithmetic_of
from service.receipts.keys import SigningKey
from service.receipts.receipt import (
    FORMAT,
    AdapterNamed,
    Content,
    Defaults,
    Receipt,
    Signed,
    digest,
    marks,
    prompt_bytes,
    request_digest,
    signed_bytes,
    token_bytes,
)

FilesOf = Callable[[Path], Sequence[Path]]
ReceiptField = bool | Literal["full"] | None
"""The field `receipt` of a request."""


class NoReceipt(ApiError):
    """The answer is there, but a fact that its receipt must have is not."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"no receipt can be made: {problem}", code="no_receipt")


class ReceiptMaker:
    """The key of `--receipt-key`, and the digests of a model's files, each computed once, when a receipt needs it.

    `always`: every answer gets a receipt.
    """

    def __init__(self, key: SigningKey | None, *, always: bool) -> None:
        self._key = key
        self._always = always
        self._digests: dict[int, asyncio.Future[str]] = {}  # of adapters by number; 0 is the model

    def begin(self, served: ServedModel) -> None:
        """Compute the weights' digest now with `--receipts`, not at the first answer."""
        if self._always and served.source is not None:
            self._weights(served)

    def forget(self) -> None:
        """Forget all digests. The model is unloaded, and files may change before the next load."""
        self._digests.clear()

    def check(self, field_value: ReceiptField) -> None:
        """Raise InvalidRequest if a request needs receipts and the server has no key."""
        if field_value and self._key is None:
            raise InvalidRequest(
                "receipt needs a server with a key, and this one has none: start it with --receipt-key FILE; noria "
                "receipts key FILE makes the file, with the package of the extra receipts",
                param="receipt",
                code="no_receipt_key",
            )

    def of_answer(
        self, field_value: ReceiptField, served: ServedModel, generation: Generation, record: RequestRecord
    ) -> "AnswerReceipts | Unsigned":
        """Return the receipts of an answer that begins."""
        if self._key is None or not (self._always if field_value is None else field_value):
            return Unsigned()
        return AnswerReceipts(self, self._key, served, generation, record, full=field_value == "full")

    async def of_model(self, served: ServedModel) -> dict[str, Any]:
        """Return the fields of a receipt that tell what computes. Raises NoReceipt."""
        weights, adapter = await asyncio.shield(self._weights(served)), served.adapter
        changed: AdapterNamed | None = None
        if adapter is not None:
            files = await asyncio.shield(self._digest(adapter.number, adapter_files, adapter.path, adapter.stamp))
            changed = {"name": adapter.name, "files": files}
        return {
            "version": version(),
            "model": served.names[0],
            "weights": weights,
            "adapter": changed,
            "windows": [pool.window for pool in served.info.pools],
            "softmax_scale": served.info.description.get("softmax_scale"),
            "arithmetic": arithmetic_of(served.info.description),
            "defaults": Defaults(
                repetition_detection=str(served.repetition_detection or "off"), reasoning_budget=served.reasoning_budget
            ),
        }

    def _weights(self, served: ServedModel) -> "asyncio.Future[str]":
        if served.source is None:
            raise NoReceipt("the files of the model are not known")
        return self._digest(0, network_files, *served.source)

    def _digest(self, number: int, files_of: FilesOf, path: Path, loaded: str) -> "asyncio.Future[str]":
        if number not in self._digests:
            self._digests[number] = asyncio.ensure_future(in_thread(lambda: digest_of(files_of, path, loaded)))
            self._digests[number].add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._digests[number]


def digest_of(files_of: FilesOf, path: Path, loaded: str) -> str:
    """Return the digest of files with the stamp that they had when they were `loaded`. Raises NoReceipt."""
    try:
        files = files_of(path)
        found = files_digest(files)
        changed = stamp(files) != loaded
    except (OSError, NoriaError) as error:
        raise NoReceipt(f"a file cannot be read ({type(error).__name__})") from error
    if changed:
        raise NoReceipt("the files have changed since they were loaded; start the server again")
    return found


class Unsigned:
    """The receipts of an answer that gets none."""

    def add(self, choice: Choice, delta: Delta) -> None: ...

    async def signed(self) -> Signed:
        return {}


@dataclass(slots=True, eq=False)
class AnswerReceipts:
    """The receipts of one answer while it is generated. With `full` they contain the request and the answer."""

    maker: ReceiptMaker
    key: SigningKey
    served: ServedModel
    generation: Generation
    record: RequestRecord
    full: bool
    _texts: defaultdict[Choice, list[str]] = field(default_factory=lambda: defaultdict(list))
    _finishes: dict[Choice, str] = field(default_factory=dict)

    def add(self, choice: Choice, delta: Delta) -> None:
        self._texts[choice].append(delta.text)
        self._finishes[choice] = delta.finish or ""

    async def signed(self) -> Signed:
        """Return the receipt of each choice of the answer, once all have ended. Raises NoReceipt."""
        request, chosen = self.generation.request, self.generation.best()
        about = await self.maker.of_model(self.served) | {
            "format": FORMAT,
            "created": int(time.time()),
            "endpoint": self.record.route,
            "seed": str(request.params.seed),
            "max_tokens": request.params.max_tokens,
            "key": self.key.public,
        }
        return {"receipts": await in_thread(lambda: [self._signed(about, request, choice) for choice in chosen])}

    def _signed(self, about: Mapping[str, Any], request: ModelRequest, choice: Choice) -> Receipt:
        prompt, tokens, number = prompt_bytes(choice.submit), choice.sampled, choice.index % request.n
        text = "".join(self._texts[choice])
        made: dict[str, Any] = {
            **about,
            "prompt": digest(prompt),
            "images": [span.digest for span in choice.submit.media],
            "request": request_digest(request, digest(prompt), number, about["adapter"]),
            "choice": number,
            "finish": self._finishes[choice],
            "n_tokens": len(tokens),
            "tokens": digest(token_bytes(tokens)),
            "marks": marks(prompt, tokens),
            "text": digest(text.encode()),
        }
        if self.full:
            made["content"] = Content(body=self.record.body.decode(), token_ids=tokens, text=text)
        made["signature"] = self.key.sign(signed_bytes(made))
        return made  # type: ignore[return-value]
