"""One sequence of a request: what was asked, and the engine's updates turned into text and scores."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from model.batch import TokenLogprob
from model.sampling_params import SamplingParams
from model.tokenizers.base import Tokenizer
from service.engine.mailbox import Mailbox
from service.engine.messages import Update
from service.errors import ApiError
from service.text import TextStream


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the text to give back before the answer (None: no echo)."""

    tokens: list[int]
    echo: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """One request, checked, tokenized and ready for the engine: `n` choices of each prompt."""

    prompts: tuple[Prompt, ...]
    params: SamplingParams
    n: int
    starts_message: bool = False


@dataclass(frozen=True, slots=True)
class Scored:
    """A token of the text, its logprob (None: the first of a prompt) and where in the text it starts."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    start: int


class Delta(NamedTuple):
    """What one update added to a choice. `finish` is "stop" or "length" with the last one, `stop` the stop string."""

    text: str = ""
    scored: tuple[Scored, ...] = ()
    finish: str | None = None
    stop: str | None = None
    embedding: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.scored or self.finish)


class Choice:
    """One sequence: turns the engine's updates into text. `index` is its place in the answer."""

    def __init__(self, index: int, prompt: Prompt, params: SamplingParams, mailbox: Mailbox, text: TextStream) -> None:
        self.index = index
        self.mailbox = mailbox
        self.n_generated = 0
        self.last_token: float | None = None  # when the latest tokens came, on the clock of perf_counter
        self._prompt = prompt
        self._params = params
        self._text = text
        self._offset = 0
        self._echoed = prompt.echo is None
        self._prompt_logprobs: list[TokenLogprob] = []
        self._waiting: deque[TokenLogprob] = deque()  # logprobs of tokens whose text is held back

    def absorb(self, update: Update, tokenizer: Tokenizer) -> Delta:
        """Take an update in. With a stop string the sequence ends here: the engine is told to forget it."""
        if update.finish == "error":
            raise ApiError("the engine could not compute this request", code="engine_error")
        self._prompt_logprobs += update.prompt_logprobs
        if not update.tokens and update.finish is None:
            return Delta()
        echo = Delta() if self._echoed else self._echo(tokenizer)
        finish = "stop" if self._push(update) else update.finish
        text, starts = self._text.take(final=finish is not None)
        scored = () if self._params.logprobs is None else tuple(map(self._score, starts))
        return Delta(echo.text + text, echo.scored + scored, finish, self._text.stopped_by, update.embedding)

    def _push(self, update: Update) -> bool:
        """Push the update's tokens; whether a stop string ended the text. A stop token has no text."""
        visible = len(update.tokens) - (update.finish == "stop")
        if self._params.logprobs is not None:
            self._waiting.extend(update.logprobs[:visible])
        for index, token in enumerate(update.tokens[:visible]):
            if self._text.push(token):
                self.n_generated += index + 1
                self.mailbox.close()
                return True
        self.n_generated += len(update.tokens)
        return False

    def _score(self, start: int) -> Scored:
        item = self._waiting.popleft()
        return Scored(item.token, item.logprob, item.top, self._offset + start)

    def _echo(self, tokenizer: Tokenizer) -> Delta:
        self._echoed = True
        text = self._prompt.echo or ""
        self._offset = len(text)
        if self._params.prompt_logprobs is None:
            return Delta(text)
        stream = TextStream(tokenizer, strip_leading_space=tokenizer.strips_leading_space, keep_control=True)
        for token in self._prompt.tokens:
            stream.push(token)
        starts = stream.take(final=True).starts
        scored = [Scored(self._prompt.tokens[0], None, (), 0)]
        scored += [
            Scored(item.token, item.logprob, item.top, min(start, len(text)))
            for item, start in zip(self._prompt_logprobs, starts[1:], strict=True)
        ]
        return Delta(text, tuple(scored))
