"""The tiles of a network's compiled products and of its attention, as --tune chooses them."""

import logging
from pathlib import Path

import torch

from model.attention.base import Attention
from model.attention.paged import PagedAttention
from model.checkpoint.conversions import conversions_folder
from model.config import ModelConfig
from model.errors import ModelError
from model.kernels.cpu import native
from model.kernels.cpu.build import fingerprint
from model.kernels.cpu.tuning.store import Store
from model.kernels.cpu.tuning.tuner import EFFORTS, Tuner
from model.linear.base import Projection
from model.machine.host import choose_threads
from model.machine.processor import processor
from model.network.transformer import Transformer
from model.network.tuning.paged_trials import PagedTrials
from model.options import RunnerOptions

log = logging.getLogger(__name__)


def choose_tiles(model: Transformer, options: RunnerOptions, attention: Attention, kv_dtype: torch.dtype) -> None:
    """Choose the tiles of all projections of `model` that the compiled kernels serve, head and experts included.

    Then how `attention` reads a cache of `kv_dtype`, if it is compiled.
    """
    parts = (part for part in model.modules() if isinstance(part, Projection))
    weights = [part.packed for part in parts if part.packed is not None]
    effort = EFFORTS.get(options.tune)
    if effort is None or not weights:
        return
    kernels = native.kernels()
    assert kernels is not None, "weights are packed for the kernels alone"
    threads = choose_threads(options.threads)
    place = processor() | {"variant": kernels.variant, "threads": str(threads)}
    Tuner(kernels, threads, Store(_folder(options), place, fingerprint())).tune(
        weights, effort, _attentions(attention, kv_dtype, model.config, threads)
    )


def _attentions(attention: Attention, dtype: torch.dtype, config: ModelConfig, threads: int) -> dict[str, PagedTrials]:
    if not isinstance(attention, PagedAttention):
        return {}
    trials = PagedTrials(attention, (config.n_heads, config.n_kv_heads, config.head_dim), dtype, threads)
    return {trials.name: trials} if trials.is_worth_it else {}


def _folder(options: RunnerOptions) -> Path | None:
    try:
        return conversions_folder(None if options.cache is None else Path(options.cache))
    except ModelError as error:
        log.info("chosen tiles are not kept: %s", error)
        return None
