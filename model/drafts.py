"""What drafts for a model: a narrower copy of its weights, or a smaller model of the same tokenizer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

from model.attention.cache import PagePools
from model.attention.rope import RopeTables
from model.batch import PoolSpec
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.errors import OptionError, quoted
from model.linear.schemes import Scheme
from model.machine.device import name_of
from model.memory import sizes as memory
from model.network.adapters import AdapterStore
from model.network.compiled import compiled_network
from model.network.transformer import Transformer
from model.options import RunnerOptions, of_draft_model
from model.setup import Setup, choose
from model.step.drafting import DraftCache, Drafter
from model.step.executors.compiled import CompiledExecutor
from model.step.head import OutputHead
from model.step.media import Encodings
from model.tokenizers.load import load_tokenizer

Read = Callable[[Setup, Checkpoint], Transformer]
"""Reads the weights of a network."""
Make = Callable[[Setup, PagePools, RopeTables, AdapterStore, int, tuple[PoolSpec, ...]], Drafter]
"""Makes the drafter of a model, whose pages and adapters these are, for sequences of a length, with these pools."""


class DraftModel(NamedTuple):
    """A smaller model that drafts, and how it runs."""

    setup: Setup
    checkpoint: Checkpoint

    @property
    def token_bytes(self) -> int:
        """Return the bytes of its keys and values for a position."""
        return self.setup.pool_sizes.token_bytes

    @property
    def n_bytes(self) -> int:
        """Return the bytes of its weights."""
        setup = self.setup
        return memory.weight_bytes(setup.shard, setup.scheme, name_of(setup.dtype), self.checkpoint.own_bits)


def open_draft_model(options: RunnerOptions) -> DraftModel | None:
    """Open the model of --draft-model, if there is one, and choose how it runs. Raises ModelError and OptionError."""
    if options.draft_model is None:
        return None
    if options.draft == "self":
        raise OptionError("--draft self and --draft-model exclude each other: leave one of them out")
    checkpoint = open_checkpoint(Path(options.draft_model))
    return DraftModel(choose(checkpoint, of_draft_model(options)), checkpoint)


def check_draft_model(draft: DraftModel, setup: Setup) -> None:
    """Raise OptionError for a model that cannot draft for the one of `setup`, with the reason."""
    name = f"--draft-model {quoted(Path(draft.setup.options.model).name)}"
    if not (setup.scheme.compiled and draft.setup.scheme.compiled) or setup.shard.place.layout.size > 1:
        raise OptionError(f"{name} needs both models in the compiled kernels of a CPU, in one rank; leave it out")
    kept = memory.widest(setup.config)
    if kept is not None and any(window is None or window > kept for window in draft.setup.config.windows):
        raise OptionError(f"{name} attends to more than the {kept} tokens that the model keeps; leave it out")
    if (different := _difference(setup.options.model, draft.setup.options.model)) is not None:
        raise OptionError(f"{name} has another vocabulary: {different}; choose a model of the same tokenizer")


def _difference(model: str, draft: str) -> str | None:
    """Return the first difference of two vocabularies; None if a draft token is always the same token."""
    if model == draft:
        return None
    one, other = (load_tokenizer(Path(directory)) for directory in (model, draft))
    if one.vocab_size != other.vocab_size:
        return f"{other.vocab_size} tokens, the model has {one.vocab_size}"
    differ = (token for token in range(one.vocab_size) if one.piece(token) != other.piece(token))
    if (token := next(differ, None)) is None:
        return None
    return f"token {token} is {quoted(other.piece(token))}, in the model {quoted(one.piece(token))}"


def copy_drafter(setup: Setup, scheme: Scheme, model: Transformer, checkpoint: Checkpoint, read: Read) -> Make:
    """Read the weights again in this scheme. The copy has the embeddings of the model, and no encoder."""
    narrow = read(replace(setup, scheme=scheme), checkpoint)
    narrow.tok_embeddings, narrow.encoder = model.tok_embeddings, None

    def make(
        target: Setup,
        pools: PagePools,
        tables: RopeTables,
        adapters: AdapterStore,
        length: int,
        specs: tuple[PoolSpec, ...],
    ) -> Drafter:
        return Drafter(_executor(target, narrow, pools, tables, adapters))

    return make


def model_drafter(draft: DraftModel, read: Read) -> Make:
    """Read a draft model. Its pages have the numbers of those in the pool of the model that keeps most."""
    setup = draft.setup
    network = read(setup, draft.checkpoint)
    network.encoder = None

    def make(
        target: Setup,
        pools: PagePools,
        tables: RopeTables,
        adapters: AdapterStore,
        length: int,
        specs: tuple[PoolSpec, ...],
    ) -> Drafter:
        most = setup.config.max_position
        if length > most:
            raise OptionError(
                f"--draft-model has a context of {most} tokens, not {length}; choose --max-model-len {most}"
            )
        shared = target.config.pool_windows.index(memory.widest(target.config))
        own = tuple(PoolSpec(window, specs[shared].n_pages) for window in setup.config.pool_windows)
        cache = PagePools.allocate(
            setup.config, own, lambda shape: setup.attention.allocate(shape, setup.kv_dtype, setup.device)
        )
        positions = RopeTables.build(setup.config, length, setup.device)
        nothing = AdapterStore(_no_adapter, 0)
        return Drafter(_executor(setup, network, cache, positions, nothing), DraftCache(cache, shared))

    return make


def _executor(
    setup: Setup, network: Transformer, pools: PagePools, tables: RopeTables, adapters: AdapterStore
) -> CompiledExecutor:
    """Make what computes passes, with the sampling of the model but for grammars."""
    head = OutputHead(network, adapters, (), setup.kernels)
    compiled = compiled_network(network, setup.attention, pools, tables, head.block_rows)
    if compiled is None:
        raise OptionError(f"drafts need --attention paged, {setup.attention_name} serves here; leave them out")
    return CompiledExecutor(compiled, Encodings(None), head)


def _no_adapter(path: Path) -> tuple[str, NoReturn]:
    raise AssertionError("a draft model has no adapters")
