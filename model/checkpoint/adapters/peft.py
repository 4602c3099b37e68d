"""Adapters as PEFT writes them: adapter_config.json beside adapter_model.safetensors.

The tensors say which weights have an adapter and of which rank r, which the configuration must repeat. It gives the
factor: alpha / r, or alpha / sqrt(r) with `use_rslora` (arXiv 2312.03732). `base_model_name_or_path` is not compared
with the model that is served: only the shapes of the tensors show that an adapter does not belong to it.
"""

import re
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

from model.checkpoint.adapters.pairs import AdapterFile, Side, read_pairs
from model.checkpoint.configs.fields import Fields
from model.checkpoint.files import read_json
from model.checkpoint.names import HUGGING_FACE, native_name, text_name
from model.errors import ModelError, short

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
READ = {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules"}
READ |= {"layers_to_transform", "init_lora_weights", "bias"}
TRAINING = {"auto_mapping", "base_model_name_or_path", "exclude_modules", "inference_mode", "layers_pattern"}
TRAINING |= {"lora_dropout", "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config"}
TRAINING |= {"task_type", "corda_config", "eva_config", "loftq_config", "lora_ga_config"}
"""Fields that mean nothing once an adapter is trained. Every other field must be null, false or empty."""
KEEPS_BASE = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base's weights as they are. PiSSA, OLoRA, CorDA and LoftQ change them."""
_NAME = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
MAX_PATTERN, MAX_REPEATS = 200, 2
_PATTERN = re.compile(rf"(?:[\w^$.|()-]|\\[.d]|(?<=[.d])[*+]){{1,{MAX_PATTERN}}}")
"""Expressions that take little time: only single characters repeat."""


def open_peft(directory: Path) -> AdapterFile:
    """Open the adapter in a directory. Raises ModelError as `read_pairs` does, and for an unsupported field."""
    config = read_json(directory / CONFIG)
    _check(config)
    ranks, alphas = (_patterns(config, key) for key in ("rank_pattern", "alpha_pattern"))
    fields = Fields(config, CONFIG)
    common_rank, common_alpha = fields.size("r"), fields.positive("lora_alpha")

    def scale(name: str, rank: int) -> float:
        match = _NAME.fullmatch(name)
        assert match is not None, "it is a pair's"
        if (declared := _of(ranks, match[1], common_rank)) != rank:
            raise ModelError(f"{WEIGHTS}: {short(name)} has rank {rank}, {CONFIG} says {short(declared)}")
        return _of(alphas, match[1], common_alpha) / (sqrt(rank) if config.get("use_rslora") else rank)

    return read_pairs(directory / WEIGHTS, "half", _side, scale, directory / CONFIG)


def _side(name: str) -> Side | None:
    match = _NAME.fullmatch(name)
    return match and Side(native_name(f"{text_name(match[1] + '.weight')}", HUGGING_FACE), match[2])


def _check(config: Mapping[str, Any]) -> None:
    """Raise ModelError for a field with which the tensors would not be plain LoRA."""
    if config.get("peft_type") != "LORA":
        raise ModelError(f"{CONFIG} has peft_type {short(config.get('peft_type'))}; Noria supports 'LORA'")
    if config.get("bias", "none") != "none":
        raise ModelError(f"{CONFIG} has bias {short(config['bias'])}; Noria supports 'none'")
    if (init := config.get("init_lora_weights")) not in KEEPS_BASE:
        raise ModelError(
            f"{CONFIG} has init_lora_weights {short(init)}, which changes the weights of the base; save the adapter "
            "converted to plain LoRA (path_initial_model_for_weight_conversion)"
        )
    for key in sorted(config.keys() - READ - TRAINING):
        if config[key]:
            raise ModelError(
                f"{CONFIG} has {short(key)}: {short(config[key])}, which Noria does not support; it serves plain LoRA"
            )


def _patterns(config: Mapping[str, Any], key: str) -> Mapping[str, float]:
    """Read numbers above 0 by expressions that compile and take little time. Raises ModelError for any other field."""
    patterns = config.get(key) or {}
    if not isinstance(patterns, dict):
        raise ModelError(f"{CONFIG} must have an object in {key}, it has {short(patterns)}")
    for pattern in patterns:
        repeats = sum(map(pattern.count, "*+"))
        if not _PATTERN.fullmatch(pattern) or repeats > MAX_REPEATS or not _compiles(pattern):
            raise ModelError(
                f"{key} of {CONFIG} has the expression {short(pattern)}; Noria supports names of modules of at most "
                rf"{MAX_PATTERN} characters, with at most {MAX_REPEATS} repeats such as .* or \d+"
            )
        Fields(patterns, f"{key} of {CONFIG}").positive(pattern)
    return patterns


def _of(patterns: Mapping[str, float], module: str, default: float) -> float:
    """Return the value of the first expression that matches the end of a module's name, as PEFT finds it."""
    found = (value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module))
    return float(next(found, default))


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
