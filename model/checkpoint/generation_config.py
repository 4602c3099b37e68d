"""Generation defaults of a model directory: end tokens and sampling parameters. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from typing import Any

from model.checkpoint.files import read_json
from model.checkpoint.model_files import model_files

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Sampling parameters that a model may set."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Tokens that end an output, and sampling parameters of requests that do not set them."""

    eos_token_ids: tuple[int, ...] = ()
    sampling: dict[str, float | int] = field(default_factory=dict)

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a request that gives these ones: a greedy request is not sampled and has no defaults."""
        return {**given} if given.get("temperature") == 0 else {**self.sampling, **given}


def read_generation(directory: Traversable, eos_id: int | None = None) -> GenerationDefaults:
    """The defaults in `generation_config.json`. End tokens are else those in `config.json`, else `eos_id`.

    A model of text and images may have them in the `text_config` of `config.json`. `eos_id` is the tokenizer's end
    token.
    """
    directory = model_files(directory)
    path = directory / "generation_config.json"
    raw = read_json(path) if path.is_file() else {}
    ends = raw.get("eos_token_id")
    if ends is None and (directory / "config.json").is_file():
        config = read_json(directory / "config.json")
        ends = config.get("eos_token_id")
        if ends is None and isinstance(config.get("text_config"), dict):
            ends = config["text_config"].get("eos_token_id")
    if ends is None:
        ends = [] if eos_id is None else [eos_id]
    sampling = {name: raw[name] for name in SAMPLING if raw.get(name) is not None}
    return GenerationDefaults(
        eos_token_ids=tuple(ends) if isinstance(ends, list) else (ends,),
        sampling=sampling if raw.get("do_sample") is not False else {},
    )
