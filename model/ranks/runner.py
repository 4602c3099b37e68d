"""ParallelRunner: rank 0's runner. It sends each step to the other ranks, and computes its own part."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

from model.batch import SliceOutput, StepBatch, StepOutput
from model.errors import ModelError
from model.machine import records
from model.ranks.followers import Followers
from model.ranks.links import packed
from model.ranks.part import PartRunner
from model.ranks.plans import PlanWriter
from model.sampling_params import SamplingParams
from model.sharding.layout import RankPlace
from model.step.runner import fault_of

T = TypeVar("T")

NO_ADAPTERS = "LoRA adapters cannot be used with a model that several ranks share; serve it with one rank"

_output = records.record(SliceOutput)


class NoAdapters:
    """The `model.batch.LoadedAdapters` of a group of ranks: none can be loaded."""

    def load(self, number: int, path: str) -> None:
        raise ModelError(NO_ADAPTERS)

    def unload(self, number: int) -> None:
        """Do nothing: there is none."""

    def has(self, number: int) -> bool:
        return True

    def read_again(self, number: int, running: Collection[int]) -> None:
        raise ModelError(NO_ADAPTERS)

    def fingerprint(self, number: int) -> str:
        raise ModelError(NO_ADAPTERS)


class ParallelRunner:
    """The `model.batch.Runner` of a group of ranks. `own` computes rank 0's part of each step."""

    def __init__(self, own: PartRunner, place: RankPlace, followers: Followers) -> None:
        self.info, self.adapters, self.pages = own.info, NoAdapters(), own.pages
        self._own = own
        self._layout = place.layout
        self._followers = followers
        self._writer = PlanWriter()
        self._grammar_restarts = 0
        later = (other for other in self._layout.places() if not other.is_first)
        self._without_encoder = frozenset(other.rank for other in later)
        self._heads = [other.rank for other in self._layout.places() if other.tensor_rank == 0 and not other.is_first]

    @property
    def grammar_restarts(self) -> int:
        return self._own.grammar_restarts if self._samples else self._grammar_restarts

    @property
    def waits_for_grammars(self) -> bool:
        return self._own.waits_for_grammars

    @property
    def _samples(self) -> bool:
        return self._layout.sampler == 0

    def prepare(self, params: SamplingParams) -> None:
        """Compile the grammar where tokens are sampled. Any thread may call it but the one that launches."""
        if self._samples:
            self._own.prepare(params)
        elif params.grammar is not None:
            self._followers.call(self._layout.sampler, "prepare", params.grammar)

    def step(self, batch: StepBatch) -> StepOutput:
        """Launch and wait."""
        return self.launch(batch)()

    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        """Start a step on all ranks. An error ends them all, because they cannot agree otherwise."""
        plan, inputs = self._writer.write(batch)
        without = packed("plan", plan)
        self._followers.send_plan(packed("plan", plan, inputs) if inputs else without, self._without_encoder, without)
        finish = self._guarded(partial(self._own.launch, batch))
        if self._samples:
            finish = partial(self._guarded, finish)
        elif batch.slices:
            finish = self._read
        return partial(_with_faults, finish, batch, faults) if (faults := self._own.media_faults) else finish

    def watch(self, lost: Callable[[str], None]) -> None:
        self._followers.watch(lost)

    def close(self) -> None:
        self._followers.send("goodbye")

    def idle(self) -> bool:
        """Return False: there are no graphs to capture."""
        return False

    def _read(self) -> StepOutput:
        """Read the output of the oldest unread step from the rank that samples."""
        rows, self._grammar_restarts = self._followers.take(self._layout.sampler, "output")
        return StepOutput(tuple(map(_output, rows)))

    def _guarded(self, compute: Callable[[], T]) -> T:
        try:
            return compute()
        except Exception as error:
            self._followers.end(error)


def _with_faults(finish: Callable[[], StepOutput], batch: StepBatch, media: Mapping[int, str]) -> StepOutput:
    """Return the output of `finish`, but for slices whose media item has a fault: they were computed without it."""
    faults = (fault_of(item, media, {}) for item in batch.slices)
    pairs = zip(finish().slices, faults, strict=True)
    return StepOutput(tuple(output if fault is None else SliceOutput(fault=fault) for output, fault in pairs), media)
