"""ModelRunner: load a model, size its cache, compute steps."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model import memory, packing, quant, sampler, weights
from model.attention import choose
from model.attention.base import Attention
from model.batch import PageTable, RunnerInfo, Slice, SliceOutput, StepBatch, StepOutput, TokenLogprob
from model.cache import PagePools
from model.checkpoint.open import open_checkpoint
from model.config import ModelConfig, RunnerOptions
from model.device import choose_device, choose_dtype, free_bytes, name_of
from model.errors import ModelError, OptionError
from model.fused import fuse
from model.kernels import native
from model.masks import Masks
from model.rope import rotation_table
from model.sampling_params import SamplingParams
from model.threads import choose_threads
from model.transformer import Transformer

Progress = Callable[[str, float], None]
Drawn = tuple[int, TokenLogprob | None]
LOGIT_VALUES = 2**23
"""Logits held at a time, in float32 values: rows are scored and drawn in blocks of this size."""
KV_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
CACHE_SHARE = {"cpu": 0.25, "cuda": 0.9}
"""Part of the memory free after the weights that keys and values get by default."""


class ModelRunner:
    """A loaded model. Satisfies `model.batch.Runner`; owned by one thread."""

    def __init__(
        self, model: Transformer, pools: PagePools, attention: Attention, table: Tensor, info: RunnerInfo, masks: Masks
    ) -> None:
        self.info = info
        self._masks = masks
        self._model = model
        self._pools = pools
        self._attention = attention
        self._table = table  # [max_model_len, 2, head_dim/2]
        self._fused = fuse(model, attention, pools)

    def prepare(self, params: SamplingParams) -> None:
        """Compile the grammar, if there is one; on any thread but the stepping one."""
        if params.grammar is not None:
            self._masks.prepare(params.grammar)

    @torch.inference_mode()
    def step(self, batch: StepBatch) -> StepOutput:
        """Compute every slice, write its keys and values to its pages, draw where a slice draws."""
        windows = [pool.window for pool in self.info.pools]
        views = [item.draws for item in batch.slices]
        self._masks.start(views)
        inputs = packing.pack(batch, self.info.page_size, windows, self._table.device)
        hidden = self._model(inputs, self._table, self._attention, self._pools, self._fused)  # [T, dim]
        drawn = self._draw(hidden.index_select(0, inputs.draw_rows), [view for item in views for view in item])
        outputs = []
        for item, wanted, (row, n_rows) in zip(batch.slices, views, inputs.score_rows, strict=True):
            tokens, logprobs = _kept(item, list(islice(drawn, len(wanted))))
            prompt = self._score(item, hidden[row : row + n_rows]) if n_rows else ()
            failure = self._masks.failure(wanted[: len(tokens)])
            if sampler.NO_TOKEN in tokens:
                failure = (
                    "no token is left to draw: the request's limits hide all, or the model's logits are not finite"
                )
            pooled = self._pool(item, hidden[row : row + item.stop - item.start]) if item.params.embed else ()
            given = SliceOutput(tokens, logprobs, prompt, pooled=pooled)
            outputs.append(given if failure is None else SliceOutput(failure=failure))
        return StepOutput(tuple(outputs))

    def _draw(self, hidden: Tensor, slices: list[Slice]) -> Iterator[Drawn]:
        """One token after each row of hidden [N, dim]."""
        size = self._block_rows()
        for first in range(0, len(slices), size):
            logits = self._model.logits(hidden[first : first + size])  # [block, vocab_size]
            yield from sampler.sample(logits, slices[first : first + size], (self._masks.step,))

    def _score(self, item: Slice, hidden: Tensor) -> tuple[TokenLogprob, ...]:
        """Logprobs of the prompt tokens that follow the rows of hidden [n, dim]."""
        size = self._block_rows()
        found: list[TokenLogprob] = []
        for first in range(0, len(hidden), size):
            logprobs = sampler.log_softmax(self._model.logits(hidden[first : first + size]))  # [block, vocab_size]
            after = item.start + first + 1
            tokens = item.tokens[after : after + len(logprobs)]
            found += sampler.token_logprobs(logprobs, tokens, [item.params.prompt_logprobs or 0] * len(logprobs))
        return tuple(found)

    def _pool(self, item: Slice, hidden: Tensor) -> tuple[float, ...]:
        """`SliceOutput.pooled` of hidden [n, dim]; in float64, so that how a prompt is cut shows in no float32."""
        if item.params.embed == "last":
            hidden = hidden[item.n_prompt - 1 - item.start :][:1]
        return tuple(self._model.norm(hidden).double().sum(dim=0).tolist()) if len(hidden) else ()

    def _block_rows(self) -> int:
        return max(1, LOGIT_VALUES // self.info.vocab_size)


def _kept(item: Slice, drawn: list[Drawn]) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
    """Tokens drawn along the draft, up to the first that differs from it, and their logprobs."""
    draft = item.tokens[item.stop - item.n_draft : item.stop]
    agree = takewhile(lambda pair: pair[0] == pair[1][0], zip(draft, drawn, strict=False))
    kept = drawn[: sum(1 for _ in agree) + 1]
    return tuple(token for token, _ in kept), tuple(logprob for _, logprob in kept if logprob is not None)


def create(progress: Progress, **options: Any) -> ModelRunner:
    """Load a model as `RunnerOptions(**options)` says; `progress` gets (stage, fraction 0..1).

    Raises ModelError for a checkpoint that cannot be loaded, OptionError for an option that cannot be honoured;
    memory is checked before weights are read.
    """
    return load(RunnerOptions(**options), progress)


@torch.inference_mode()
def load(options: RunnerOptions, progress: Progress) -> ModelRunner:
    """Open, check, read, warm up."""
    _check_counts(options)
    device = choose_device(options.device)
    progress("checking memory", 0.0)
    checkpoint = open_checkpoint(Path(options.model), max_model_len=options.max_model_len)
    own_blocks = checkpoint.quantized and quant.runs_in_blocks(checkpoint.config)
    scheme = quant.choose(options.quantize, options.dtype, device, quantized=own_blocks)
    config = _with_window(checkpoint.config, options.sliding_window)
    threads = choose_threads(options.threads)
    native.use_threads(threads)
    torch.set_num_threads(threads)
    dtype = _cache_dtype(options.dtype, config, scheme, device)
    activations = dtype if scheme == "none" else torch.float32
    kv_dtype = _kv_dtype(options.kv_dtype, dtype)
    attention_name, attention = choose(options.attention, device, kv_dtype, activations)
    head_bytes = attention.head_bytes(config.head_dim, kv_dtype)
    plan = memory.PoolPlan(config, attention.page_size, head_bytes, options.max_step_tokens, options.max_sequences)
    bits = quant.bits(scheme, config, checkpoint.block_bits)
    needed = memory.weight_bytes(config, dtype.itemsize, bits)
    length, budget = _fit(plan, needed, scheme if bits else name_of(dtype), device, options)
    with torch.device("meta"):
        model = Transformer(config, scheme)
    progress("loading weights", 0.0)
    weights.load(
        model,
        config,
        checkpoint.rotation,
        checkpoint.tensors(),
        activations,
        device,
        lambda done: progress("loading weights", done),
        embeddings=dtype,
    )
    info = RunnerInfo(
        page_size=attention.page_size,
        pools=plan.pools(length, budget),
        max_model_len=length,
        vocab_size=config.vocab_size,
        dim=config.dim,
        description=_describe(config, device, (dtype, kv_dtype), attention_name, scheme),
    )
    pools = PagePools.allocate(config, info.pools, lambda shape: attention.allocate(shape, kv_dtype, device))
    masks = Masks({"directory": options.model, "size": config.vocab_size}, config.vocab_size)
    runner = ModelRunner(model.eval(), pools, attention, rotation_table(config, length, device), info, masks)
    if scheme != "none" and native.kernels() is not None:
        torch.set_num_threads(1)  # the kernels' own do nearly all the work: PyTorch's would spin beside them
    progress("warming up", 0.0)
    _warm_up(runner)
    return runner


def _cache_dtype(name: str, config: ModelConfig, scheme: str, device: torch.device) -> torch.dtype:
    """Of embeddings and, by default, keys and values; of weights and activations too, unless they are quantized."""
    if name == "auto" and scheme != "none":
        return torch.bfloat16
    return choose_dtype(name, config.dtype, device)


def _kv_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """Of keys and values: that of the model, or one of eight bits."""
    if name != "auto" and name not in KV_DTYPES:
        raise OptionError(f"--kv-dtype {name} is not known, choose one of: auto, {', '.join(KV_DTYPES)}")
    return KV_DTYPES.get(name, dtype)


def _check_counts(options: RunnerOptions) -> None:
    for name, least in (("max_sequences", 1), ("max_step_tokens", 1), ("sliding_window", 0)):
        if getattr(options, name) < least:
            flag = name.replace("_", "-")
            raise OptionError(f"--{flag} must be at least {least}, got {getattr(options, name)}")


def _with_window(config: ModelConfig, window: int) -> ModelConfig:
    return replace(config, windows=(window,) * config.n_layers) if window else config


def _fit(
    plan: memory.PoolPlan, weights: int, form: str, device: torch.device, options: RunnerOptions
) -> tuple[int, int]:
    """The longest sequence to serve and the bytes for keys and values, beside `weights` bytes; raises OptionError."""
    where = "the GPU" if device.type == "cuda" else "this machine"
    free = free_bytes(device)
    memory.check_weights(plan.config, weights, form, free, where)
    free -= weights
    budget = memory.cache_budget(options.cache_memory, free, CACHE_SHARE[device.type], where)
    length = plan.length(options.max_model_len, budget, free - budget)
    return length, budget if options.cache_memory is not None else min(budget, plan.most_useful(length))


def _describe(
    config: ModelConfig, device: torch.device, dtypes: tuple[torch.dtype, torch.dtype], attention: str, scheme: str
) -> dict[str, str]:
    return {
        "family": config.family,
        "parameters": str(config.n_parameters),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "dtype": name_of(dtypes[0]),
        "kv_dtype": name_of(dtypes[1]),
        "attention": attention,
        "quantize": scheme,
        "kernels": native.describe(native.kernels() if device.type == "cpu" else None),
        "torch": torch.__version__,
    }


def _warm_up(runner: ModelRunner) -> None:
    """One ordinary step on pages that nobody holds yet, so that the first request does not pay for set-up.

    Raises ModelError if its logits are not finite.
    """
    info = runner.info
    blocks = [range(pool.n_pages) for pool in info.pools]
    n = min(info.page_size, info.max_model_len)
    tables = tuple(PageTable(0, pages) for pages in blocks)
    batch = StepBatch((Slice(0, [0] * n, n, 0, n, tables, SamplingParams(max_tokens=1)),))
    (drawn,) = runner.step(batch).slices
    if drawn.failure is not None:
        raise ModelError("the model's logits are not finite: its checkpoint is damaged, or its --dtype too narrow")
