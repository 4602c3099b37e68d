"""How a model runs: device, formats, weight scheme, attention backend, and what its memory must hold."""

import logging
from dataclasses import dataclass

import torch

from model import attention, selftest
from model.attention.base import Attention
from model.checkpoint.open import Checkpoint
from model.config.model import ModelConfig
from model.decide import Abilities, Decision, decide
from model.errors import OptionError
from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.linear.schemes import Scheme, encoder_slowness
from model.machine.device import DTYPES, choose_device, name_of, native_formats, unused_gpu
from model.machine.host import choose_threads
from model.machine.processor import processor_name
from model.memory import sizes as memory
from model.memory.media import MediaSizes, media_sizes
from model.options import RunnerOptions
from model.sharding.layout import SINGLE, RankPlace
from model.sharding.shard import Shard

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setup:
    """How a model runs: every choice that `options` leaves open is made.

    `chosen` is the weight scheme that --quantize names, `scheme` the one that serves for it on this device, `draft`
    that of the copy of the weights that drafts, if there is one.
    `dtype` is the format of the embeddings, `activations` the format of the values between layers. `shard` is what this
    rank holds: all of the model if it is the only one. `kernels` are the compiled ones, on a CPU that has them.
    `by_torch` are the kinds of a GPU's kernels that failed the self-test: PyTorch computes what they would.
    `targets` are seconds to the first token, and between two tokens.
    """

    options: RunnerOptions
    device: torch.device
    chosen: Scheme
    scheme: Scheme
    draft: Scheme | None
    dtype: torch.dtype
    activations: torch.dtype
    kv_dtype: torch.dtype
    attention_name: str
    attention: Attention
    kernels: Kernels | None
    by_torch: frozenset[str]
    shard: Shard
    pool_sizes: memory.PoolSizes
    media: MediaSizes | None
    targets: tuple[float, float]

    @property
    def adapter_dtype(self) -> torch.dtype:
        """Return the format of LoRA adapters."""
        return DTYPES[self.scheme.adapter_dtype(name_of(self.activations))]

    @property
    def captures(self) -> bool:
        """Return whether CUDA graphs compute steps. Ranks that share a model have none.

        PyTorch's experts wait for the device, so that they cannot be captured.
        """
        able = self.attention.capturable and "experts" not in self.by_torch
        return self.device.type == "cuda" and able and self.shard.place.layout.size == 1

    def graph_bytes(self, length: int) -> int:
        """Return the bytes of the graphs for sequences of up to `length` tokens."""
        return self.pool_sizes.graph_bytes(length, self.activations.itemsize) if self.captures else 0

    @property
    def config(self) -> ModelConfig:
        """Return the configuration of the shard, with the windows that the model is served with."""
        return self.shard.config


def choose(checkpoint: Checkpoint, options: RunnerOptions, place: RankPlace = SINGLE, draft_bytes: int = 0) -> Setup:
    """Choose device, scheme, formats and attention backend for a rank. Set the number of threads.

    Keys and values of a draft model take `draft_bytes` for a position.

    Raises OptionError for options that do not fit together, or not this machine.
    """
    device = choose_device(options.device)
    if why := unused_gpu(options.device):
        log.warning("no GPU is used: %s, or choose --device cpu", why)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans for half a second at each new shape of an image or a chunk
    _use_threads(1)  # threads of the self-test would only wait for each other
    made, kernels, by_torch = _tested(checkpoint, options, place, device)
    if (latent := made.config.latent) is not None:
        log.info("%s", latent.scale_words)
    shard, activations, kv_dtype = made.shard(place), DTYPES[made.activations], getattr(torch, made.cache.dtype)
    own = shard.config
    backend_name, backend = attention.choose(
        *(options.attention, device, kv_dtype, activations),
        kernels=kernels,
        deterministic=options.deterministic,
        heads=own.heads,
        fault=lambda backend: selftest.attention_fault(backend, own, kv_dtype, activations, device),
    )
    _use_threads(choose_threads(options.threads))
    targets = options.target_seconds(device.type)
    sizes = memory.pool_sizes(own, options, device.type, made.dtype, backend.page_size, draft_bytes)
    slowness = encoder_slowness(made.scheme)
    media = media_sizes(shard.whole, options, activations.itemsize, slowness) if place.is_first else None
    served = made.chosen, made.scheme, made.draft, DTYPES[made.dtype], activations, kv_dtype
    return Setup(options, device, *served, backend_name, backend, kernels, by_torch, shard, sizes, media, targets)


def _tested(
    checkpoint: Checkpoint, options: RunnerOptions, place: RankPlace, device: torch.device
) -> tuple[Decision, Kernels | None, frozenset[str]]:
    """Return the decision for kernels that pass the self-test, these of a CPU, and the kinds of a GPU's that do not.

    Raises OptionError where no other way serves, as with --deterministic on a GPU.
    """
    kernels = native.kernels() if device.type == "cpu" else None
    facts, formats = (checkpoint.config, checkpoint.kind, checkpoint.own_bits, options), native_formats(device)

    def decided(kernels: Kernels | None) -> Decision:
        return decide(*facts, Abilities(device.type, formats, compiled=kernels is not None), place.layout)

    made = decided(kernels)
    own, activations = made.shard(place).config, DTYPES[made.activations]
    faults = selftest.faults(own, made.scheme, activations, device, kernels, options.deterministic)
    if not faults:
        return made, kernels, frozenset()
    why = "; ".join(f"{kind}: {fault}" for kind, fault in faults.items())
    if kernels is None:
        if options.deterministic:
            raise OptionError(f"--deterministic needs kernels that do not work on this GPU ({why}); leave it out")
        log.warning("PyTorch serves, several times slower, for kernels that do not work on this GPU (%s)", why)
        return made, None, frozenset(faults)
    wrong = f"the compiled kernels, {kernels.variant}, do not work on this processor, {processor_name()} ({why})"
    try:
        made = decided(None)
    except OptionError as error:
        raise OptionError(f"{wrong}; name another variant in NORIA_KERNELS, and report this; else {error}") from error
    log.warning("PyTorch serves, several times slower: %s", wrong)
    return made, None, frozenset()


def _use_threads(threads: int) -> None:
    native.use_threads(threads)
    torch.set_num_threads(threads)
