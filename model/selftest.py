"""The self-test: before weights are read, kernels compute random numbers, and PyTorch's plain operations the same.

A compiler, a driver or a processor may be wrong for one kind of kernel only. Its numbers look like an answer, so that
nobody would notice. PyTorch serves for the kinds that fail. A test without real kernels replaces `failing`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from model.attention.base import Attention
from model.attention.rope import RopeRows
from model.attention.sdpa import SdpaAttention
from model.batch import PageTable, Slice, StepBatch
from model.checkpoint.stored import Stored
from model.config.latent import Heads
from model.config.model import ModelConfig
from model.errors import OptionError, one_line
from model.kernels import cuda
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.low_rank import PackedRows
from model.linear.base import RMSNorm
from model.linear.bfloat16 import BFloat16Linear
from model.linear.compiled import Compiled
from model.linear.floats import Floats, WeightsOnly
from model.linear.schemes import Scheme
from model.linear.selection import fix_tiles
from model.machine.device import DTYPES, name_of, of_memory
from model.network.feed_forward import FeedForward
from model.network.kernels import OWNERS, leave_to_torch, row_counts
from model.network.lora import Lora, LowRank, LowRankPart, StepAdapters
from model.network.moe import MoE
from model.sampling_params import SamplingParams
from model.step import distribution
from model.step.packing import pack

Make = Callable[[Any], Tensor]
"""Makes random numbers of a shape, float32 on a device. See `numbers`."""
Check = tuple[str, Callable[[], float], float]
"""A kind of kernels, what computes its `error_of`, and the greatest error that rounding explains."""
STEPS, LENGTHS = (((0, 140), (0, 1)), ((140, 143), (1, 40))), (143, 40)
"""Start and stop of two sequences in each step: long slices beside short ones, of which one has keys in two parts."""
WINDOW, HIDDEN_DIM, RANK, FEW = 37, 128, 16, 7
"""The greatest window, because a longer one would hide no key; other sizes; rows of which a column has an average."""
MOST = {"cpu": (256, 4, 150, 0), "cuda": (2**16, 2**16, 1024, 65)}
"""The greatest number of channels, of experts, of rows; the rows of an expert that need the last tile. Kernels of a CPU
are the same for all sizes."""
N_TOKENS = {"cpu": 1100, "cuda": 30_001}
"""With more tokens than its programs load at once, a GPU's sampling repeats its loop."""
LIMITS = {torch.float32: 1e-3, torch.float16: 5e-3, torch.bfloat16: 0.04, torch.int8: 0.12, torch.float8_e4m3fn: 0.3}
SCHEME_LIMITS = {"int8": 0.12, "int4": 0.1, "fp8": 0.25}
"""The error that rounding explains: of activations, or of keys; in schemes that round activations to 8 bits."""
SAMPLINGS: tuple[dict[str, Any], ...] = ({"temperature": 0.0}, {}, {"top_k": 20}, {"top_p": 0.8, "min_p": 0.05})


def numbers(device: torch.device) -> Make:
    """Make a maker of numbers: each call makes other ones, the first one always the same."""
    return partial(torch.randn, generator=torch.Generator(device).manual_seed(46), device=device)


def error_of(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the greatest error of a row [..., n] or column, as a share of the right one: root mean squares, or NaN."""
    shares = list[Tensor]()
    for found, right in pairs:
        squares, size = (found.float() - right).square(), right.square()
        shares.append((squares.mean(-1) / size.mean(-1)).max())
        if len(right) >= FEW:
            shares.append(squares.mean(0).max() / size.mean())
    return float(torch.stack(shares).max().sqrt())


@torch.inference_mode()
def failing(checks: Iterable[Check]) -> Mapping[str, str]:
    """Return the kinds of kernels that fail, each with the first reason: an exception, or wrong numbers.

    Raises OptionError, errors of memory, and errors after which CUDA computes no more, as they are.
    """
    found: dict[str, str] = {}
    for kind, compute, limit in checks:
        try:
            error = compute()
            right, why = error <= limit, f"its numbers are wrong, by {error:.2g}, where rounding explains {limit:g}"
        except (OptionError, torch.AcceleratorError):
            raise
        except Exception as raised:  # from Triton, the compiler or the driver
            if of_memory(raised):
                raise
            needs = "" if cuda.failed(raised) else f"; Triton needs {cuda.NEEDS}"
            right, why = False, f"{type(raised).__name__}: {one_line(raised)}{needs}"
        if not right:  # nor is NaN
            found.setdefault(kind, why)
    return found


def attention_fault(
    backend: Attention, config: ModelConfig, dtype: torch.dtype, activations: torch.dtype, device: torch.device
) -> str | None:
    """Return the fault of a backend for a model's heads and windows, and keys in `dtype`; None if there is none."""
    heads, make = config.heads, numbers(device)
    if device.type == "cpu":  # two groups of heads say as much as all
        n = min(heads.n_groups, 2)
        heads = heads._replace(n_heads=heads.n_heads // heads.n_groups * n, n_kv_heads=min(heads.n_kv_heads, n))
    qkv = make((sum(LENGTHS), heads.n_heads + heads.n_stored, heads.head_dim)).to(activations)
    angles, factors = make((len(qkv), heads.rope_dim // 2)), make(len(qkv)) / 4 + 1
    plain = config.query_temperature is None and config.query_scale == 1
    rope = RopeRows(torch.stack((angles.cos(), angles.sin()), dim=1), None if plain else factors)

    def error(window: int | None) -> float:
        found = _attended(backend, qkv, heads, rope, window, dtype)
        right = _attended(SdpaAttention(), qkv.float(), heads, rope, window, torch.float32)
        return error_of(zip(found, right, strict=True))

    limit = max(LIMITS[dtype], LIMITS[activations])
    windows = {window and min(window, WINDOW) for window in config.pool_windows}
    return failing(("attention", partial(error, window), limit) for window in windows).get("attention")


def _attended(
    backend: Attention, qkv: Tensor, heads: Heads, rope: RopeRows, window: int | None, dtype: torch.dtype
) -> list[Tensor]:
    """Return the results of both steps. Pages are scattered; memory that has not been written is NaN."""
    size, device, found = backend.page_size, qkv.device, []
    counts = [-(-length // size) for length in LENGTHS]
    tables = [(PageTable(0, pages.tolist()),) for pages in torch.arange(sum(counts)).flip(0).split(counts)]
    cache = backend.allocate((sum(counts), *heads.cache_shape), dtype, device)
    for half in cache.halves:
        half.view(torch.uint8).fill_(255)
    for step in STEPS:
        parts = list(enumerate(step))
        slices = [Slice(i, range(stop), stop, start, stop, tables[i], SamplingParams()) for i, (start, stop) in parts]
        (inputs,) = pack(StepBatch(tuple(slices)), size, [window], device).pools
        rows = torch.cat([torch.arange(start, stop) + i * LENGTHS[0] for i, (start, stop) in parts]).to(device)
        own = RopeRows(rope.rotations[rows], None if rope.q_factors is None else rope.q_factors[rows])
        found.append(backend.attend(qkv[rows], heads.n_heads, own, cache, backend.prepare(inputs)))
    return found


def faults(
    config: ModelConfig, scheme: Scheme, dtype: torch.dtype, device: torch.device, kernels: Kernels | None, fixed: bool
) -> Mapping[str, str]:
    """Return the faults of kernels besides attention's, by kind; activations are in `dtype`, tiles maybe `fixed`.

    `kernels` are the compiled ones of a CPU. Without them, and on a GPU that Triton does not serve, there are none.
    """
    if kernels is None and not cuda.serve_on(device):
        return {}
    checks: list[Check] = [("sampling", partial(_sampling_error, device, kernels), 0.05)]
    if scheme.compiled or kernels is None:
        checks += product_checks(config, scheme, dtype, device, fixed)
    return failing(checks)


def _sampling_error(device: torch.device, kernels: Kernels | None) -> float:
    """Return the share of tokens that differ. One may: a rounding error decides where two are almost equal."""
    params = [SamplingParams(**values, seed=seed) for values in SAMPLINGS for seed in range(9)]
    slices = [Slice(0, [0], 1, 0, 1, (), one) for one in params]
    logits = numbers(device)((len(slices), N_TOKENS[device.type])) * 2
    expected = distribution.choose(logits.clone(), slices, None)
    found = distribution.choose(logits, slices, kernels or distribution.on_gpu(device, logits.shape[1]))
    return float((found != expected).float().mean())


def product_checks(
    config: ModelConfig, scheme: Scheme, dtype: torch.dtype, device: torch.device, fixed: bool
) -> Iterator[Check]:
    """Yield checks of norms, products of a feed-forward block, adapters, and experts."""
    channels, n_experts, most, of_expert = MOST[device.type]
    dim, n_experts = min(config.dim, channels), min(config.n_experts, n_experts)
    adapted = DTYPES[scheme.adapter_dtype(name_of(dtype))]
    limit = max(LIMITS[adapted], SCHEME_LIMITS.get(scheme.name, 0.0))

    def error(kind: Any, plain: Any, *sizes: int, calls: Any, store: Any = Stored, most: int = most) -> float:
        """Compare a block with one in float32 by PyTorch, for rows on both sides of each change of kernels."""
        make = numbers(device)
        with torch.device("meta"):
            blocks = kind(*sizes), plain(*sizes)
        _fill(*blocks, make, dtype, store)
        if fixed:
            fix_tiles(blocks[0])
        inputs = [make((n_rows, sizes[0])) for n_rows in (FEW, *row_counts(blocks[0], most))]
        for x in inputs:  # the first channels of a row all differ, also rounded: no two experts are equally good
            x[:, :256] = x[:, :256].argsort(dim=1) / 64 - 2
        pairs = [(x.to(dtype), x.to(dtype).float()) for x in inputs]
        return error_of(tuple(map(call, blocks, pair)) for pair in pairs for call in calls)

    if not scheme.compiled:
        norm = partial(RMSNorm, eps=config.norm_eps)
        yield "norms", partial(error, norm, norm, dim, calls=(nn.Module.__call__,)), LIMITS[dtype]
    yield "adapters", partial(_adapter_error, scheme.compiled, dim, dtype, adapted, device), LIMITS[adapted]
    blocks = partial(FeedForward, scheme=scheme.name), FeedForward
    calls = (
        lambda block, x: block(x, onto=x.clone()),
        lambda block, x: block.w2(block.w13.gate(block.w13(x))),  # a gate by itself, as between products with adapters
        lambda block, x: block.w13(x),
    )
    among = partial(Stored, layout="groups")
    for store in (Stored, among) if scheme.name == "int4" else (Stored,):  # int4 has two layouts
        yield "products", partial(error, *blocks, dim, HIDDEN_DIM, calls=calls, store=store), limit
    if n_experts:
        moe = partial(MoE, scheme=scheme.name)
        n_used = min(config.n_experts_per_token, n_experts)
        sizes, most = (min(dim, 512), HIDDEN_DIM, n_experts, n_used), max(most, of_expert * n_experts // n_used)
        yield "experts", partial(error, moe, MoE, *sizes, calls=calls[:1], most=most), limit


def _fill(
    block: nn.Module, plain: nn.Module, make: Make, dtype: torch.dtype, store: Callable[[Tensor], Stored]
) -> None:
    """Give a block random weights, and `plain` the same as they are stored, in float32."""
    if isinstance(block, MoE) and isinstance(block.experts[0].w13, Floats):
        block.reserve(dtype, make(1).device)
    for mine, theirs in zip(block.modules(), plain.modules(), strict=True):
        if isinstance(mine, RMSNorm):
            mine.weight = nn.Parameter((make(mine.weight.shape) / 4 + 1).to(dtype), requires_grad=False)
        if isinstance(mine, Floats | Compiled | RMSNorm):
            stored = mine.weight.float() if isinstance(mine, RMSNorm) else _filled(mine, make, dtype, store)
            theirs.weight = nn.Parameter(stored, requires_grad=False)
    if isinstance(block, MoE) and isinstance(plain, MoE):
        plain.gate.weight.copy_(block.gate.weight.copy_(torch.eye(*plain.gate.weight.shape)))  # type: ignore
    leave_to_torch(plain, OWNERS)


def _filled(part: Floats | Compiled, make: Make, dtype: torch.dtype, store: Callable[[Tensor], Stored]) -> Tensor:
    """Return the weights that a projection now has. Compiled schemes round nothing: a group has values of both ends."""
    matrix = (make((part.n_out, part.n_in)) * 1.3).clamp(-1.9, 1.9).floor() * 2 + 1  # -3, -1, 1 and 3
    matrix[:, ::32], matrix[:, 1::32] = 3, -3
    matrix *= (make((part.n_out, 1)) / 4 + 1) / (2 * part.n_in**0.5)
    if isinstance(part, Compiled):
        part.take(0, store(matrix))
        return matrix
    if part.weights is None or part.weights.values.is_meta:
        part.assign_weights(part.allocate((), dtype, matrix.device))
    assert part.weights is not None
    if isinstance(part, WeightsOnly):
        part.take(0, store(matrix))
        return part.dequantize(part.weights, slice(None))
    return part.weights.values.copy_(matrix).float()


def _adapter_error(packed: bool, n_in: int, dtype: torch.dtype, adapted: torch.dtype, device: torch.device) -> float:
    """Return the error of rows of which all but the first have an adapter."""
    make = numbers(device)
    a, b = ((make((n, width)) * width**-0.5).to(adapted) for n, width in ((RANK, n_in), (HIDDEN_DIM, RANK)))
    adapter = Lora(({"wo": LowRank(a, (LowRankPart(0, 0, b),))},))
    x, y = make((20, n_in)).to(dtype), make((20, HIDDEN_DIM)).to(dtype)
    right = torch.cat((y[:1], y[1:] + x[1:].float() @ a.float().T @ b.float().T)).float()
    step = StepAdapters.of([None, adapter.pack() if packed else adapter], [1, 19], device)
    assert step is not None
    uses = step.layer(0)["wo"]
    if isinstance(uses, PackedRows):  # the kernels add them to a product, here of zeros
        product = BFloat16Linear(n_in, HIDDEN_DIM)
        product.take(0, Stored(torch.zeros(HIDDEN_DIM, n_in)))
        product(x, onto=y, adapters=uses)
    else:
        uses.add(y, x, None)
    return error_of([(y, right)])
