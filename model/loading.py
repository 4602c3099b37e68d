"""Load a model: open its checkpoint, choose how it runs, size its cache, read its weights, warm it up."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from model import attention
from model import linear as quant
from model.attention.base import Attention
from model.attention.cache import PagePools
from model.attention.rope import rotation_table
from model.batch import PageTable, PoolSpec, RunnerInfo, Slice, StepBatch
from model.checkpoint.files import Progress
from model.checkpoint.matrices import Matrix
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.config import ModelConfig, RunnerOptions
from model.errors import ModelError, OptionError
from model.kernels.cpu import native
from model.machine.device import choose_device, choose_dtype, free_bytes, name_of
from model.machine.host import choose_threads
from model.machine.transfers import uploader
from model.memory import profile
from model.memory import sizes as memory
from model.network import weights
from model.network.transformer import Transformer
from model.sampling_params import SamplingParams
from model.step.graphs import CudaCapture
from model.step.masks import Masks
from model.step.runner import ModelRunner

KV_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def create(progress: Progress, **options: Any) -> ModelRunner:
    """Load a model with `RunnerOptions(**options)`; `progress` gets (stage, fraction 0..1).

    Raises ModelError for a checkpoint that cannot be loaded, OptionError for an option that cannot be honoured;
    memory is checked before weights are read.
    """
    chosen = RunnerOptions(**options)
    _check(chosen)
    progress("checking memory", 0.0)
    checkpoint = open_checkpoint(Path(chosen.model), max_model_len=chosen.max_model_len)
    return load_from(checkpoint, chosen, progress)


@torch.inference_mode()
def load_from(checkpoint: Checkpoint, options: RunnerOptions, progress: Progress) -> ModelRunner:
    """Choose, size, read, warm up. On a GPU a step is measured before its cache gets what is left."""
    choice = choose(checkpoint, options)
    gpu = profile.watched(choice.device) if options.cache_memory is None else None
    sizes = size(choice, checkpoint.block_bits, gpu)
    model = read(choice, checkpoint, progress)
    masks = Masks({"directory": options.model, "size": choice.config.vocab_size}, choice.config.vocab_size)
    build = partial(_runner, choice, model, masks, _describe(choice, checkpoint))
    if gpu is not None:
        progress("measuring a step", 0.0)
        sizes = _measure(choice, sizes, gpu, build)
    runner = build(sizes.length, choice.plan.pools(*sizes))
    progress("warming up", 0.0)
    warm(runner, choice)
    return runner


@dataclass(frozen=True, slots=True)
class Choice:
    """How a model runs: what `options` leaves open is decided.

    `scheme` is the scheme that was chosen for the weights, `serving` the one that serves for it on this device.
    `dtype` is the format of the embeddings, `activations` that of the values between layers.
    """

    options: RunnerOptions
    device: torch.device
    scheme: str
    serving: str
    dtype: torch.dtype
    activations: torch.dtype
    kv_dtype: torch.dtype
    attention_name: str
    attention: Attention
    plan: memory.PoolPlan

    @property
    def config(self) -> ModelConfig:
        """The model, with the windows it is served with."""
        return self.plan.config


class Sizes(NamedTuple):
    """The longest sequence to serve, in tokens, and the bytes for keys and values."""

    length: int
    cache: int


def choose(checkpoint: Checkpoint, options: RunnerOptions) -> Choice:
    """Device, scheme, formats and attention backend for a checkpoint. Sets the number of threads.

    Raises OptionError for options that do not go together or do not run here.
    """
    device = choose_device(options.device)
    own_blocks = checkpoint.quantized and quant.runs_in_blocks(checkpoint.config)
    scheme = quant.choose(options.quantize, options.dtype, device, quantized=own_blocks)
    config = checkpoint.config.with_window(options.sliding_window)
    _use_threads(choose_threads(options.threads))
    dtype = _cache_dtype(options.dtype, config, scheme, device)
    serving = quant.form(scheme, dtype, device)
    activations = dtype if quant.in_floats(serving) else torch.float32
    kv_dtype = _kv_dtype(options.kv_dtype, dtype)
    name, backend = attention.choose(
        options.attention, device, kv_dtype, activations, deterministic=options.deterministic
    )
    head_bytes = backend.head_bytes(config.head_dim, kv_dtype)
    max_sequences, max_step_tokens = options.step_limits(device.type)
    plan = memory.PoolPlan(config, backend.page_size, head_bytes, max_step_tokens, max_sequences)
    return Choice(options, device, scheme, serving, dtype, activations, kv_dtype, name, backend, plan)


def size(choice: Choice, block_bits: float, gpu: profile.DeviceMemory | None) -> Sizes:
    """What fits beside the weights, which are not read yet. `block_bits` are those of a weight in the checkpoint.

    On a `gpu` whose steps are to be measured, sizes are those for steps that take no memory: see `_measure`.
    Raises OptionError if the weights, or the sequences that the options require, do not fit.
    """
    options, plan, device = choice.options, choice.plan, choice.device
    bits = quant.bits(choice.serving, plan.config, block_bits)
    needed = memory.weight_bytes(plan.config, choice.dtype.itemsize, bits, head=not quant.in_floats(choice.serving))
    free = free_bytes(device)
    where = "the GPU" if device.type == "cuda" else "this machine"
    memory.check_weights(plan.config, needed, choice.serving if bits else name_of(choice.dtype), free, where)
    free -= needed
    if gpu is not None:
        budget = memory.gpu_budget(gpu.total, gpu.total - free, options.gpu_memory_utilization)
        return Sizes(plan.length(options.max_model_len, budget, free - budget), budget)
    budget = memory.cache_budget(options.cache_memory, free, memory.CPU_SHARE, where)
    length = plan.length(options.max_model_len, budget, free - budget)
    return Sizes(length, budget if options.cache_memory is not None else min(budget, plan.most_useful(length)))


def read(choice: Choice, checkpoint: Checkpoint, progress: Progress) -> Transformer:
    """The network with the checkpoint's weights. Raises ModelError for a damaged checkpoint."""
    with torch.device("meta"):
        model = Transformer(choice.config, choice.serving)
    if choice.options.deterministic:
        quant.fix_tiles(model)
    progress("loading weights", 0.0)
    weights.load(
        model,
        choice.config,
        checkpoint.rotation,
        _uploaded(checkpoint, choice.device),
        choice.activations,
        choice.device,
        lambda done: progress("loading weights", done),
        embeddings=choice.dtype,
    )
    if choice.options.deterministic and choice.device.type == "cpu":
        quant.check_tiles(model, choice.activations)
    return model.eval()


def warm(runner: ModelRunner, choice: Choice) -> None:
    """Run the first steps, so that no request pays for set-up. On a GPU, capture the graphs of later ones."""
    if not quant.in_floats(choice.serving) and native.kernels() is not None:
        torch.set_num_threads(1)  # the kernels' own do nearly all the work: PyTorch's would spin beside them
    _first_steps(runner)
    if choice.device.type == "cuda" and choice.attention.capturable:
        runner.record(choice.plan.max_sequences, CudaCapture())


def _use_threads(threads: int) -> None:
    native.use_threads(threads)
    torch.set_num_threads(threads)


def _uploaded(checkpoint: Checkpoint, device: torch.device) -> Iterator[tuple[str, Matrix]]:
    """Names and weights: plain tensors on `device`, quantized matrices on the host, where a scheme converts them."""
    upload = uploader(device)
    for name, matrix in checkpoint.tensors():
        yield name, upload(matrix) if isinstance(matrix, torch.Tensor) else matrix


def _runner(
    choice: Choice,
    model: Transformer,
    masks: Masks,
    description: dict[str, str],
    length: int,
    specs: tuple[PoolSpec, ...],
) -> ModelRunner:
    """A runner for sequences of `length` tokens, with these pools."""
    config, plan, backend, device = choice.config, choice.plan, choice.attention, choice.device
    info = RunnerInfo(
        backend.page_size,
        specs,
        length,
        config.vocab_size,
        config.dim,
        plan.max_sequences,
        plan.max_step_tokens,
        description,
        device.type == "cuda",
    )
    pools = PagePools.allocate(config, specs, lambda shape: backend.allocate(shape, choice.kv_dtype, device))
    return ModelRunner(model, pools, backend, rotation_table(config, length, device), info, masks)


def _measure(choice: Choice, upper: Sizes, gpu: profile.DeviceMemory, build: profile.Build) -> Sizes:
    """What fits beside the weights and the largest step, which is run. Both sizes are at most the `upper` ones."""
    options, plan = choice.options, choice.plan
    budget = profile.cache_budget(plan, *upper, options.gpu_memory_utilization, gpu, build)
    fits = plan.length(options.max_model_len, budget, upper.length * plan.position_bytes)
    return Sizes(min(upper.length, fits), budget)


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


def _describe(choice: Choice, checkpoint: Checkpoint) -> dict[str, str]:
    device = choice.device
    return {
        "family": choice.config.family,
        "parameters": str(choice.config.n_parameters),
        "weights": checkpoint.fingerprint,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "dtype": name_of(choice.dtype),
        "kv_dtype": name_of(choice.kv_dtype),
        "attention": choice.attention_name,
        "quantize": choice.scheme,
        "kernels": native.describe(native.kernels() if device.type == "cpu" else None),
        "torch": torch.__version__,
    }


def _first_steps(runner: ModelRunner) -> None:
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
