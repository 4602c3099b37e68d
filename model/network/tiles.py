"""The tiles of a network's compiled products, as --tune chooses them."""

import logging
from pathlib import Path

from model.checkpoint.conversions import conversions_folder
from model.errors import ModelError
from model.kernels.cpu import native
from model.kernels.cpu.build import fingerprint
from model.kernels.cpu.tuning.store import Store
from model.kernels.cpu.tuning.tuner import EFFORTS, Tuner
from model.linear.base import Projection
from model.machine.host import choose_threads
from model.machine.processor import processor
from model.network.transformer import Transformer
from model.options import RunnerOptions

log = logging.getLogger(__name__)


def choose_tiles(model: Transformer, options: RunnerOptions) -> None:
    """Choose the tiles of all projections of `model` that the compiled kernels serve, head and experts included."""
    parts = (part for part in model.modules() if isinstance(part, Projection))
    weights = [part.packed for part in parts if part.packed is not None]
    effort = EFFORTS.get(options.tune)
    if effort is None or not weights:
        return
    kernels = native.kernels()
    assert kernels is not None, "weights are packed for the kernels alone"
    threads = choose_threads(options.threads)
    place = processor() | {"variant": kernels.variant, "threads": str(threads)}
    Tuner(kernels, threads, Store(_folder(options), place, fingerprint())).tune(weights, effort)


def _folder(options: RunnerOptions) -> Path | None:
    try:
        return conversions_folder(None if options.cache is None else Path(options.cache))
    except ModelError as error:
        log.info("chosen tiles are not kept: %s", error)
        return None
