"""ModelRunner: load a model, size its cache, compute steps."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model import memory, packing, profile, quant, retry, sampler, weights
from model.ahead import Drawn, resolve
from model.attention import choose
from model.attention.base import Attention
from model.batch import PageTable, PoolSpec, RunnerInfo, Slice, SliceOutput, StepBatch, StepOutput, TokenLogprob
from model.cache import PagePools
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.config import ModelConfig, RunnerOptions
from model.device import choose_device, choose_dtype, free_bytes, name_of
from model.errors import ModelError, OptionError
from model.fused import fuse
from model.graphs import Capture, CudaCapture, DecodeGraphs
from model.kernels import native
from model.masks import Masks
from model.memory import LOGIT_VALUES
from model.packing import PackedInputs
from model.rope import rotation_table
from model.sampling_params import SamplingParams
from model.threads import choose_threads
from model.transformer import Transformer
from model.upload import uploaded

Progress = Callable[[str, float], None]
CPU = torch.device("cpu")
KV_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


class Started(NamedTuple):
    """A step that the device computes: the draws of each slice, what was drawn, and for what is to be done with hidden
    states [T, dim] (none, of a step that only decodes) the rows to score."""

    views: Sequence[Sequence[Slice]]
    draws: Sequence[sampler.Draws]
    score_rows: Sequence[tuple[int, int]] = ()
    hidden: Tensor = torch.empty(0)


class ModelRunner:
    """A loaded model. Satisfies `model.batch.Runner`; owned by one thread."""

    def __init__(
        self, model: Transformer, pools: PagePools, attention: Attention, table: Tensor, info: RunnerInfo, masks: Masks
    ) -> None:
        self.info = info
        self._windows = [pool.window for pool in info.pools]
        self._masks = masks
        self._model = model
        self._pools = pools
        self._attention = attention
        self._table = table  # [max_model_len, 2, head_dim/2]
        self._fused = fuse(model, attention, pools)
        self._drawn = Drawn.of((), (), table.device)
        self._graphs: DecodeGraphs | None = None

    def record(self, most: int, capture: Capture) -> None:
        """From now on repeat steps of at most `most` slices that only decode, as `capture` recorded them."""
        self._graphs = DecodeGraphs(self.decode, self.info, most, self._table.device, capture)

    def prepare(self, params: SamplingParams) -> None:
        """Compile the grammar, if there is one; on any thread but the stepping one."""
        if params.grammar is not None:
            self._masks.prepare(params.grammar)

    def step(self, batch: StepBatch) -> StepOutput:
        """Launch and wait."""
        return self.launch(batch)()

    @torch.inference_mode()
    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        """Compute every slice, write its keys and values to its pages, draw where a slice draws; see `Runner`.

        If memory does not suffice, in parts. The masks of all of them are asked for once.
        """
        self._masks.start([item.draws for item in batch.slices])
        started = retry.attempt(partial(self._start, batch), batch)
        if started is None:
            output = retry.in_parts(batch, self._compute)
            self._drawn = Drawn.known(batch.slices, output.slices, self._table.device)
            return lambda: output
        if self.info.runs_ahead:
            drawing = [view for views in started.views for view in views]
            self._drawn = Drawn.of(drawing, [some.tokens for some in started.draws], self._table.device)
        return partial(self._finish, batch, started)

    def rest(self) -> bool:
        """Record a graph that is missing."""
        return self._graphs is not None and self._graphs.rest()

    @torch.inference_mode()
    def decode(self, inputs: PackedInputs, drawn: Tensor) -> Tensor:
        """Logits [T, vocab_size] of every row: what a graph repeats."""
        return self._model.logits(self._hidden(inputs, drawn))

    def _start(self, batch: StepBatch) -> Started:
        views = [item.draws for item in batch.slices]
        drawing = [view for item in views for view in item]
        if self._graphs is not None and _only_decodes(batch):
            logits = self._graphs.logits(self._pack(batch, CPU), self._drawn.tokens)
            if logits is not None:
                return Started(views, [sampler.sample(logits, drawing, (self._masks.step,))])
        inputs = self._pack(batch, self._table.device)
        hidden = self._hidden(inputs, self._drawn.tokens)
        draws = list(self._draw(hidden.index_select(0, inputs.draw_rows), drawing))
        return Started(views, draws, inputs.score_rows, hidden)

    @torch.inference_mode()
    def _finish(self, batch: StepBatch, started: Started) -> StepOutput:
        output = retry.attempt(partial(self._collect, batch, started), batch)
        return retry.in_parts(batch, self._compute) if output is None else output

    def _compute(self, batch: StepBatch) -> StepOutput:
        return self._collect(batch, self._start(batch))

    def _pack(self, batch: StepBatch, device: torch.device) -> PackedInputs:
        return packing.pack(batch, self.info.page_size, self._windows, device, self._drawn.rows)

    def _hidden(self, inputs: PackedInputs, drawn: Tensor) -> Tensor:
        """Hidden states [T, dim] before the last norm; `drawn` are the tokens that the step before drew."""
        if self.info.runs_ahead:
            inputs = replace(inputs, tokens=resolve(inputs.tokens, drawn))
        return self._model(inputs, self._table, self._attention, self._pools, self._fused)

    def _draw(self, hidden: Tensor, slices: list[Slice]) -> Iterator[sampler.Draws]:
        """One token after each row of hidden [N, dim]."""
        size = self._block_rows()
        for first in range(0, len(slices), size):
            logits = self._model.logits(hidden[first : first + size])  # [block, vocab_size]
            yield sampler.sample(logits, slices[first : first + size], (self._masks.step,))

    def _collect(self, batch: StepBatch, started: Started) -> StepOutput:
        """Wait for what was drawn; score and pool what is wanted."""
        drawn = chain.from_iterable(some.read() for some in started.draws)
        rows = started.score_rows or ((0, 0),) * len(batch.slices)
        outputs = []
        for item, wanted, (row, n_rows) in zip(batch.slices, started.views, rows, strict=True):
            tokens, logprobs = _kept(item, list(islice(drawn, len(wanted))))
            prompt = self._score(item, started.hidden[row : row + n_rows]) if n_rows else ()
            failure = self._masks.failure(wanted[: len(tokens)])
            if sampler.NO_TOKEN in tokens:
                failure = (
                    "no token is left to draw: the request's limits hide all, or the model's logits are not finite"
                )
            pooled = self._pool(item, started.hidden[row : row + item.stop - item.start]) if item.params.embed else ()
            given = SliceOutput(tokens, logprobs, prompt, pooled=pooled)
            outputs.append(given if failure is None else SliceOutput(failure=failure))
        return StepOutput(tuple(outputs))

    def _score(self, item: Slice, hidden: Tensor) -> tuple[TokenLogprob, ...]:
        """Logprobs of the prompt tokens that follow the rows of hidden [n, dim]."""
        size = self._block_rows()
        found: list[TokenLogprob] = []
        for first in range(0, len(hidden), size):
            logprobs = sampler.log_softmax(self._model.logits(hidden[first : first + size]))  # [block, vocab_size]
            after = item.start + first + 1
            tokens = item.tokens[after : after + len(logprobs)]
            scores = sampler.token_logprobs(logprobs, tokens, [item.params.prompt_logprobs or 0] * len(logprobs))
            ranks = sampler.ranks(logprobs, tokens)
            found += [replace(score, rank=rank) for score, rank in zip(scores, ranks, strict=True)]
        return tuple(found)

    def _pool(self, item: Slice, hidden: Tensor) -> tuple[float, ...]:
        """`SliceOutput.pooled` of hidden [n, dim]; in float64, so that how a prompt is cut shows in no float32."""
        if item.params.embed == "last":
            hidden = hidden[item.n_prompt - 1 - item.start :][:1]
        return tuple(self._model.norm(hidden).double().sum(dim=0).tolist()) if len(hidden) else ()

    def _block_rows(self) -> int:
        return max(1, LOGIT_VALUES // self.info.vocab_size)


def _only_decodes(batch: StepBatch) -> bool:
    """Whether every slice is one token, and draws."""
    return all(item.stop - item.start == 1 and len(item.draws) == 1 and not item.scores_prompt for item in batch.slices)


def _kept(
    item: Slice, drawn: list[tuple[int, TokenLogprob | None]]
) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
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


def load(options: RunnerOptions, progress: Progress) -> ModelRunner:
    """Open, check, read, warm up."""
    _check(options)
    progress("checking memory", 0.0)
    checkpoint = open_checkpoint(Path(options.model), max_model_len=options.max_model_len)
    return load_from(checkpoint, options, progress)


@torch.inference_mode()
def load_from(checkpoint: Checkpoint, options: RunnerOptions, progress: Progress) -> ModelRunner:
    """Check memory, read, warm up."""
    device = choose_device(options.device)
    own_blocks = checkpoint.quantized and quant.runs_in_blocks(checkpoint.config)
    scheme = quant.choose(options.quantize, options.dtype, device, quantized=own_blocks)
    config = checkpoint.config.with_window(options.sliding_window)
    threads = choose_threads(options.threads)
    native.use_threads(threads)
    torch.set_num_threads(threads)
    dtype = _cache_dtype(options.dtype, config, scheme, device)
    form = quant.form(scheme, dtype, device)
    activations = dtype if quant.in_floats(form) else torch.float32
    kv_dtype = _kv_dtype(options.kv_dtype, dtype)
    attention_name, attention = choose(
        options.attention, device, kv_dtype, activations, deterministic=options.deterministic
    )
    head_bytes = attention.head_bytes(config.head_dim, kv_dtype)
    plan = memory.PoolPlan(config, attention.page_size, head_bytes, options.max_step_tokens, options.max_sequences)
    bits = quant.bits(form, config, checkpoint.block_bits)
    needed = memory.weight_bytes(config, dtype.itemsize, bits, head=not quant.in_floats(form))
    gpu = profile.watched(device) if options.cache_memory is None else None
    length, budget = _fit(plan, needed, form if bits else name_of(dtype), device, options, gpu)
    with torch.device("meta"):
        model = Transformer(config, form)
    if options.deterministic:
        quant.fix_tiles(model)
    progress("loading weights", 0.0)
    weights.load(
        model,
        config,
        checkpoint.rotation,
        uploaded(checkpoint.tensors(), device),
        activations,
        device,
        lambda done: progress("loading weights", done),
        embeddings=dtype,
    )
    if options.deterministic and device.type == "cpu":
        quant.check_tiles(model, activations)
    masks = Masks({"directory": options.model, "size": config.vocab_size}, config.vocab_size)
    description = _describe(checkpoint, device, (dtype, kv_dtype), attention_name, scheme)

    def build(length: int, specs: tuple[PoolSpec, ...]) -> ModelRunner:
        ahead = device.type == "cuda"
        info = RunnerInfo(attention.page_size, specs, length, config.vocab_size, config.dim, description, ahead)
        pools = PagePools.allocate(config, specs, lambda shape: attention.allocate(shape, kv_dtype, device))
        return ModelRunner(model.eval(), pools, attention, rotation_table(config, length, device), info, masks)

    if gpu is not None:
        progress("measuring a step", 0.0)
        length, budget = _measure(plan, length, options, gpu, build)
    runner = build(length, plan.pools(length, budget))
    if not quant.in_floats(form) and native.kernels() is not None:
        torch.set_num_threads(1)  # the kernels' own do nearly all the work: PyTorch's would spin beside them
    progress("warming up", 0.0)
    _warm_up(runner)
    if device.type == "cuda" and attention.capturable:
        runner.record(options.max_sequences, CudaCapture())
    return runner


def _measure(
    plan: memory.PoolPlan, length: int, options: RunnerOptions, gpu: profile.DeviceMemory, build: profile.Build
) -> tuple[int, int]:
    """The longest sequence to serve, `length` at most, and the bytes for keys and values beside the largest step."""
    budget = profile.cache_budget(plan, length, options.gpu_memory_utilization, gpu, build)
    return min(length, plan.length(options.max_model_len, budget, length * plan.position_bytes)), budget


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
        if getattr(options, name) < least:
            flag = name.replace("_", "-")
            raise OptionError(f"--{flag} must be at least {least}, got {getattr(options, name)}")
    share = options.gpu_memory_utilization
    if share is None:
        return
    if not 0.0 < share <= 1.0:
        raise OptionError(f"--gpu-memory-utilization must be above 0 and at most 1, got {share}")
    if options.cache_memory is not None:
        raise OptionError(f"--gpu-memory-utilization {share} and --cache-memory say the same in two ways; give one")
    if choose_device(options.device).type == "cpu":
        raise OptionError(f"--gpu-memory-utilization {share} is of a GPU, the device is cpu; use --cache-memory")


def _fit(
    plan: memory.PoolPlan,
    weights: int,
    form: str,
    device: torch.device,
    options: RunnerOptions,
    gpu: profile.DeviceMemory | None,
) -> tuple[int, int]:
    """The longest sequence to serve and the bytes for keys and values, beside `weights` bytes; raises OptionError.

    With a `gpu` to be watched both are what there would be if a step took nothing: see `_measure`.
    """
    free = free_bytes(device)
    where = "the GPU" if device.type == "cuda" else "this machine"
    memory.check_weights(plan.config, weights, form, free, where)
    free -= weights
    if gpu is not None:
        budget = memory.gpu_budget(gpu.total, gpu.total - free, options.gpu_memory_utilization)
        return plan.length(options.max_model_len, budget, free - budget), budget
    budget = memory.cache_budget(options.cache_memory, free, memory.CPU_SHARE, where)
    length = plan.length(options.max_model_len, budget, free - budget)
    return length, budget if options.cache_memory is not None else min(budget, plan.most_useful(length))


def _describe(
    checkpoint: Checkpoint, device: torch.device, dtypes: tuple[torch.dtype, torch.dtype], attention: str, scheme: str
) -> dict[str, str]:
    return {
        "family": checkpoint.config.family,
        "parameters": str(checkpoint.config.n_parameters),
        "weights": checkpoint.fingerprint,
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
