"""Load a model: open its checkpoint, choose how it runs, size its cache, read its weights, warm up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from model.attention import choose
from model.attention.cache import PagePools
from model.attention.rope import rotation_table
from model.batch import PageTable, PoolSpec, RunnerInfo, Slice, StepBatch
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.config import RunnerOptions
from model.errors import ModelError, OptionError
from model.kernels.cpu import native
from model.linear import choice
from model.linear.schemes import CACHE_FORMATS, KV_DTYPES, SCHEMES, CacheFormat, serving
from model.machine.device import choose_device, choose_dtype, free_bytes, name_of
from model.machine.host import choose_threads
from model.machine.transfers import uploaded
from model.memory import profile
from model.memory import sizes as memory
from model.network import weights
from model.network.transformer import Transformer
from model.sampling_params import SamplingParams
from model.step.graphs import CudaCapture
from model.step.masks import Masks
from model.step.runner import ModelRunner

Progress = Callable[[str, float], None]


def create(progress: Progress, **options: Any) -> ModelRunner:
    """Load a model as `RunnerOptions(**options)` says; `progress` gets (stage, fraction 0..1).

    Raises ModelError for a checkpoint that cannot be loaded, OptionError for an option that cannot be honoured;
    memory is checked before weights are read.
    """
    return load(RunnerOptions(**options), progress)


def load(options: RunnerOptions, progress: Progress) -> ModelRunner:
    """Open, check, read, warm up."""
    _check(options)
    progress("checking memory", 0.0)
    checkpoint = open_checkpoint(Path(options.model), max_model_len=options.max_model_len)
    return load_from(checkpoint, options, progress)


@torch.inference_mode()
def load_from(checkpoint: Checkpoint, options: RunnerOptions, progress: Progress) -> ModelRunner:
    """Check memory, read, warm up."""
    device = choose_device(options.device)
    own_blocks = checkpoint.quantized and SCHEMES["int4"].fits(checkpoint.config)
    chosen = choice.choose(options.quantize, options.dtype, device, quantized=own_blocks)
    config = checkpoint.config.with_window(options.sliding_window)
    threads = choose_threads(options.threads)
    native.use_threads(threads)
    torch.set_num_threads(threads)
    dtype = choose_dtype(chosen.own_dtype(options.dtype) or "auto", config.dtype, device)
    scheme = serving(chosen, name_of(dtype), device.type)
    activations = torch.float32 if scheme.compiled else dtype
    cache_format = _cache_format(options.kv_dtype, name_of(dtype))
    kv_dtype = getattr(torch, cache_format.dtype)
    attention_name, attention = choose(
        options.attention, device, kv_dtype, activations, deterministic=options.deterministic
    )
    head_bytes = cache_format.head_bytes(config.head_dim)
    max_sequences, max_step_tokens = options.step_limits(device.type)
    plan = memory.PoolSizes(config, attention.page_size, head_bytes, max_step_tokens, max_sequences)
    needed = memory.weight_bytes(config, scheme, name_of(dtype), checkpoint.block_bits)
    gpu = profile.watched(device) if options.cache_memory is None else None
    stored = name_of(dtype) if scheme.value_bits is None else scheme.name
    length, budget = _fit(plan, needed, stored, device, options, gpu)
    with torch.device("meta"):
        model = Transformer(config, scheme.name)
    if options.deterministic:
        choice.fix_tiles(model)
    progress("loading weights", 0.0)
    weights.load(
        model,
        config,
        checkpoint.rotation,
        uploaded(checkpoint.tensors(), device),
        activations,
        device,
        lambda done: progress("loading weights", done),
        embeddings=dtype,
    )
    if options.deterministic and device.type == "cpu":
        choice.check_tiles(model, activations)
    masks = Masks({"directory": options.model, "size": config.vocab_size}, config.vocab_size)
    description = _describe(checkpoint, device, (dtype, kv_dtype), attention_name, chosen.name)

    def build(length: int, specs: tuple[PoolSpec, ...]) -> ModelRunner:
        ahead = device.type == "cuda"
        info = RunnerInfo(
            attention.page_size,
            specs,
            length,
            config.vocab_size,
            config.dim,
            max_sequences,
            max_step_tokens,
            description,
            ahead,
        )
        pools = PagePools.allocate(config, specs, lambda shape: attention.allocate(shape, kv_dtype, device))
        return ModelRunner(model.eval(), pools, attention, rotation_table(config, length, device), info, masks)

    if gpu is not None:
        progress("measuring a step", 0.0)
        length, budget = _measure(plan, length, budget, options, gpu, build)
    runner = build(length, plan.pools(length, budget))
    if scheme.compiled and native.kernels() is not None:
        torch.set_num_threads(1)  # the kernels' own do nearly all the work: PyTorch's would spin beside them
    progress("warming up", 0.0)
    _warm_up(runner)
    if device.type == "cuda" and attention.capturable:
        runner.record(max_sequences, CudaCapture())
    return runner


def _measure(
    plan: memory.PoolSizes,
    length: int,
    most: int,
    options: RunnerOptions,
    gpu: profile.DeviceMemory,
    build: profile.Build,
) -> tuple[int, int]:
    """The longest sequence to serve, `length` at most, and the bytes, `most` at most, for keys and values beside the
    largest step."""
    budget = profile.cache_budget(plan, length, most, options.gpu_memory_utilization, gpu, build)
    return min(length, plan.length(options.max_model_len, budget, length * plan.position_bytes)), budget


def _cache_format(name: str, dtype: str) -> CacheFormat:
    """Of keys and values: that of the model, or one of eight bits."""
    if name not in KV_DTYPES:
        raise OptionError(f"--kv-dtype {name} is not known, choose one of: {', '.join(KV_DTYPES)}")
    return CACHE_FORMATS[dtype if name == "auto" else name]


def _check(options: RunnerOptions) -> None:
    for name, least in (("max_sequences", 1), ("max_step_tokens", 1), ("sliding_window", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise OptionError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    share = options.gpu_memory_utilization
    if share is None:
        return
    if not 0.0 < share <= 1.0:
        raise OptionError(f"--gpu-memory-utilization must be above 0 and at most 1, got {share}")
    if options.cache_memory is not None:
        raise OptionError(f"--gpu-memory-utilization {share} and --cache-memory say the same in two ways; give one")
    if choose_device(options.device).type == "cpu":
        raise OptionError(f"--gpu-memory-utilization {share} is of a GPU, the device is cpu; use --cache-memory")


def _fit(
    plan: memory.PoolSizes,
    weights: int,
    form: str,
    device: torch.device,
    options: RunnerOptions,
    gpu: profile.DeviceMemory | None,
) -> tuple[int, int]:
    """The longest sequence to serve and the bytes for keys and values, beside `weights` bytes; raises OptionError.

    With a `gpu` to be watched both are what there would be if a step took nothing: see `_measure`.
    """
    free = free_bytes(device)
    where = "the GPU" if device.type == "cuda" else "this machine"
    memory.check_weights(plan.config, weights, form, free, where)
    free -= weights
    if gpu is not None:
        budget = memory.gpu_budget(gpu.total, gpu.total - free, options.gpu_memory_utilization)
        return plan.length(options.max_model_len, budget, free - budget), budget
    budget = memory.cache_budget(options.cache_memory, free, memory.CPU_SHARE, where)
    length = plan.length(options.max_model_len, budget, free - budget)
    return length, budget if options.cache_memory is not None else min(budget, plan.most_useful(length))


def _describe(
    checkpoint: Checkpoint, device: torch.device, dtypes: tuple[torch.dtype, torch.dtype], attention: str, scheme: str
) -> dict[str, str]:
    return {
        "family": checkpoint.config.family,
        "parameters": str(checkpoint.config.n_parameters),
        "weights": checkpoint.fingerprint,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "dtype": name_of(dtypes[0]),
        "kv_dtype": name_of(dtypes[1]),
        "attention": attention,
        "quantize": scheme,
        "kernels": native.describe(native.kernels() if device.type == "cpu" else None),
        "torch": torch.__version__,
    }


def _warm_up(runner: ModelRunner) -> None:
    """A prompt, then its last token alone, on pages that nobody holds yet, so that the first request does not pay for
    set-up: the two take different kernels.

    Raises ModelError if logits are not finite.
    """
    info = runner.info
    n = min(info.page_size, info.max_model_len)
    tables = tuple(PageTable(0, range(pool.n_pages)) for pool in info.pools)
    for start in (0, n - 1):
        item = Slice(0, [0] * n, n, start, n, tables, SamplingParams(max_tokens=1))
        (drawn,) = runner.step(StepBatch((item,))).slices
        if drawn.failure is not None:
            raise ModelError("the model's logits are not finite: its checkpoint is damaged, or its --dtype too narrow")
