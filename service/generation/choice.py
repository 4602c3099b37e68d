"""One choice of an answer: it turns the engine's updates of a sequence into text and logprobs."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from model.batch import TokenLogprob
from service.engine.mailbox import Mailbox
from service.engine.messages import Submit, Update
from service.errors.errors import ApiError, InvalidRequest
from service.generation.request import Echo, ModelRequest
from service.generation.text import TextStream
from service.generation.thinking import ThinkingStream

LEAST_LOGPROB = -9999.0
"""JSON has no infinities: -inf is sent as this number."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A token, its logprob (None: the first token of a prompt) and the index in the text at which it starts."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    start: int


class Delta(NamedTuple):
    """The part of a choice that one update adds.

    The first delta has `prompt_tokens` and `prompt_logprobs` (of all tokens but the first), if they are requested. The
    last has `finish` ("stop", "length", "repetition", "timeout" or "abort"), the stop string or the request's own stop
    token that ended the text, and the `embedding`. `thought` is text of the reasoning before the answer. `tokens` are
    generated ids, if they are requested. `progress` comes during prefill, before the first token.
    """

    text: str = ""
    scored: tuple[Scored, ...] = ()
    finish: str | None = None
    tokens: tuple[int, ...] = ()
    prompt_tokens: list[int] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    stop: str | None = None
    embedding: tuple[float, ...] = ()
    progress: dict[str, int] | None = None
    thought: str = ""
    stop_token: int | None = None

    @property
    def stop_reason(self) -> str | int | None:
        """Return the stop string or the request's stop token that ended the text, or vLLM's word for repetition."""
        if self.finish == "repetition":
            return "repetition_detected"
        return self.stop_token if self.stop is None else self.stop

    def __bool__(self) -> bool:
        anything = self.text or self.thought or self.scored or self.finish or self.tokens or self.progress
        return bool(anything) or self.prompt_logprobs is not None


def joined(deltas: Sequence[Delta]) -> Delta:
    """Join successive deltas of a choice."""
    return Delta(
        "".join(delta.text for delta in deltas),
        tuple(item for delta in deltas for item in delta.scored),
        deltas[-1].finish,
        tuple(token for delta in deltas for token in delta.tokens),
        deltas[0].prompt_tokens,
        deltas[0].prompt_logprobs,
        deltas[-1].stop,
        deltas[-1].embedding,
        deltas[-1].progress,
        "".join(delta.thought for delta in deltas),
        deltas[-1].stop_token,
    )


class Choice:
    """One sequence. `index` is its index in the answer, and `submit` has its prompt, without inputs."""

    def __init__(
        self,
        index: int,
        submit: Submit,
        echo: Echo | None,
        request: ModelRequest,
        mailbox: Mailbox,
        text: TextStream | ThinkingStream,
    ) -> None:
        self.index = index
        self.submit = submit
        self.mailbox = mailbox
        self.n_generated = 0
        self.sampled: list[int] = []  # every generated token, stop tokens too
        self.admitted = False  # whether the engine has begun with it
        self.last_token: float | None = None  # when the latest tokens arrived, by perf_counter
        self._echo = echo
        self._request = request
        self._scores = request.params.logprobs is not None
        self._text = text
        self._offset = 0
        self._opened = echo is None and not request.return_token_ids and request.prompt_logprobs is None
        self._prompt_logprobs: list[TokenLogprob] = []
        self._waiting: deque[TokenLogprob] = deque()  # logprobs of tokens whose text may still become a stop string
        self._total_logprob = 0.0
        self._cached = 0

    @property
    def n_thought(self) -> int:
        """Return the number of tokens of its thought so far."""
        return 0 if isinstance(self._text, TextStream) else self._text.n_thought

    @property
    def mean_logprob(self) -> float:
        """Return the mean over all generated tokens. It needs `SamplingParams.logprobs`."""
        return self._total_logprob / max(1, self.n_generated)

    def absorb(self, update: Update) -> Delta:
        """Return the delta of an update. At a stop string the sequence ends, and the engine aborts it."""
        if update.finish == "error":
            if update.failure is not None and update.fault is None:
                fields = self._request.grammar_fields
                names = f"{' and '.join(fields)} cannot be enforced any further: " if fields else ""
                raise InvalidRequest(names + update.failure, param=next(iter(fields), None), code="grammar_failed")
            raise ApiError(update.fault or "the engine could not compute this request", code="engine_error")
        self._prompt_logprobs += update.prompt_logprobs
        self._cached = self._cached if update.admitted is None else update.admitted.cached
        progress = None if update.processed is None else self._progress(update.processed)
        if not update.tokens and update.finish is None:
            return Delta(progress=progress)
        opening = None if self._opened else self._open()
        before = self.n_generated
        cut = self._push(update)
        finish = "stop" if cut else update.finish
        text, starts = self._text.take(final=finish is not None)
        thought = "" if isinstance(self._text, TextStream) else self._text.take_thought()
        scored = self._score(starts, end=finish is not None and not cut) if self._scores else ()
        tokens = update.tokens[: self.n_generated - before] if self._request.return_token_ids else ()
        stop = self._text.stopped_by
        ended_by = update.tokens[-1:] if update.finish == "stop" and not cut else ()
        own = next((token for token in ended_by if token in self._request.stop_token_ids), None)
        delta = Delta(text, scored, finish, tokens, None, None, stop, update.embedding, progress, thought, own)
        return delta if opening is None else joined((opening, delta))

    def _progress(self, processed: int) -> dict[str, int]:
        """Return counts of prompt tokens with llama.cpp's names: all, from the cache, and processed so far."""
        return {"total": len(self.submit.prompt), "cache": self._cached, "processed": processed}

    def _push(self, update: Update) -> bool:
        """Push the tokens of an update. True if a stop string ended the text. A stop token usually has no text."""
        params = self._request.params
        visible = len(update.tokens) - (update.finish == "stop" and not params.include_stop_str_in_output)
        n_tokens, ended = len(update.tokens), False
        for index, token in enumerate(update.tokens[:visible]):
            if self._text.push(token):
                n_tokens, ended = index + 1, True
                self.mailbox.close()
                break
        self.n_generated += n_tokens
        self.sampled += update.tokens[:n_tokens]
        if self._scores:
            scored = n_tokens if self._request.scores_end else min(n_tokens, visible)
            self._waiting.extend(update.logprobs[:scored])
            self._total_logprob += sum(item.logprob for item in update.logprobs[:n_tokens])
        return ended

    def _score(self, starts: Sequence[int], *, end: bool) -> tuple[Scored, ...]:
        """Return the tokens whose text goes out; at an `end` without a stop string, also the stop token."""
        offset = self._offset
        scored = [_scored(self._waiting.popleft(), offset + start) for start in starts]
        if end and self._waiting:
            scored.append(_scored(self._waiting.popleft(), offset + self._text.length))
        return tuple(scored)

    def _open(self) -> Delta:
        """Return the delta before the first token: the requested results for the prompt."""
        self._opened = True
        text = "" if self._echo is None else self._echo.text
        self._offset = len(text)
        n_top = self._request.prompt_logprobs
        return Delta(
            text,
            () if self._echo is None else self._echoed(self._echo.starts),
            prompt_tokens=self.submit.prompt if self._request.return_token_ids else None,
            prompt_logprobs=None if n_top is None else tuple(_trimmed(item, n_top) for item in self._prompt_logprobs),
        )

    def _echoed(self, starts: Sequence[int]) -> tuple[Scored, ...]:
        if not starts:
            return ()
        n_top = self._request.params.logprobs or 0
        later = zip(self._prompt_logprobs, starts[1:], strict=False)  # fewer, if the timeout came first
        return (
            Scored(self.submit.prompt[0], None, (), 0),
            *(_scored(_trimmed(item, n_top), start) for item, start in later),
        )


def _scored(item: TokenLogprob, start: int) -> Scored:
    return Scored(item.token, item.logprob, item.top, start)


def _trimmed(item: TokenLogprob, n_top: int) -> TokenLogprob:
    return item._replace(top=item.top[:n_top])
