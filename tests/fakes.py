"""A model that is arithmetic and a tokenizer that is a table: the engine and the service are tested without torch."""

import os
import socket
import threading
from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from model.batch import (
    BROKEN_NUMBERS,
    UNKNOWN,
    PoolSpec,
    RunnerInfo,
    Slice,
    SliceOutput,
    StepBatch,
    StepOutput,
    TokenLogprob,
)
from model.errors import ModelError
from model.media import AudioFormat, ImageFormat
from model.options import STEP_LIMITS, RunnerOptions
from model.sampling_params import SamplingParams
from model.tokenizers.base import Tokenizer
from service.engine.messages import Wire
from service.engine.supervision.process import EngineProcess
from service.engine.worker import Worker

VOCAB = 256
END = 0
IMAGES = ImageFormat(patch_size=2, merge=2, longest_side=64)
AUDIO = AudioFormat(n_mels=128, chunk_tokens=375, group=4)
FAULTY = 254
"""A sequence with this token ends with BROKEN_NUMBERS."""
NOTHING, GARBAGE = -2, -1
"""What a slot of a page holds that nobody has written; and that a slice with a fault has, or one that reads garbage."""
WRONG = 32
"""A token that only a slice which has read garbage samples."""
BROKEN_ADAPTER = "broken"
"""A file in the directory of an adapter that cannot be read."""
HURRY = threading.Event()
"""While it is set, a step of the model "slow" and the load of the model "large" take no time."""
BROKEN, LOST = (f'{{"grammars": [{{"lark_grammar": "start: \\"{word}\\""}}]}}' for word in ("broken", "lost"))
"""Grammars that fail in the engine: by their own fault, and by a fault of the server."""

Say = Callable[[Sequence[int], int], int]


def next_token(tokens: Sequence[int], choice: int = 0) -> int:
    """The fake model's next token after `tokens`: it depends on all of them, and is never END."""
    state = 17 + choice
    for start in range(0, len(tokens), 32):
        state = state_after(state, tuple(tokens[start : start + 32]))
    return 33 + state % 90


@lru_cache(2**16)
def state_after(state: int, tokens: tuple[int, ...]) -> int:
    """The state of the fake model after some more tokens. Those of a long text are not added again for each token."""
    for token in tokens:
        state = (state * 31 + token + 7) % 104729
    return state


def shade(path: str) -> int:
    """What an adapter adds to the number of a choice: the fake model then says something else. Its name decides."""
    return 1000 + sum(Path(path).name.encode())


def parrot(tokens: Sequence[int], choice: int = 0) -> int:
    """A model that repeats itself: 56, 57 or 58 after two tokens, by rules that change every 13 tokens."""
    return 56 + next_token((*tokens[-2:], len(tokens) // 13), choice) % 3


def recite(tokens: Sequence[int], choice: int = 0) -> int:
    """A model that repeats the last user message, as `tests/service/live.py` writes conversations."""
    text = bytes(tokens).decode("latin-1")
    start, end = text.rindex("u:") + 2, text.rindex(";a:")
    return tokens[start + len(text) - end - 3] if len(text) - end - 3 < end - start else END


def sample_token(say: Say, tokens: Sequence[int], params: SamplingParams, choice: int) -> int:
    """The next token; greedy requests sometimes reach an end token."""
    token = say(tokens, choice)
    return END if params.temperature == 0.0 and token % 29 == 0 and END in params.stop_token_ids else token


THINK, END_THINK = 250, 251
"""Mistral's marks of a thought, for tokenizers that have them."""
MARKED = (THINK, *b" a[/THINK]b ", END_THINK, *b"[THINK] c", END)


def think(tokens: Sequence[int], choice: int = 0) -> int:
    """A model that writes a thought between marks, with the names of marks in thought and answer."""
    start = bytes(tokens).rindex(b";a:") + 3
    return MARKED[len(tokens) - start]


def brief(tokens: Sequence[int], choice: int = 0) -> int:
    """A model whose answers end after some tokens."""
    return token if (token := next_token(tokens, choice)) % 8 else END


SAYS: Mapping[str, Say] = {"recite": recite, "marks": think, "brief": brief}


class FakeAdapters(dict[int, str]):
    """Paths by number."""

    def load(self, number: int, path: str) -> None:
        if not Path(path).is_dir() or (Path(path) / BROKEN_ADAPTER).exists():
            raise ModelError(f"{path}: no LoRA adapter")
        assert number not in self, "a number is used twice"
        self[number] = path

    def has(self, number: int) -> bool:
        return True

    def read_again(self, number: int, running: Collection[int]) -> None:
        pass

    def unload(self, number: int) -> None:
        self.pop(number, None)

    def fingerprint(self, number: int) -> str:
        return Path(self.get(number, f"adapter {number}")).name


class Page(NamedTuple):
    """A logical block of a sequence with an adapter: the token of each slot, NOTHING or GARBAGE."""

    block: int
    adapter: int
    tokens: list[int]


Content = dict[tuple[int, int], Page]
"""Of the pages of each pool."""


class FakePages:
    """The content of the fake model's pages as bytes: block, adapter, and tokens."""

    def __init__(self, page_size: int, content: Content) -> None:
        self._page_size, self._content = page_size, content

    def page_bytes(self, pool: int) -> int:
        return 4 * (2 + self._page_size)

    def read(self, pool: int, page: int) -> Callable[[], memoryview]:
        block, adapter, tokens = self._content[pool, page]
        assert NOTHING not in tokens, "a page is saved before it is full"
        data = array("i", [block, adapter, *tokens])
        return lambda: memoryview(data.tobytes())

    def write(self, pool: int, page: int, data: memoryview) -> None:
        block, adapter, *tokens = array("i", bytes(data))
        self._content[pool, page] = Page(block, adapter, tokens)


class FakeRunner:
    """A runner that stores tokens in pages and samples from them: a wrong page table gives a wrong token."""

    grammar_restarts = 0
    waits_for_grammars = False

    def __init__(self, info: RunnerInfo, step_seconds: float = 0.0, say: Say = next_token) -> None:
        self.info = info
        self.steps: list[StepBatch] = []
        self._say = say
        self._step_seconds = step_seconds
        self._content: Content = {}
        self.adapters = FakeAdapters()
        self.pages = FakePages(info.page_size, self._content)

    def prepare(self, params: SamplingParams) -> None:
        pass

    def idle(self) -> bool:
        return False

    def watch(self, lost: Callable[[str], None]) -> None:
        pass

    def close(self) -> None:
        pass

    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        output = self.step(batch)
        return lambda: output

    def step(self, batch: StepBatch) -> StepOutput:
        self.steps.append(batch)
        if self._step_seconds:
            HURRY.wait(self._step_seconds)
        assert len({item.sequence_id for item in batch.slices}) == len(batch.slices), "a sequence is twice in a step"
        # a list is searched in C, the view of a sequence's tokens is not
        slices = [item._replace(tokens=item.tokens[:]) for item in batch.slices]
        for copy in batch.copies:
            source = self._content[copy.pool, copy.source]
            self._content[copy.pool, copy.target] = source._replace(tokens=[*source.tokens])
        for item in slices:
            if 255 in item.tokens:
                raise RuntimeError("token 255 breaks the fake model")
            problem = self._problem(item)
            self._write(item, sound=(problem is None or problem.fault is None) and self._sees(item, item.start))
        return StepOutput(tuple(self._compute(item) for item in slices))

    def _write(self, item: Slice, sound: bool) -> None:
        size = self.info.page_size
        embedded = self._embedded(item)
        written = embedded if sound else [GARBAGE] * len(embedded)
        for pool, table in enumerate(item.tables):
            for block in range(item.start // size, -(-item.stop // size)):
                assert block >= table.first_block, "a position to write has no page"
                first, stop = max(item.start, block * size), min(item.stop, (block + 1) * size)
                tokens = self._page(pool, table.pages[block - table.first_block], block, item.adapter).tokens
                tokens[first - block * size : stop - block * size] = written[first - item.start : stop - item.start]

    def _page(self, pool: int, page: int, block: int, adapter: int) -> Page:
        """The page for this block. Nobody may read what another block has left in it, but for garbage."""
        held = self._content.get((pool, page))
        if held is None or held.block != block or held.adapter != adapter:
            left = held.tokens if held else [NOTHING] * self.info.page_size
            held = Page(block, adapter, [GARBAGE if token == GARBAGE else NOTHING for token in left])
            self._content[pool, page] = held
        return held

    def _compute(self, item: Slice) -> SliceOutput:
        if (problem := self._problem(item)) is not None:
            return problem
        if not self._sees(item, item.stop):
            return SliceOutput((WRONG,) if item.stop == len(item.tokens) else ())
        choice = item.choice + (shade(self.adapters[item.adapter]) if item.adapter else 0)
        scored: tuple[TokenLogprob, ...] = ()
        if item.scores_prompt:
            stop = min(item.stop, item.n_prompt - 1)
            scored = tuple(TokenLogprob(item.tokens[p + 1], -float(p + 1), rank=p + 2) for p in range(item.start, stop))
        known = len(item.tokens) - item.n_draft
        tokens: list[int] = []
        assert item.n_draft == 0 or (item.stop == len(item.tokens) and item.start < known), "a draft is in the way"
        if item.stop == len(item.tokens) and known - item.n_prompt < item.params.max_tokens:
            assert item.stop - item.n_prompt < item.params.max_tokens, "a draft longer than what may be drawn"
            for token in (*item.tokens[known:], None):
                tokens.append(sample_token(self._say, item.tokens[: known + len(tokens)], item.params, choice))
                if tokens[-1] != token:
                    break
        logprobs = []
        if item.params.logprobs is not None:
            for token in tokens:
                top = tuple((token + n, -0.5 - n) for n in range(item.params.logprobs))
                logprobs.append(TokenLogprob(token, -0.5, top))
        return SliceOutput(tuple(tokens), tuple(logprobs), scored, pooled=pooled(item))

    def _problem(self, item: Slice) -> SliceOutput | None:
        if item.params.grammar == BROKEN:
            return SliceOutput(failure="the grammar is broken")
        if item.params.grammar == LOST:
            return SliceOutput(fault="the process that follows grammars was lost")
        if FAULTY in item.tokens:
            return SliceOutput(fault=BROKEN_NUMBERS)
        if item.adapter and item.adapter not in self.adapters:
            return SliceOutput(fault=f"adapter {item.adapter} is not in memory")
        return None

    def _sees(self, item: Slice, stop: int) -> bool:
        """Whether no position before `stop` inside the window is garbage. Each must be on its page, with its token."""
        size = self.info.page_size
        for pool, (spec, table) in enumerate(zip(self.info.pools, item.tables, strict=True)):
            first = 0 if spec.window is None else max(0, item.start - spec.window + 1)
            found: list[int] = []
            for block in range(first // size, -(-stop // size)):
                found += self._page(pool, table.pages[block - table.first_block], block, item.adapter).tokens
            found = found[first % size : first % size + stop - first]
            wanted = self._wanted(item, first, stop)
            if found != wanted:  # the first position that differs decides
                held, expected = next(pair for pair in zip(found, wanted, strict=True) if pair[0] != pair[1])
                assert held == GARBAGE, f"a page holds {held}, not {expected}"
                return False
        return True

    def _embedded(self, item: Slice) -> Sequence[int]:
        """What the network reads at the positions of a slice: its tokens."""
        return item.tokens[item.start : item.stop]

    def _wanted(self, item: Slice, start: int, stop: int) -> list[int]:
        """What the network should have read at these positions."""
        return [*item.tokens[start:stop]]


class AheadRunner(FakeRunner):
    """A runner that runs ahead as a device does: it knows its sampled tokens before the host reads them."""

    def __init__(self, info: RunnerInfo, say: Say = next_token) -> None:
        super().__init__(replace(info, runs_ahead=True), say=say)
        self.max_in_flight = 0
        self.n_ahead = 0  # steps that were launched while another was in flight
        self._in_flight = 0
        self._sampled: dict[int, int] = {}

    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        self.n_ahead += self._in_flight > 0
        self._in_flight += 1
        self.max_in_flight = max(self._in_flight, self.max_in_flight)
        before = self._sampled
        output = self.step(self._resolved(batch, before))
        sampled = zip(batch.slices, output.slices, strict=True)
        self._sampled = {item.sequence_id: result.tokens[-1] for item, result in sampled if result.tokens}

        def wait() -> StepOutput:
            self._in_flight -= 1
            return self.read(output, lambda: self.step(replace(self._resolved(batch, before), copies=())))

        return wait

    def read(self, output: StepOutput, again: Callable[[], StepOutput]) -> StepOutput:
        """The result of a step; a runner that loses it computes it `again` from its slices."""
        return output

    def _resolved(self, batch: StepBatch, sampled: Mapping[int, int]) -> StepBatch:
        """The slices with the tokens that the step before sampled in place of UNKNOWN.

        A sequence for which it sampled none has ended with a fault: any token will do.
        """

        def tokens(item: Slice) -> list[int]:
            *before, last = item.tokens
            return [*before, sampled.get(item.sequence_id, 1) if last == UNKNOWN else last]

        return replace(batch, slices=tuple(item._replace(tokens=tokens(item)) for item in batch.slices))


class PipelineRunner(FakeRunner):
    """A runner of `info.pipeline` stages, which computes as late as it may, and checks what is in flight."""

    def __init__(self, info: RunnerInfo, step_seconds: float = 0.0, say: Say = next_token) -> None:
        super().__init__(info, step_seconds, say)
        self.max_in_flight = 0
        self.in_flight: deque[StepBatch] = deque()

    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        latest = {id(item.counts): item for flight in self.in_flight for item in flight.slices}
        for item in batch.slices:
            before = latest.get(id(item.counts))  # not by its number: it may have been submitted again
            assert before is None or before.stop == item.start, "a chunk does not follow the one in flight"
            assert before is None or item.start < len(before.tokens) - before.n_draft, "a token is not known yet"
        self.in_flight.append(batch)
        self.max_in_flight = max(self.max_in_flight, len(self.in_flight))
        assert self.max_in_flight <= self.info.pipeline
        return lambda: self._land(batch)

    def _land(self, batch: StepBatch) -> StepOutput:
        assert self.in_flight.popleft() is batch, "steps are read in another order"
        try:
            return self.step(batch)
        except Exception:
            self.in_flight.clear()
            raise


def pooled(item: Slice) -> tuple[float, ...]:
    """The fake hidden state of a position is (its token, the position, 1)."""
    where = {"mean": range(item.start, item.stop), "last": range(item.n_prompt - 1, item.stop)}
    if item.params.embed is None or not where[item.params.embed]:
        return ()
    return tuple(
        float(sum(part)) for part in zip(*((item.tokens[p], p, 1) for p in where[item.params.embed]), strict=True)
    )


def make_info(
    *,
    page_size: int = 4,
    pools: Sequence[tuple[int | None, int]] = ((None, 64),),
    max_model_len: int = 128,
    limits: tuple[int, int] = STEP_LIMITS["cpu"],
    max_adapters: int = 4,
) -> RunnerInfo:
    return RunnerInfo(
        page_size=page_size,
        pools=tuple(PoolSpec(window, n_pages) for window, n_pages in pools),
        max_model_len=max_model_len,
        vocab_size=VOCAB,
        dim=3,
        max_sequences=limits[0],
        max_step_tokens=limits[1],
        description={"device": "fake", "attention": "fake"},
        max_adapters=max_adapters,
    )


def create_fake(progress: Callable[[str, float], None], **options: object) -> FakeRunner:
    """What an engine loads in tests. `model`: "fake", "recite", "marks", "brief", "slow" (20 ms a step), "slow recite",
    "large" (loads for a minute), "images", "slow images" or "audio" (with an encoder), "broken" or "crash"."""
    progress("loading weights", 0.5)
    model = options["model"]
    if model == "large":
        HURRY.wait(60)
    if model == "broken":
        raise ModelError("found nothing at 'broken', expected a model")
    if model == "crash":
        raise RuntimeError("the fake model cannot be built")
    length = int(options.get("max_model_len") or (4096 if model in ("slow", "audio") else 512))  # type: ignore[call-overload]
    limits = RunnerOptions("", max_sequences=options["max_sequences"], max_step_tokens=options["max_step_tokens"])  # type: ignore[arg-type]
    info = make_info(page_size=16, pools=((None, 512),), max_model_len=length, limits=limits.step_limits("cpu"))
    words = str(model).split()
    if "images" in words:
        info = replace(info, images=IMAGES, media_tokens=64)
    if model == "audio":
        info = replace(info, audio=AUDIO, media_tokens=4 * AUDIO.chunk_tokens)
    runner = FakeRunner(info, 0.02 if "slow" in words else 0.0, SAYS.get(words[-1], next_token))
    for number, path in options.get("adapters", ()):  # type: ignore[attr-defined]
        runner.adapters.load(number, path)
    return runner


class EngineThread(EngineProcess):
    """An engine on a thread of this process, without start-up cost and isolation. It has all methods of its own."""

    def __init__(self, runner: str) -> None:
        self._runner = runner
        self._thread: threading.Thread | None = None
        self._wire: Wire | None = None
        self.killed = False

    def spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._wire = Wire(theirs)
        worker = Worker(self._wire, end=lambda: None)
        self._thread = threading.Thread(target=worker.run, args=[self._runner], name="noria-engine", daemon=True)
        self._thread.start()
        return ours

    @property
    def started(self) -> bool:
        return self._wire is not None

    def stopped(self) -> bool:
        return False

    def kill(self) -> None:
        """Close the wire; the loop ends at its next message. A thread in a step finishes that step first."""
        self.killed = True
        if self._wire is not None:
            self._wire.close()

    def wait(self) -> str:
        if self._thread is not None:
            self._thread.join(timeout=5)
        return "thread ended"


class HangingRunner(FakeRunner):
    """A runner that sleeps in its third step."""

    def step(self, batch: StepBatch) -> StepOutput:
        if len(self.steps) == 2:
            threading.Event().wait(30)
        return super().step(batch)


class WaitingRunner(FakeRunner):
    """A runner whose `prepare` waits until the test allows it."""

    may = threading.Event()

    def prepare(self, params: SamplingParams) -> None:
        self.may.wait(30)


WAITING = WaitingRunner(make_info(page_size=16, pools=((None, 512),), max_model_len=512))


def create_waiting(progress: Callable[[str, float], None], **options: object) -> WaitingRunner:
    return WAITING


def create_hanging(progress: Callable[[str, float], None], **options: object) -> HangingRunner:
    return HangingRunner(make_info(page_size=16, pools=((None, 512),), max_model_len=512))


def create_broken(progress: Callable[[str, float], None], **options: object) -> FakeRunner:
    raise ModelError("the model is broken")


def create_exiting(progress: Callable[[str, float], None], **options: object) -> FakeRunner:
    """Exit from the process while the model loads."""
    os._exit(3)


class IntegerTokenizer(Tokenizer):
    """One token a byte, 1..255; 0 ends a text. Bytes from 128 on build UTF-8 sequences as real tokenizers do."""

    vocab_size = VOCAB
    bos_id: int | None = None
    eos_id: int | None = END
    strips_leading_space = False
    control: dict[str, int] = {"<end>": END}  # noqa: RUF012

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        parts = text.split("<end>") if parse_control else [text]
        tokens: list[int] = []
        for index, part in enumerate(parts):
            tokens += [END] if index else []
            tokens += part.encode()
        return tokens

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token else b""

    def name(self, token: int) -> str:
        return self.piece(token).decode("latin-1") if token else "<end>"
