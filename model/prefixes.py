"""The fingerprint of everything on which a page's bytes depend: pages are stored on disk under it."""

from dataclasses import fields
from hashlib import sha256
from pathlib import Path

import torch

from model.batch import PrefixFiles
from model.checkpoint.open import Checkpoint
from model.kernels.cpu import native
from model.kernels.cpu.build import fingerprint
from model.machine.device import name_of
from model.options import PREFIX_STORE
from model.setup import Setup

SERVED = "max_position"
"""The field of a configuration that says how long a context is served. No key or value depends on it."""


def prefix_files(setup: Setup, checkpoint: Checkpoint) -> PrefixFiles | None:
    """Return the files in which pages are stored; None if they are not.

    The fingerprint has what changes a bit of a page. These are the weights (a sample of each tensor, and the scheme
    that serves them), the configuration with windows and RoPE, the formats, the layout of a page, and the kernels:
    their variant and the hash of their sources, because another order of additions gives other bits. It has no size of
    the cache, no limit of a step and no name.
    """
    options = setup.options
    if options.prefix_store is None:
        return None
    config = {item.name: getattr(setup.config, item.name) for item in fields(setup.config) if item.name != SERVED}
    formats = tuple(map(name_of, (setup.dtype, setup.activations, setup.kv_dtype)))
    kernels = native.describe(setup.kernels)
    facts = (
        *(checkpoint.prints, checkpoint.rotation, setup.scheme.name, config, formats),
        *(setup.attention_name, setup.attention.page_size, options.deterministic, kernels),
        fingerprint() if setup.kernels else "",
        torch.cuda.get_device_name(setup.device) if setup.device.type == "cuda" else "",
    )
    about = f"{Path(options.model).name}: {setup.chosen.name} weights, {formats[-1]} keys and values, {kernels}"
    return PrefixFiles(
        str(Path(options.prefix_store).absolute()),
        options.prefix_store_size or PREFIX_STORE,
        sha256(repr(facts).encode()).hexdigest()[:32],
        about,
    )
