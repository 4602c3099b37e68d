"""Load a model: open its checkpoint, choose how it runs, size its cache, read its weights, warm it up."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from model.attention.cache import PagePools
from model.attention.rope import RopeTables
from model.batch import PoolSpec, PrefixFiles, RunnerInfo
from model.checkpoint.files import Progress
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.checkpoint.quantized.config import OwnBits
from model.checkpoint.stored import Stored
from model.drafts import DraftModel, Make, check_draft_model, copy_drafter, model_drafter, open_draft_model
from model.errors import MemoryLack, ModelError, OptionError, one_line
from model.grammar.archive import packer
from model.kernels.cpu import native
from model.linear import selection as linear
from model.linear.schemes import stored_as
from model.machine.device import choose_device, free_bytes, name_of, of_memory, unused_gpu
from model.machine.gpu import driver
from model.machine.helper import First
from model.machine.host import choose_threads, return_free_memory
from model.media import AudioFormat, ImageFormat
from model.memory import profile
from model.memory import sizes as memory
from model.memory.media import check_media
from model.network import weights
from model.network.adapters import AdapterStore, count_values, read_adapter
from model.network.compiled import compiled_network
from model.network.group import Group
from model.network.kernels import leave_to_torch
from model.network.tensors import elsewhere
from model.network.transformer import Transformer
from model.options import DRAFT_TOKENS, RunnerOptions, check_limits
from model.prefixes import prefix_files
from model.setup import Setup, choose
from model.step.executors import Executor
from model.step.executors.compiled import CompiledExecutor
from model.step.executors.torch import TorchExecutor
from model.step.head import OutputHead
from model.step.masks import Masks
from model.step.media import Encodings
from model.step.runner import ModelRunner
from model.warming import warm

RETURN_AFTER = 2**27
"""Values that are loaded before free memory is returned to the system: a call takes milliseconds."""


def create(progress: Progress, **options: Any) -> ModelRunner:
    """Load a model with `RunnerOptions(**options)`. Memory is checked before weights are read.

    Raises ModelError for a checkpoint that cannot be loaded, OptionError for an option that cannot be used, or where
    memory runs out although the check found enough: other programs may have taken it.
    """
    chosen = RunnerOptions(**options)
    check_options(chosen)
    progress("checking memory", 0.0)
    checkpoint = open_checkpoint(Path(chosen.model), max_model_len=chosen.max_model_len)
    with memory_errors():
        return load_from(checkpoint, chosen, progress)


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise MemoryLack for errors inside for want of memory."""
    try:
        yield
    except Exception as error:
        if not of_memory(error):
            raise
        raise MemoryLack(
            f"memory ran out while the model was loaded ({one_line(error)}); free memory, or lower "
            "--cache-memory or --gpu-memory-utilization"
        ) from error


def load_from(checkpoint: Checkpoint, options: RunnerOptions, progress: Progress) -> ModelRunner:
    """Choose, size, read, warm up."""
    draft = open_draft_model(options)
    setup = choose(checkpoint, options, draft_bytes=draft.token_bytes if draft else 0)
    if draft is not None:
        check_draft_model(draft, setup)
    runner = load(setup, checkpoint, progress, draft=draft)
    progress("warming up", 0.0)
    with torch.inference_mode():
        warm(runner, setup, progress)
    return runner


Agree = Callable[[Sequence[int]], Sequence[int]]
"""The least of each number over all ranks."""


class Membership(NamedTuple):
    """The group of a rank while it loads, the number of ranks of its host, which share the memory, and its runner."""

    group: Group | None = None
    agree: Agree = tuple
    n_local: int = 1
    runner: Callable[..., Any] = ModelRunner


ALONE = Membership()


@torch.inference_mode()
def load(
    setup: Setup,
    checkpoint: Checkpoint,
    progress: Progress,
    member: Membership = ALONE,
    draft: DraftModel | None = None,
) -> ModelRunner:
    """Load what this rank holds, and the `draft` model.

    On a GPU the cache gets the memory that weights and a measured step leave.
    """
    options = setup.options
    gpu = profile.watched(setup.device) if options.cache_memory is None else None
    reserved = _reserved(setup) + (draft.n_bytes if draft else 0)
    sizes = size(setup, checkpoint.own_bits, gpu, reserved, member.n_local)
    (length,) = member.agree((sizes.length,))
    sizes = sizes._replace(length=length)
    model = read(setup, checkpoint, progress, member.group)
    drafter = _drafter(setup, model, checkpoint, draft, progress)
    adapters = _read_adapters(setup, progress)
    archive = packer(Path(options.model), options.template)
    masks = Masks(First({"size": setup.config.vocab_size}, archive), setup.config.vocab_size)
    about = _describe(setup, checkpoint), prefix_files(setup, checkpoint)
    build = partial(_runner, setup, model, drafter, masks, adapters, *about, member.runner)
    if gpu is not None:
        progress("measuring a step", 0.0)
        sizes = _measure(setup, sizes, gpu, build, reserved - adapters.n_bytes)
    length, *pages = member.agree((sizes.length, *(pool.n_pages for pool in setup.pool_sizes.pools(*sizes))))
    return build(length, tuple(map(PoolSpec, setup.config.pool_windows, pages)))


class Sizes(NamedTuple):
    """The longest sequence to serve, in tokens, and the bytes for keys and values."""

    length: int
    cache: int


def size(setup: Setup, own_bits: OwnBits, gpu: profile.CudaMemory | None, reserved: int, n_local: int = 1) -> Sizes:
    """Find the sizes that fit beside the weights, which are not read yet, and `reserved` bytes.

    `own_bits` are the checkpoint's. On a CPU `n_local` ranks share the memory.

    On a `gpu`, whose steps are measured later, they are upper limits: a step counts as nothing. See `_measure`.
    Raises OptionError if the weights, or the sequences that the options require, do not fit.
    """
    options, pools, device, dtype = setup.options, setup.pool_sizes, setup.device, name_of(setup.dtype)
    needed = memory.weight_bytes(setup.shard, setup.scheme, dtype, own_bits)
    if setup.draft is not None:
        needed += memory.draft_bytes(setup.shard, setup.draft, dtype, own_bits)
    free = free_bytes(device) // (n_local if device.type == "cpu" else 1) - reserved
    where = "the GPU" if device.type == "cuda" else "this machine" if n_local == 1 else f"each of {n_local} ranks here"
    memory.check_weights(setup.shard, needed, stored_as(setup.scheme, dtype, own_bits), free, where)
    free -= needed
    if setup.media is not None:
        check_media(setup.media, free, where)
        free -= setup.media.n_bytes
    if gpu is not None:
        budget = memory.gpu_budget(gpu.total, gpu.total - free, options.gpu_memory_utilization)
        return Sizes(pools.length(options.max_model_len, budget, free - budget), budget)
    working = 0
    if device.type == "cpu":
        stores, threads = options.prefix_store is not None, choose_threads(options.threads)
        working = memory.working_bytes(setup.config, threads, stores_prefixes=stores)
    budget = memory.cpu_budget(options.cache_memory, free, where, working)
    length = pools.length(options.max_model_len, budget, free - budget)
    if device.type == "cuda":
        step = pools.step_bytes(setup.activations.itemsize) + setup.graph_bytes(length)
        memory.check_step(budget, step + length * pools.position_bytes, free)
    return Sizes(length, budget if options.cache_memory is not None else min(budget, pools.most_useful(length)))


def read(setup: Setup, checkpoint: Checkpoint, progress: Progress, group: Group | None = None) -> Transformer:
    """Read the network with the weights that this rank holds. Raises ModelError for a damaged checkpoint."""
    with torch.device("meta"):
        model = Transformer(setup.config, setup.scheme.name, setup.shard, group, setup.kernels)
    if setup.options.deterministic:
        linear.fix_tiles(model)
    leave_to_torch(model, setup.by_torch)
    if setup.scheme.compiled:
        torch.set_num_threads(1)  # the kernels' threads do nearly all the work; PyTorch's would only spin
    progress("loading weights", 0.0)
    weights.load(
        model,
        setup.shard,
        checkpoint.rotation,
        _lean(checkpoint.tensors(elsewhere(setup.shard))),
        setup.activations,
        setup.device,
        lambda done: progress("loading weights", done),
        embeddings=setup.dtype,
    )
    return model.eval()


def _drafter(
    setup: Setup, model: Transformer, checkpoint: Checkpoint, draft: DraftModel | None, progress: Progress
) -> Make | None:
    """Read the weights that draft, if there are any; returns what makes the drafter."""

    def again(setup: Setup, checkpoint: Checkpoint) -> Transformer:
        return read(setup, checkpoint, progress)

    if draft is not None:
        return model_drafter(draft, again)
    return None if setup.draft is None else copy_drafter(setup, setup.draft, model, checkpoint, again)


def _read_adapters(setup: Setup, progress: Progress) -> AdapterStore:
    """Read the adapters that the options name. Raises ModelError for one that is damaged."""
    read = partial(
        read_adapter, config=setup.config, dtype=setup.adapter_dtype, device=setup.device, packed=setup.scheme.compiled
    )
    store, chosen = AdapterStore(read, setup.options.max_loras), setup.options.adapters
    for done, (number, path) in enumerate(chosen):
        progress("loading adapters", done / len(chosen))
        with _naming(path):
            store.load(number, path)
    return store


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the adapter in the errors inside: there may be many."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"adapter {path}: {error}") from error


def _lean(tensors: Iterable[tuple[str, Stored]]) -> Iterator[tuple[str, Stored]]:
    """Yield the tensors. Between them, return the memory that decoded pieces have left behind."""
    values = 0
    for name, matrix in tensors:
        if values > RETURN_AFTER:
            values = 0
            return_free_memory()
        values += prod(matrix.shape)
        yield name, matrix


def _runner(
    setup: Setup,
    model: Transformer,
    drafter: Make | None,
    masks: Masks,
    adapters: AdapterStore,
    description: dict[str, str | int],
    prefixes: PrefixFiles | None,
    runner: Callable[..., ModelRunner],
    length: int,
    specs: tuple[PoolSpec, ...],
) -> ModelRunner:
    """Make a runner for sequences of `length` tokens, with these pools."""
    config, limits, backend, device = setup.config, setup.pool_sizes, setup.attention, setup.device
    layout = setup.shard.place.layout
    pools = PagePools.allocate(config, specs, lambda shape: backend.allocate(shape, setup.kv_dtype, device))
    tables = RopeTables.build(config, length, device)
    media = Encodings(model.encoder)
    head = OutputHead(model, adapters, (masks.step,), setup.kernels, setup.by_torch)
    compiled = compiled_network(model, backend, pools, tables, head.block_rows)
    alone = compiled is not None and not model.splits_layers  # the bits of ranks that share layers are their layout's
    if alone and setup.kernels is not None:
        description |= {"arithmetic": native.arithmetic(setup.kernels)}
    first, between = setup.targets
    format_ = setup.media.format if setup.media else None
    info = RunnerInfo(
        backend.page_size,
        specs,
        length,
        config.vocab_size,
        config.dim,
        limits.max_sequences,
        limits.max_step_tokens,
        description,
        device.type == "cuda" and layout.size == 1,
        images=format_ if isinstance(format_, ImageFormat) else None,
        audio=format_ if isinstance(format_, AudioFormat) else None,
        media_tokens=setup.media.tokens if setup.media else 0,
        max_adapters=setup.options.max_loras,
        pipeline=layout.pipeline,
        target_first_token=first,
        target_inter_token=between,
        copies_pages=device.type == "cpu",
        prompt_lookup_num_tokens=DRAFT_TOKENS if alone and setup.options.prompt_lookup == "auto" else 0,
        own_draft_tokens=0 if drafter is None else DRAFT_TOKENS,
        drafter="self" if setup.options.draft_model is None else "draft_model",
        prefixes=prefixes,
    )
    executor: Executor = (
        TorchExecutor(model, backend, pools, tables, info, media, head)
        if compiled is None
        else CompiledExecutor(compiled, media, head)
    )
    if drafter is None:
        return runner(executor, head, pools, info, masks, media)
    return runner(executor, head, pools, info, masks, media, drafter(setup, pools, tables, adapters, length, specs))


def _reserved(setup: Setup) -> int:
    """Return the bytes of all adapters in memory, if each is as large as the largest that is loaded at start.

    Raises ModelError for one that cannot be opened or does not fit the model.
    """
    largest = 0
    for _, path in setup.options.adapters:
        with _naming(path):
            largest = max(largest, count_values(Path(path), setup.config))
    return setup.options.max_loras * largest * setup.adapter_dtype.itemsize


def _measure(setup: Setup, upper: Sizes, gpu: profile.CudaMemory, build: profile.Build, reserved: int) -> Sizes:
    """Measure the sizes that fit beside the weights, the largest step, which is run, and `reserved` bytes.

    They are at most `upper`.
    """
    options, pools = setup.options, setup.pool_sizes
    budget = profile.cache_budget(pools, *upper, options.gpu_memory_utilization, gpu, build)
    budget = max(0, budget - (setup.media.n_bytes if setup.media else 0))  # nothing is encoded while it measures
    budget = max(0, budget - reserved - setup.graph_bytes(upper.length))  # nor is a graph captured
    fits = pools.length(options.max_model_len, budget, upper.length * pools.position_bytes)
    return Sizes(min(upper.length, fits), budget)


def check_options(options: RunnerOptions) -> None:
    """Raise OptionError for options that cannot be used together."""
    check_limits(options)
    if options.fast_start and choose_device(options.device).type == "cpu":
        raise OptionError("--fast-start needs a GPU, the device is cpu, which compiles no kernels; leave it out")
    share = options.gpu_memory_utilization
    if share is None:
        return
    if options.cache_memory is not None:
        raise OptionError(f"--gpu-memory-utilization {share} and --cache-memory both size the cache; use one of them")
    if choose_device(options.device).type == "cpu":
        raise OptionError(f"--gpu-memory-utilization {share} needs a GPU, the device is cpu; use --cache-memory")


def _kernels_reason(setup: Setup) -> str:
    failed = setup.kernels is None and native.kernels() is not None
    return f"{native.reason()}; it failed the self-test, see the log" if failed else native.reason()


def _describe(setup: Setup, checkpoint: Checkpoint) -> dict[str, str | int]:
    device, layout = setup.device, setup.shard.place.layout
    stored = stored_as(setup.scheme, name_of(setup.dtype), checkpoint.own_bits)
    return {
        "family": setup.config.family,
        "parameters": setup.shard.whole.n_parameters,
        "weights": checkpoint.fingerprint,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        **({"driver": found} if device.type == "cuda" and (found := driver()) else {}),
        **({"unused_gpu": why} if (why := unused_gpu(setup.options.device)) else {}),
        "dtype": name_of(setup.dtype),
        "kv_dtype": name_of(setup.kv_dtype),
        "attention": setup.attention_name,
        **({"by_torch": ", ".join(sorted(setup.by_torch))} if setup.by_torch else {}),
        **({"softmax_scale": f"{latent.softmax_scale:.6g}"} if (latent := setup.config.latent) else {}),
        "quantize": setup.chosen.name,
        **({"layout": layout.name} if layout.size > 1 else {}),
        **({"checkpoint": f"{checkpoint.summary}; served as {stored}"} if checkpoint.summary else {}),
        "kernels": native.describe(setup.kernels),
        **({"kernels_reason": _kernels_reason(setup)} if device.type == "cpu" else {}),
        "torch": torch.__version__,
    }
