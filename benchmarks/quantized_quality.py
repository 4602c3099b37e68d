"""What serving a quantized checkpoint costs beside its dequantized weights: `python -m benchmarks.quantized_quality`.

The embedded model is rounded to each format, written as safetensors, and served by each scheme. The reference serves
the same file in float32 (`--quantize none`). It prints the perplexity of a text and the mean difference of its log
probabilities; the relative error of products is of the first down projection with normal activations. PyTorch does the
arithmetic of the GPU schemes (gpu) slowly on the CPU.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks import engine
from benchmarks.perplexity import default_text
from model.checkpoint.open import open_checkpoint
from model.checkpoint.resolve import EMBEDDED, resolve
from model.linear.compiled import Compiled
from model.linear.floats import WeightsOnly
from model.linear.selection import PROJECTIONS
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from model.tokenizers.load import load_tokenizer
from service.engine.messages import Submit

GROUP = 64
Parts = dict[str, Tensor]
Round = Callable[[Tensor], Parts]
DOWN = "layers.0.feed_forward.w2.weight"


def fp8_tensor(weight: Tensor) -> Parts:
    scale = weight.abs().max() / 448
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "qscale_weight": scale}


def fp8_channel(weight: Tensor) -> Parts:
    scale = weight.abs().amax(dim=1, keepdim=True) / 448
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale}


def fp8_blocks(weight: Tensor) -> Parts:
    """Blocks of 128 x 128, those at the edges smaller."""
    scale = torch.empty(-(-len(weight) // 128), -(-weight.shape[1] // 128))
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            place = slice(i * 128, i * 128 + 128), slice(j * 128, j * 128 + 128)
            scale[i, j] = weight[place].abs().max() / 448
            values[place] = (weight[place] / scale[i, j]).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale_inv": scale}


def int8_channel(weight: Tensor) -> Parts:
    scale = weight.abs().amax(dim=1, keepdim=True) / 127.5
    return {"weight": (weight / scale).round().clamp(-128, 127).to(torch.int8), "weight_scale": scale.bfloat16()}


def _groups(weight: Tensor, *, symmetric: bool, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """q [n_out, n_in], scales and zeros [n_out, n_in/64]."""
    groups = weight.unflatten(1, (-1, GROUP))
    low, high = groups.amin(dim=2).clamp(max=0), groups.amax(dim=2).clamp(min=0)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    scales = ((high - low) / steps).clamp(min=1e-6).half()
    zeros = ((steps + 1) / 2 * torch.ones_like(low)) if symmetric else (-low / scales.float()).round().clamp(0, steps)
    q = (groups / scales.float()[:, :, None]).round().add(zeros[:, :, None]).clamp(0, steps)
    return q.flatten(1).int(), scales, zeros.int()


def _words(values: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """[n, k] -> int32 [n, k * bits / 32]."""
    words = values.long().unflatten(1, (-1, 32 // bits))
    words = words[..., list(order)] if order else words
    packed = (words << torch.arange(32 // bits) * bits).sum(dim=2)
    return torch.where(packed >= 2**31, packed - 2**32, packed).int()


def gptq(weight: Tensor, *, bits: int = 4, symmetric: bool = True, ordered: bool = False) -> Parts:
    """`ordered` gives neighbouring channels to different groups, as desc_act does."""
    order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(0))
    order = order if ordered else order.sort()[0]
    q, scales, zeros = _groups(weight[:, order], symmetric=symmetric, steps=2**bits - 1)
    place = order.argsort()
    return {
        "qweight": _words(q[:, place], bits).T.contiguous(),
        "qzeros": _words((zeros.T - 1) % 2**bits, bits),
        "scales": scales.T.contiguous(),
        "g_idx": (place // GROUP).int(),
    }


def awq(weight: Tensor) -> Parts:
    q, scales, zeros = _groups(weight, symmetric=False, steps=15)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {"qweight": _words(q.T, 4, order), "qzeros": _words(zeros.T, 4, order), "scales": scales.T.contiguous()}


def packed(weight: Tensor) -> Parts:
    q, scales, _ = _groups(weight, symmetric=True, steps=15)
    shape = torch.tensor(weight.shape)
    return {"weight_packed": _words(q, 4), "weight_scale": scales.bfloat16(), "weight_shape": shape}


def _compressed(kind: str, **weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": {"weights": weights}}}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
FORMATS: Mapping[str, tuple[Round, dict[str, Any]]] = {
    "fp8 tensor": (fp8_tensor, {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}),
    "fp8 channel": (fp8_channel, _compressed("float-quantized", num_bits=8, type="float", strategy="channel")),
    "fp8 128x128": (fp8_blocks, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "int8 channel": (int8_channel, _compressed("int-quantized", num_bits=8, strategy="channel")),
    "int4 packed": (packed, _compressed("pack-quantized", num_bits=4, strategy="group", group_size=GROUP)),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}),
    "gptq": (gptq, GPTQ | {"sym": True}),
    "gptq zeros": (lambda weight: gptq(weight, symmetric=False), GPTQ | {"sym": False}),
    "gptq ordered": (lambda weight: gptq(weight, ordered=True), GPTQ | {"desc_act": True}),
    "gptq 8 bits": (lambda weight: gptq(weight, bits=8), GPTQ | {"bits": 8}),
}
SERVED = {"fp8": ("int8", "fp8"), "int8": ("int8",), "int4": ("int4", "int4-weights"), "awq": ("int4", "int4-weights")}
SERVED |= {"gptq": ("int4", "int4-weights")}


def write(directory: Path, name: str) -> None:
    """The embedded model in a format, under native names."""
    source = open_checkpoint(resolve(EMBEDDED))
    round_, quantization = FORMATS[name]
    tensors: dict[str, Tensor] = {}
    for weight, matrix in source.tensors():
        values = matrix if isinstance(matrix, Tensor) else matrix.dequantize()
        if len(values.shape) == 1 or not weight.startswith("layers."):
            tensors[weight] = values.bfloat16().clone()
            continue
        parts = round_(values.float())
        tensors |= {f"{weight.removesuffix('.weight')}.{role}": part for role, part in parts.items()}
    save_file(tensors, directory / "consolidated.safetensors")
    config = source.config
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size", "norm_eps")
    params = {field: getattr(config, field) for field in names} | {"rope_theta": config.rope_theta}
    params |= {"tied_embeddings": True, "max_seq_len": config.max_position, "quantization": quantization}
    (directory / "params.json").write_text(json.dumps(params))


def logprobs(runner: ModelRunner, tokens: list[int]) -> list[float]:
    scheduler = engine.scheduler_for(runner)
    scheduler.submit(Submit(0, tokens, SamplingParams(max_tokens=0, prompt_logprobs=0)))
    updates = (update for step in engine.steps(runner, scheduler) for update in step.updates)
    return [item.logprob for update in updates for item in update.prompt_logprobs]


def product_error(directory: Path, scheme: str) -> float:
    """The relative error of W x beside the dequantized W."""
    matrix = next(matrix for name, matrix in open_checkpoint(directory).tensors() if name == DOWN)
    assert not isinstance(matrix, Tensor)
    weight = matrix.dequantize()
    layer = PROJECTIONS[scheme](weight.shape[1], len(weight))
    if isinstance(layer, WeightsOnly):
        layer.assign_weights(layer.allocate((), torch.float32, torch.device("cpu")))
    assert isinstance(layer, WeightsOnly | Compiled)
    layer.take(0, matrix)
    x = torch.randn(64, weight.shape[1], generator=torch.Generator().manual_seed(0))
    wanted = x @ weight.T
    return float((layer(x) - wanted).norm() / wanted.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--only", choices=FORMATS, nargs="+", default=tuple(FORMATS))
    args = parser.parse_args()
    tokens = load_tokenizer(resolve(EMBEDDED)).encode(default_text(), add_bos=False, parse_control=False)[: args.tokens]
    print(f"{'file':13} {'served':13} {'W x':>7} {'perplexity':>10} {'':>8} {'|logprob|':>9}")
    for name in args.only:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), name)
            served = {"none": {"quantize": "none", "dtype": "float32"}}
            for scheme in SERVED[name.split(maxsplit=1)[0]]:
                served[scheme] = {"quantize": scheme} | (
                    {"dtype": "float32"} if scheme in ("fp8", "int4-weights") else {}
                )
            best: list[float] = []
            for scheme, options in served.items():
                found = logprobs(engine.load(folder, device="cpu", **options), tokens)
                best = best or found
                loss, more = -fmean(found), fmean(best) - fmean(found)
                error = "" if scheme == "none" else f"{product_error(Path(folder), scheme):7.2%}"
                apart = fmean(abs(a - b) for a, b in zip(best, found, strict=True))
                print(
                    f"{name:13} {scheme:13} {error:>7} {math.exp(loss):10.3f} {math.expm1(more):+8.2%} {apart:9.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
