"""A loaded model as it is served."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.batch import RunnerInfo
from model.chat.formats import ChatFormat
from model.chat.reasoning import Marks
from model.checkpoint.generation_config import GenerationDefaults
from model.errors import ModelError, ParameterError
from model.sampling_params import RepetitionDetection, SamplingParams, check_ids
from model.tokenizers.base import Tokenizer
from service import version
from service.generation.adapters import Adapter


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served model, or with an `adapter` that model with the adapter's changes.

    Requests may use any of `names`; answers have the first. `chat` is None without a chat format.

    `reasoning` are the marks of thoughts, None for a model without reasoning. `reasoning_budget` is the default for the
    tokens of a thought, and `repetition_detection` that of a request. `description` has facts for users. `source` is
    the path of the model's files, and their stamp when they were loaded; None: not known.
    `fingerprint` is the `system_fingerprint` of answers. Raises ModelError for defaults that no request could use.
    """

    names: tuple[str, ...]
    tokenizer: Tokenizer
    chat: ChatFormat | None
    defaults: GenerationDefaults
    longest_piece: int
    info: RunnerInfo
    reasoning: Marks | None = None
    reasoning_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    adapter: Adapter | None = None
    description: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    source: tuple[Path, str] | None = None
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        if self.tokenizer.vocab_size > self.info.vocab_size:
            raise ModelError(
                f"the tokenizer has {self.tokenizer.vocab_size} tokens, but the model only {self.info.vocab_size}: "
                "they do not belong together"
            )
        sampling: dict[str, Any] = self.defaults.sampling
        try:
            check_ids("eos_token_id", self.defaults.eos_token_ids, self.info.vocab_size)
            SamplingParams(**sampling)
        except ParameterError as error:
            raise ModelError(f"the model's generation defaults cannot be used: {error}") from error
        object.__setattr__(self, "fingerprint", fingerprint(self.info, self.adapter))

    @property
    def adapter_number(self) -> int:
        """Return the number of the adapter in the engine, 0 for none."""
        return 0 if self.adapter is None else self.adapter.number

    @property
    def media_roles(self) -> Mapping[str, frozenset[str]]:
        """Return the roles whose messages may have images or audio; no key for what the model does not take."""
        if self.chat is None:
            return {}
        unwritten = {"tool"} if self.chat.call_style is None else set()  # results are then told as text
        hears = self.info.audio is not None and self.info.audio.chunk_tokens < self.info.max_model_len
        taken = {"image": self.info.images is not None, "audio": hears}
        return {kind: roles - unwritten for kind, roles in self.chat.media_roles.items() if taken[kind] and roles}

    @property
    def max_prompt_bytes(self) -> int:
        """Return the number of bytes beyond which a text has more tokens than the context."""
        return self.info.max_model_len * self.longest_piece


def fingerprint(info: RunnerInfo, adapter: Adapter | None = None) -> str:
    """Return a name for all that answers depend on besides the request: version, scheme, a hash of weights and backend.

    Why these kernels were chosen is no part of it: that names a measured speed, which differs at each start.
    """
    about = {"version": version(), "max_model_len": str(info.max_model_len), **info.description}
    about.pop("kernels_reason", None)
    about["windows"] = [pool.window for pool in info.pools]
    if adapter is not None:
        about |= {"adapter": adapter.name, "adapter_files": adapter.content}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return f"noria-{version()}-{info.description.get('quantize', 'none')}-{digest[:8]}"


def longest_piece(tokenizer: Tokenizer) -> int:
    """Return the maximum number of bytes in the text of one token; the text of a control token is its name."""
    pieces = map(tokenizer.piece, range(tokenizer.vocab_size))
    return max(map(len, (*pieces, *(name.encode() for name in tokenizer.control))))
