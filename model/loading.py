"""Load a model: open its checkpoint, choose how it runs, size its cache, read its weights, warm up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from model import linear as quant
from model.attention import choose
from model.attention.cache import PagePools
from model.attention.rope import rotation_table
from model.batch import PageTable, PoolSpec, RunnerInfo, Slice, StepBatch
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.config import ModelConfig
from model.errors import ModelError, OptionError
from model.kernels.cpu import native
from model.machine.device import choose_device, choose_dtype, free_bytes, name_of
from model.machine.host import choose_threads
from model.machine.transfers import uploaded
from model.memory import profile
from model.memory import sizes as memory
from model.network import weights
from model.network.transformer import Transformer
from model.options import RunnerOptions, check_limits
from model.sampling_params import SamplingParams
from model.step.graphs import CudaCapture
from model.step.masks import Masks
from model.step.runner import ModelRunner

Progress = Callable[[str, float], None]
KV_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


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
    own_blocks = checkpoint.quantized and quant.runs_in_blocks(checkpoint.config)
    scheme = quant.choose(options.quantize, options.dtype, device, quantized=own_blocks)
    config = checkpoint.config.with_window(options.sliding_window)
    threads = choose_threads(options.threads)
    native.use_threads(threads)
    torch.set_num_threads(threads)
    dtype = _cache_dtype(options.dtype, config, scheme, device)
    form = quant.form(scheme, dtype, device)
    activations = dtype if quant.in_floats(form) else torch.float32
    kv_dtype = _kv_dtype(options.kv_dtype, dtype)
    attention_name, attention = choose(
        options.attention, device, kv_dtype, activations, deterministic=options.deterministic
    )
    head_bytes = attention.head_bytes(config.head_dim, kv_dtype)
    max_sequences, max_step_tokens = options.step_limits(device.type)
    plan = memory.PoolPlan(config, attention.page_size, head_bytes, max_step_tokens, max_sequences)
    bits = quant.bits(form, config, checkpoint.block_bits)
    needed = memory.weight_bytes(config, dtype.itemsize, bits, head=not quant.in_floats(form))
    gpu = profile.watched(device) if options.cache_memory is None else None
    length, budget = _fit(plan, needed, form if bits else name_of(dtype), device, options, gpu)
    with torch.device("meta"):
        model = Transformer(config, form)
    if options.deterministic:
        quant.fix_tiles(model)
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
        quant.check_tiles(model, activations)
    masks = Masks({"directory": options.model, "size": config.vocab_size}, config.vocab_size)
    description = _describe(checkpoint, device, (dtype, kv_dtype), attention_name, scheme)

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
    if not quant.in_floats(form) and native.kernels() is not None:
        torch.set_num_threads(1)  # the kernels' own do nearly all the work: PyTorch's would spin beside them
    progress("warming up", 0.0)
    _warm_up(runner)
    if device.type == "cuda" and attention.capturable:
        runner.record(max_sequences, CudaCapture())
    return runner


def _measure(
    plan: memory.PoolPlan,
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


def _cache_dtype(name: str, config: ModelConfig, scheme: str, device: torch.device) -> torch.dtype:
    """Of embeddings and, by default, keys and values; of weights and activations too, unless those are integers."""
    if name == "auto" and not quant.in_floats(scheme):
        return torch.bfloat16
    return choose_dtype(name, config.dtype, device)


def _kv_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """Of keys and values: that of the model, or one of eight bits."""
    if name != "auto" and name not in KV_DTYPES:
        raise OptionError(f"--kv-dtype {name} is not known, choose one of: auto, {', '.join(KV_DTYPES)}")
    return KV_DTYPES.get(name, dtype)


def _check(options: RunnerOptions) -> None:
    check_limits(options)
    share = options.gpu_memory_utilization
    if share is None:
        return
    if options.cache_memory is not None:
        raise OptionError(f"--gpu-memory-utilization {share} and --cache-memory say the same in two ways; give one")
    if choose_device(options.device).type == "cpu":
        raise OptionError(f"--gpu-memory-utilization {share} is of a GPU, the device is cpu; use --cache-memory")


def _fit(
    plan: memory.PoolPlan,
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
