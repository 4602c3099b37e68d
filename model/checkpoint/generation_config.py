"""Generation defaults of a model directory: end tokens and sampling parameters. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from typing import Any

from model.checkpoint.files import read_json_if_any
from model.checkpoint.model_files import model_files
from model.errors import ModelError, short

GENERATION, CONFIG, ENDS = "generation_config.json", "config.json", "eos_token_id"
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Sampling parameters that a model may set."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Tokens that end an output, and sampling parameters of requests that do not set them."""

    eos_token_ids: tuple[int, ...] = ()
    sampling: dict[str, float | int] = field(default_factory=dict)

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Add the defaults to the parameters that a request gives: a greedy request is not sampled and has none."""
        return {**given} if given.get("temperature") == 0 else {**self.sampling, **given}


def read_generation(directory: Traversable, ends: Iterable[int] | None = None) -> GenerationDefaults:
    """Read the defaults in `generation_config.json`, with these end tokens; None: those of the configurations."""
    directory = model_files(directory)
    raw = read_json_if_any(directory / GENERATION)
    sampling = {name: raw[name] for name in SAMPLING if raw.get(name) is not None}
    return GenerationDefaults(
        eos_token_ids=tuple(configured_ends(directory)[1] if ends is None else ends),
        sampling=sampling if raw.get("do_sample") is not False else {},
    )


def configured_ends(directory: Traversable) -> tuple[str, list[int]]:
    """Return a file and its end tokens: `generation_config.json`, else `config.json`, perhaps in its `text_config`."""
    generation, config = (read_json_if_any(directory / name) for name in (GENERATION, CONFIG))
    for file, content in ((GENERATION, generation), (CONFIG, config), (CONFIG, config.get("text_config"))):
        if isinstance(content, dict) and (ends := content.get(ENDS)) is not None:
            ids = ends if isinstance(ends, list) else [ends]
            if not all(isinstance(token, int) for token in ids):
                raise ModelError(f"{file} has {short(ends)} in {ENDS}, expected the id of a token or a list of ids")
            return file, ids
    return CONFIG, []
