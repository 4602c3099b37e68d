"""Peak anonymous memory while a model is loaded: `python -m benchmarks.loading_memory [--gigabytes 2] [--only FORM]`.

Each case writes a random checkpoint into a temporary folder, loads it in a fresh process and deletes it. The bound is
the size of the served weights plus the largest group: the matrices that become one projection, in the file's format.
Pages of the mapped file are not anonymous: the system takes them back when it needs memory. Linux only.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks import random_gguf

DIM, HIDDEN, HEADS, KV_HEADS, VOCAB = 4096, 14336, 32, 8, 32000
SHAPES = {
    "self_attn.q_proj": (DIM, DIM),
    "self_attn.k_proj": (DIM // 4, DIM),
    "self_attn.v_proj": (DIM // 4, DIM),
    "self_attn.o_proj": (DIM, DIM),
    "mlp.gate_proj": (HIDDEN, DIM),
    "mlp.up_proj": (HIDDEN, DIM),
    "mlp.down_proj": (DIM, HIDDEN),
}
CASES = (("bf16", "int8"), ("bf16", "int4"), ("bf16", "none"), ("fp8", "int8"), ("fp8", "none"), ("gptq", "int4"))
MORE_CASES = (("awq", "int4"), ("gptq", "int8"), ("Q4_0", "int4"), ("Q4_K_M", "int4"), ("Q4_K_M", "int8"))
BITS = {"bf16": 16, "fp8": 8, "gptq": 4.25, "awq": 4.25, "Q4_0": 4.5, "Q4_K_M": 4.5}
"""Bits of a weight of w1 and w3. The forms in capitals are GGUF files of these kinds."""
QUANTIZATION: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False, "desc_act": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
}


def parts(form: str, n_out: int, n_in: int) -> dict[str, Tensor]:
    """One projection in the format of `form`, with random values."""
    if form == "bf16":
        return {"weight": torch.randn(n_out, n_in, dtype=torch.bfloat16) * n_in**-0.5}
    if form == "fp8":
        values = (torch.randn(n_out, n_in) * 60).to(torch.float8_e4m3fn)
        return {"weight": values, "weight_scale_inv": torch.full((n_out // 128, n_in // 128), n_in**-0.5 / 60)}
    packed = (n_in // 8, n_out) if form == "gptq" else (n_in, n_out // 8)
    groups = n_in // 128
    return {
        "qweight": _words(*packed),
        "qzeros": _words(groups, n_out // 8),
        "scales": torch.full((groups, n_out), n_in**-0.5 / 5, dtype=torch.float16),
    }


def _words(*shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)


def write(directory: Path, form: str, n_bytes: int) -> None:
    """A checkpoint of about `n_bytes`, one shard a layer."""
    a_layer = sum(n_out * n_in for n_out, n_in in SHAPES.values()) * BITS[form] / 8
    n_layers = max(1, round((n_bytes - 4 * VOCAB * DIM) / a_layer))
    if form in random_gguf.MIXES:
        shape = random_gguf.Shape(DIM, n_layers, HEADS, KV_HEADS, HIDDEN)
        random_gguf.write(directory / "model.gguf", shape, form)
        return
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(_shards(form, n_layers)):
        name = f"model-{number + 1:05}-of-{n_layers + 1:05}.safetensors"
        save_file(tensors, directory / name)
        weight_map |= dict.fromkeys(tensors, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = {"model_type": "llama", "hidden_size": DIM, "num_hidden_layers": n_layers, "intermediate_size": HIDDEN}
    config |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "dtype": "bfloat16"}
    config |= {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096}
    quantization = {"quantization_config": QUANTIZATION[form]} if form in QUANTIZATION else {}
    (directory / "config.json").write_text(json.dumps(config | quantization))


def _shards(form: str, n_layers: int) -> Iterator[dict[str, Tensor]]:
    for layer in range(n_layers):
        prefix = f"model.layers.{layer}."
        norms = ("input_layernorm", "post_attention_layernorm")
        tensors = {f"{prefix}{name}.weight": torch.ones(DIM, dtype=torch.bfloat16) for name in norms}
        for name, shape in SHAPES.items():
            tensors |= {f"{prefix}{name}.{role}": part for role, part in parts(form, *shape).items()}
        yield tensors
    plain = parts("bf16", VOCAB, DIM)["weight"]
    yield {
        "model.embed_tokens.weight": plain,
        "model.norm.weight": torch.ones(DIM, dtype=torch.bfloat16),
        "lm_head.weight": plain.clone(),
    }


def anonymous() -> int:
    """Bytes of anonymous memory of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) * 1024


def load(directory: Path, quantize: str) -> dict[str, int]:
    """Load in this process: bytes before, at the peak, afterwards, and what the weights should take."""
    from model import loading
    from model.checkpoint.open import open_checkpoint
    from model.checkpoint.resolve import resolve
    from model.memory import sizes
    from model.options import RunnerOptions
    from model.setup import choose

    if (gguf := directory / "model.gguf").exists():
        directory = resolve(str(gguf))
    checkpoint = open_checkpoint(directory)
    setup = choose(checkpoint, RunnerOptions(str(directory), device="cpu", quantize=quantize))
    torch.randn(256, 256) @ torch.randn(256, 256)  # PyTorch's own buffers
    before, done, seen = anonymous(), threading.Event(), [0]

    def watch() -> None:
        while not done.wait(0.001):
            seen.append(max(seen.pop(), anonymous()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    model = loading.read(setup, checkpoint, lambda *_: None)
    done.set()
    watcher.join()
    dtype = str(setup.dtype).removeprefix("torch.")
    weights = sizes.weight_bytes(setup.shard, setup.scheme, dtype, checkpoint.block_bits)
    assert model is not None  # it is in memory until here
    return {"before": before, "peak": seen[0], "after": anonymous(), "weights": weights}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--only", choices=BITS, nargs="+", default=tuple(BITS))
    parser.add_argument("--load", nargs=2, metavar=("DIRECTORY", "QUANTIZE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.load:
        print(json.dumps(load(Path(chosen.load[0]), chosen.load[1])))
        return
    print(f"{'file':6} {'served':7} {'weights':>8} {'group':>6} {'bound':>7} {'peak':>7} {'after':>7}  MB, anonymous")
    for form, quantize in (*CASES, *MORE_CASES):
        if form not in chosen.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), form, int(chosen.gigabytes * 1e9))
            command = [sys.executable, "-m", "benchmarks.loading_memory", "--load", folder, quantize]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        weights, peak, after = found["weights"], found["peak"] - found["before"], found["after"] - found["before"]
        group = 2 * HIDDEN * DIM * BITS[form] / 8  # w1 and w3 become one projection
        row = (weights, group, weights + group, peak, after)
        verdict = "" if peak <= weights + group else "  ABOVE THE BOUND"
        print(
            f"{form:6} {quantize:7} {row[0] / 1e6:8.0f} {row[1] / 1e6:6.0f} "
            + " ".join(f"{x / 1e6:7.0f}" for x in row[2:])
            + verdict,
            flush=True,
        )


if __name__ == "__main__":
    main()
