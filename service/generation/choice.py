"""One choice of an answer: it turns the engine's updates of a sequence into text and logprobs."""

import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from model.batch import TokenLogprob
from model.tokenizers.base import Tokenizer
from service.engine.mailbox import Mailbox
from service.engine.messages import Admitted, Submit, Update
from service.errors.errors import ApiError, InvalidRequest
from service.generation.request import Echo, ModelRequest
from service.generation.text import TextStream
from service.generation.usage import Meter

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
    generated ids, if they are requested. `progress` comes during prefill, before the first token. `known`:
    the client has it.
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
    known: bool = False

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


def split(update: Update) -> list[Update]:
    """Return updates of one token each, which together are this one."""
    n_tokens = len(update.tokens)
    if n_tokens < 2:
        return [update]
    parts = [Update(update.id, update.tokens[at : at + 1], update.logprobs[at : at + 1]) for at in range(n_tokens)]
    about_prompt = {name: getattr(update, name) for name in ("prompt_logprobs", "admitted", "processed", "draft")}
    at_end = {name: getattr(update, name) for name in ("finish", "failure", "fault", "embedding")}
    return [parts[0]._replace(**about_prompt), *parts[1:-1], parts[-1]._replace(**at_end)]


class Choice:
    """One sequence: it reads its mailbox, and counts what it takes with the `meter` of the request.

    `index` is its index in the answer, `submit` has its prompt, without inputs, and `finish` says why it has ended.
    """

    def __init__(
        self,
        index: int,
        submit: Submit,
        echo: Echo | None,
        request: ModelRequest,
        mailbox: Mailbox,
        tokenizer: Tokenizer,
        meter: Meter,
    ) -> None:
        params = request.params
        self.index = index
        self.submit = submit
        self.mailbox = mailbox
        self.sampled: list[int] = []  # every generated token, stop tokens too
        self.admitted: Admitted | None = None  # once the engine has begun with it
        self.finish: str | None = None
        self._known = request.known[index] if request.known else ()
        self._echo = echo
        self._request = request
        self._meter = meter
        self._scores = params.logprobs is not None
        self._text = TextStream(
            tokenizer,
            params.stop,
            min_tokens=params.min_tokens,
            include_stop=params.include_stop_str_in_output,
            strip_leading_space=request.starts_message and tokenizer.strips_leading_space,
            keep_control=request.visible_control,
            reasoning=request.reasoning,
        )
        self._offset = 0
        self._opened = echo is None and not request.return_token_ids and request.prompt_logprobs is None
        self._prompt_logprobs: list[TokenLogprob] = []
        self._waiting: deque[TokenLogprob] = deque()  # logprobs of tokens whose text may still become a stop string
        self._total_logprob = 0.0
        self._latest: float | None = None  # when the latest tokens arrived, by perf_counter

    @property
    def mean_logprob(self) -> float:
        """Return the mean over all generated tokens. It needs `SamplingParams.logprobs`."""
        return self._total_logprob / max(1, len(self.sampled))

    async def deltas(self) -> AsyncIterator["Event"]:
        """Yield its deltas as they arrive. Raises what the engine raises, and an error that ends it."""
        for token in self._known:
            n_thought = self._text.n_thought
            delta = self._absorb(Update(self.mailbox.id, (token,)))._replace(known=True)
            self._meter.know(self._text.n_thought - n_thought)
            if delta:
                yield self, delta
            if delta.finish is not None:
                self.finish = delta.finish
                return
        async for update in self.mailbox:
            for part in split(update) if self._request.by_token else (update,):
                n_tokens, n_thought = len(self.sampled), self._text.n_thought
                delta = self._absorb(part)
                self._count(part, len(self.sampled) - n_tokens, self._text.n_thought - n_thought)
                if delta:
                    yield self, delta
                if delta.finish is not None:
                    self.finish = delta.finish
                    return

    def _absorb(self, update: Update) -> Delta:
        """Return the delta of an update. At a stop string the sequence ends, and the engine aborts it."""
        if update.finish == "error":
            raise self._error(update)
        self._prompt_logprobs += update.prompt_logprobs
        self.admitted = update.admitted or self.admitted
        progress = None if update.processed is None else self._progress(update.processed)
        if not update.tokens and update.finish is None:
            return Delta(progress=progress)
        opening = None if self._opened else self._open()
        before = len(self.sampled)
        cut = self._push(update)
        finish = "stop" if cut else update.finish
        text, starts, thought = self._text.take(final=finish is not None)
        scored = self._score(starts, end=finish is not None and not cut) if self._scores else ()
        tokens = tuple(self.sampled[before:]) if self._request.return_token_ids else ()
        stop = self._text.stopped_by
        ended_by = update.tokens[-1:] if update.finish == "stop" and not cut else ()
        own = next((token for token in ended_by if token in self._request.stop_token_ids), None)
        delta = Delta(text, scored, finish, tokens, None, None, stop, update.embedding, progress, thought, own)
        return delta if opening is None else joined((opening, delta))

    def _error(self, update: Update) -> ApiError:
        """Return the error of a sequence that the engine could not complete."""
        if update.failure is None or update.fault is not None:
            return ApiError(update.fault or "the engine could not compute this request", code="engine_error")
        fields = self._request.grammar_fields
        names = f"{' and '.join(fields)} cannot be enforced any further: " if fields else ""
        return InvalidRequest(names + update.failure, param=next(iter(fields), None), code="grammar_failed")

    def _progress(self, processed: int) -> dict[str, int]:
        """Return counts of prompt tokens with llama.cpp's names: all, from the cache, and processed so far."""
        cached = 0 if self.admitted is None else self.admitted.cached
        milliseconds = round((time.perf_counter() - self._meter.submitted) * 1000)
        return {"total": len(self.submit.prompt), "cache": cached, "processed": processed, "time_ms": milliseconds}

    def _count(self, update: Update, n_tokens: int, n_thought: int) -> None:
        """Count an update that has brought so many tokens, and so many of them of the thought."""
        if update.admitted is not None:
            self._meter.admit(update.admitted, self.submit, self.index)
        if update.draft is not None:
            self._meter.verify(update.draft)
        if n_tokens:
            self._latest = self._meter.generate(n_tokens, n_thought, self._latest)

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


Event = tuple[Choice, Delta]


def _scored(item: TokenLogprob, start: int) -> Scored:
    return Scored(item.token, item.logprob, item.top, start)


def _trimmed(item: TokenLogprob, n_top: int) -> TokenLogprob:
    return item._replace(top=item.top[:n_top])
