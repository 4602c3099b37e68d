"""How a model is loaded and run, as the user chooses it: every option is declared once, with its flag. No torch.

`service/settings.py` adds the options of the service. `service/commands/flags.py` makes flags, environment variables
and the table in the documentation from both.
"""

import re
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, TypeVar

from model.config.cache_formats import KV_DTYPES
from model.config.model import VALUE_BYTES
from model.errors import OptionError
from model.linear.schemes import QUANTIZE_NAMES
from model.sharding.layout import Layout

T = TypeVar("T")

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]?)(?:i?B)?", re.IGNORECASE)

STEP_LIMITS = {"cpu": (64, 512), "cuda": (256, 2048)}
"""Default number of sequences and of tokens in a step. A step reads the weights once for all of them. On a CPU the
limits are lower, because a longer step would delay every sequence's next token."""
TARGET_FIRST_TOKEN_MS = {"cpu": 200.0, "cuda": 0.0}
TARGET_INTER_TOKEN_MS = {"cpu": 50.0, "cuda": 0.0}
"""Default targets for the times to the first token, and between two tokens beside prompts. 0 is none."""
CPU_SHARE = 0.25
"""Default part of the memory left by the weights that the KV cache gets on a CPU."""
MAX_RANKS = 64
"""The greatest number of ranks in each direction of a layout."""
DRAFT_TOKENS = 10
"""Draft tokens of a sequence in a step at most, with --prompt-lookup auto."""
IMAGE_CACHE, LEAST_IMAGES = 2**28, 2
"""Default bytes of the embeddings of images in the cache, and the number of the largest images that fit at least."""
PREFIX_STORE = 20 * 2**30
"""Default bytes of pages on disk."""
GPU_UTILIZATION = 0.9
"""Default part of a GPU's memory that all programs together may fill."""


@dataclass(frozen=True, slots=True)
class Flag:
    """The command-line side of an option: what its field's name, type and default do not say.

    `name` replaces the field's name. An option that `is_typed` has no environment variable. `unset` says what None, or
    an empty tuple, stands for. `least` and `most` are inclusive limits, `above` is an exclusive one. A size is a number
    of bytes; people write it as 4GiB. `noria plan` takes the options with `in_plan`. `group` is the heading of this
    option, and of those after it up to the next that has one.
    """

    help: str
    name: str = ""
    unset: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    is_size: bool = False
    is_argument: bool = False
    is_typed: bool = False
    in_plan: bool = False
    group: str = ""

    @property
    def limits(self) -> str:
        """Return the range in words, such as "at least 1"; empty without limits."""
        words = (("at least", self.least), ("above", self.above), ("at most", self.most))
        return " and ".join(f"{word} {limit}" for word, limit in words if limit is not None)

    def allows(self, value: float) -> bool:
        """Return whether `value` is within the limits."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )


def option(default: T, help: str, **about: Any) -> T:
    """Declare a dataclass field that is also a flag: `about` are the other fields of `Flag`."""
    return field(default=default, metadata={Flag: Flag(help, **about)})


def required(help: str, **about: Any) -> Any:
    """Declare a dataclass field that is an argument without a default: `about` as for `option`."""
    return option(..., help, is_argument=True, **about)


def same(options: type, name: str) -> Any:
    """Repeat the flag that `options` declares under this name, for another command."""
    declared = next(declared for declared in fields(options) if declared.name == name)
    return field(default=declared.default, metadata=declared.metadata)


def flags(options: Any) -> Iterator[tuple[Field[Any], Flag]]:
    """Yield the fields of a dataclass, or of an instance, that are flags."""
    return ((declared, declared.metadata[Flag]) for declared in fields(options) if Flag in declared.metadata)


def grouped_flags(options: Any) -> Iterator[tuple[str, Field[Any], Flag]]:
    """Yield the fields that are flags, each with the heading of its group."""
    group = ""
    for declared, flag in flags(options):
        group = flag.group or group
        yield group, declared, flag


def flag_name(declared: Field[Any]) -> str:
    """Return the flag of a field: "--max-model-len" of `max_model_len`."""
    return "--" + (declared.metadata[Flag].name or declared.name).replace("_", "-")


def read_size(text: str) -> int:
    """Read bytes: "4GiB", "512MiB", "1.5G" or a plain number; all units are powers of 1024. Raises ValueError."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write 4GiB, 512MiB or a number of bytes")
    return int(float(match[1]) * UNITS[match[2].upper()])


def check_limits(options: Any) -> None:
    """Raise OptionError for the first field outside the limits of its flag; None is always within."""
    for declared, flag in flags(options):
        value = getattr(options, declared.name)
        if flag.limits and value is not None and not flag.allows(value):
            raise OptionError(f"{flag_name(declared)} must be {flag.limits}, got {value}")


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How to load and run a model. `model` is a local directory in HF or native format, or a GGUF file.

    None leaves the choice to the model and the machine; `step_limits` makes it for sequences and tokens of a step.
    `adapters` are the LoRA adapters to load at start, by number, each with the path of its files.
    """

    model: str
    device: str = option(
        "auto",
        "Device that runs the model. auto is a GPU if there is one.",
        choices=("auto", "cpu", "cuda"),
        group="Computation",
        in_plan=True,
    )
    dtype: str = option(
        "auto",
        "Data type of weights and activations. auto is the model's own if the device computes it natively.",
        choices=("auto", *VALUE_BYTES),
        in_plan=True,
    )
    quantize: str = option(
        "auto",
        "Quantization of the weights. auto is the scheme nearest to a quantized checkpoint, for others none on a GPU "
        "and int8 on a CPU. On a CPU with --dtype or without compiled kernels it is none.",
        choices=QUANTIZE_NAMES,
        in_plan=True,
    )
    attention: str = option("auto", "Attention backend. auto is the fastest one that runs on the device.")
    kv_dtype: str = option(
        "auto",
        "Data type of the KV cache. auto is the model's. int8 (CPU only) and fp8 (GPU only) need half the memory of 16 "
        "bits.",
        choices=KV_DTYPES,
        in_plan=True,
    )
    deterministic: bool = option(
        False, "Give an answer with the same bits whatever other requests run. Some weight formats become slower."
    )
    softmax_scale: str = option(
        "auto",
        "Scale of attention scores in models with latent attention. base is 1 / sqrt(head_dim), yarn is that times the "
        "factor that YaRN asks for. auto obeys apply_scale of params.json, and is base if mscale and mscale_all_dim of "
        "config.json are equal.",
        choices=("auto", "base", "yarn"),
    )
    sliding_window: int | None = option(
        None,
        "Attention window of every layer, in tokens.",
        unset="the model's",
        least=1,
        in_plan=True,
        group="Lengths and memory",
    )
    max_model_len: int | None = option(
        None,
        "Longest prompt plus output, in tokens.",
        unset="as long as the model allows and the KV cache holds",
        least=1,
        in_plan=True,
    )
    max_sequences: int | None = option(
        None,
        "Maximum number of sequences in a step.",
        unset="{}, on a GPU {}; never above --max-step-tokens".format(*(limits[0] for limits in STEP_LIMITS.values())),
        least=1,
        in_plan=True,
    )
    max_step_tokens: int | None = option(
        None,
        "Maximum number of tokens in a step; in a pipeline, in all steps in flight together.",
        unset="{}, on a GPU {}; never below --max-sequences".format(*(limits[1] for limits in STEP_LIMITS.values())),
        least=1,
        most=2**20,
        in_plan=True,
    )
    target_first_token_ms: float | None = option(
        None,
        "Target for the time to the first token, in milliseconds. A prompt of text that would miss it gets larger "
        "chunks than --target-inter-token-ms allows, up to --max-step-tokens. 0: no target. A value above 0 "
        "is refused if --target-inter-token-ms is 0, because chunks are then always the largest.",
        unset="{:g}, on a GPU {:g}".format(*TARGET_FIRST_TOKEN_MS.values()),
        least=0,
    )
    target_inter_token_ms: float | None = option(
        None,
        "Target for the time between two tokens, in milliseconds. While all waiting prompts are in time for "
        "--target-first-token-ms, they are computed in chunks that meet it. 0: no target, the largest chunks.",
        unset="{:g}, on a GPU {:g}".format(*TARGET_INTER_TOKEN_MS.values()),
        least=0,
    )
    prompt_lookup: str = option(
        "auto",
        "Draft tokens for requests without prompt_lookup_num_tokens. auto: with compiled CPU kernels only, where they "
        "save time. Answers do not change.",
        choices=("auto", "off"),
    )
    draft: str = option(
        "off",
        "self: a copy of the weights in 4 bits, beside those of 16 bits on a CPU, drafts tokens. One stream becomes "
        "faster, answers do not change (docs/speculation.md).",
        choices=("off", "self"),
        in_plan=True,
    )
    draft_model: str | None = option(
        None,
        "Smaller model of the same tokenizer, named as MODEL is, that drafts tokens on a CPU. One stream becomes "
        "faster, answers do not change (docs/speculation.md).",
        unset="none",
        in_plan=True,
    )
    cache_memory: int | None = option(
        None,
        "Memory of the KV cache, such as 4GiB; where several ranks share a model, of each.",
        unset=f"{CPU_SHARE:.0%} of the memory that is free after the weights, on a GPU see --gpu-memory-utilization",
        is_size=True,
        in_plan=True,
    )
    prefix_store: str | None = option(
        None,
        "Directory for pages of the KV cache. Prompts that begin as earlier ones read them back, also after a restart "
        "(docs/state.md). Several servers may share it.",
        unset="none",
    )
    prefix_store_size: int | None = option(
        None,
        "Bytes of --prefix-store; the least recently used pages are removed first.",
        unset=f"{PREFIX_STORE // 2**30}GiB",
        is_size=True,
    )
    image_cache_memory: int | None = option(
        None,
        "Cache of the embeddings of images and audio, for later requests with the same files.",
        unset=f"{IMAGE_CACHE // 2**20}MiB, for a model with large images as much as {LEAST_IMAGES} of them need",
        is_size=True,
        in_plan=True,
    )
    gpu_memory_utilization: float | None = option(
        None,
        "Share of the GPU's memory that all programs together may fill. The KV cache gets the "
        "part of this share that nothing else uses.",
        unset=str(GPU_UTILIZATION),
        above=0,
        most=1,
        in_plan=True,
    )
    max_loras: int = option(
        4,
        "Maximum number of LoRA adapters in memory, and of those that running requests use at a time.",
        least=1,
        in_plan=True,
    )
    fast_start: bool = option(
        False,
        "Be ready before all kernels are compiled and all CUDA graphs are captured. The first requests wait for them.",
        group="Computation",
    )
    threads: int | None = option(
        None,
        "Number of CPU threads that compute.",
        unset="OMP_NUM_THREADS, else one for each core that the process may use",
        least=1,
    )
    tensor_parallel_size: int = option(
        1,
        "Number of ranks (processes) that split each layer: attention by heads, feed-forward by columns.",
        least=1,
        most=MAX_RANKS,
        in_plan=True,
        group="Sharding",
    )
    pipeline_parallel_size: int = option(
        1,
        "Number of stages that share the layers. The ranks are --tensor-parallel-size for each stage.",
        least=1,
        most=MAX_RANKS,
        in_plan=True,
    )
    expert_parallel: bool = option(
        False, "Give each rank of a stage whole experts instead of a part of each.", in_plan=True
    )
    template: str | None = None  # the text of --chat-template
    adapters: tuple[tuple[int, str], ...] = ()

    @property
    def layout(self) -> Layout:
        """Return how ranks share the model."""
        return Layout(self.tensor_parallel_size, self.pipeline_parallel_size, self.expert_parallel)

    def target_seconds(self, device: str) -> tuple[float, float]:
        """Return the seconds to the first and between two tokens at which chunks of prompts aim on "cpu" or "cuda".

        0 is no target. Raises OptionError for a first one without the second: it would change nothing.
        """
        first, between = self.target_first_token_ms, self.target_inter_token_ms
        between = TARGET_INTER_TOKEN_MS[device] if between is None else between
        if first and not between:
            raise OptionError(f"--target-first-token-ms {first:g} needs --target-inter-token-ms above 0")
        return (TARGET_FIRST_TOKEN_MS[device] if first is None else first) / 1000, between / 1000

    def step_limits(self, device: str) -> tuple[int, int]:
        """Return the maximum number of sequences and of tokens in a step on a "cpu" or on "cuda".

        An option that is None gets its default, adapted to the other option.
        """
        sequences, tokens = STEP_LIMITS[device]
        tokens = self.max_step_tokens or max(tokens, self.max_sequences or 0)
        return self.max_sequences or min(sequences, tokens), tokens


def of_draft_model(options: RunnerOptions) -> RunnerOptions:
    """Return the options with which the draft model of a model runs: what describes a model is its own."""
    return replace(
        options,
        model=options.draft_model or "",
        draft_model=None,
        quantize="auto",
        softmax_scale="auto",
        sliding_window=None,
        max_model_len=None,
        adapters=(),
    )
