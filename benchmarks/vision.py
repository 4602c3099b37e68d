"""Time to encode an image on a CPU: `python -m benchmarks.vision [--schemes bfloat16 int8] [--threads 2]`.

The encoder has the size of Mistral Small 3.1's and random weights. The time of attention is that of storing q, k and v
and of attending; the products are the rest. The cosine is that of the embeddings in bfloat16 and int8 to float32, over
all tokens, the mean and the least. Only --check computes it, which takes a slow float32 encoder for each size.
With `--threads 1` the processor's seconds (CPU s) do not depend on what else the machine does.

`--attention 4096` instead measures the attention of one layer over so many patches, also in PyTorch.
"""

import argparse
import time
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu.shapes import TOWER
from benchmarks.images import RandomEncoder, photo, pixels
from benchmarks.step import Clock
from model.attention.image import CompiledImageAttention, ImageAttention, PlainImageAttention, image_attention
from model.kernels.cpu import native
from model.machine.host import choose_threads
from model.network.vision.encoder import TILE

SIZES = (256, 512, 1024, 1540)
COLUMNS = ("scheme", "pixels", "patches", "tokens", "seconds", "CPU s", "attention", "products", "cosine")


def clock_attention() -> Clock:
    """A clock of everything that image attention does, from now on."""
    clock = Clock()
    for kind in (CompiledImageAttention, PlainImageAttention):
        for method in ("store", "attend"):
            clock.wrap(kind, method, "attention")
    return clock


def encode(
    encoder: torch.nn.Module, side: int, repeats: int, clock: Clock
) -> tuple[tuple[float, float, float], torch.Tensor]:
    """The least processor seconds for an image, its seconds, those of its attention; and its embeddings."""
    image, columns = pixels(photo(side))
    found = []
    for _ in range(repeats):
        clock.take()
        started = time.process_time(), time.perf_counter()
        embeddings = encoder(image, columns, columns)
        taken = time.process_time() - started[0], time.perf_counter() - started[1]
        found.append((*taken, clock.take()["attention"]))
    return min(found), embeddings


@torch.inference_mode()
def attend(n_patches: int, threads: int, repeats: int) -> None:
    """Print the least processor seconds of one layer's attention, by the kernels and by PyTorch."""
    qkv = torch.randn(n_patches, 3 * TOWER.n_heads, TOWER.head_dim)
    turns = torch.randn(n_patches, 2, TOWER.head_dim // 2)
    torch.set_num_threads(threads)
    for dtype in (torch.bfloat16, torch.float32):
        kinds: list[ImageAttention] = [
            image_attention(turns, TOWER.n_heads, dtype),
            PlainImageAttention(turns, TOWER.n_heads, dtype),
        ]
        for attention in kinds:
            found = []
            for _ in range(repeats):
                started = time.process_time()
                for first in range(0, n_patches, TILE):
                    attention.store(first, qkv[first : first + TILE])
                for first in range(0, n_patches, TILE):
                    attention.attend(first, min(TILE, n_patches - first))
                found.append(time.process_time() - started)
            print(f"{n_patches} patches, {dtype}, {type(attention).__name__}: {min(found):.3f} s", flush=True)


@torch.inference_mode()
def measure(schemes: Sequence[str], sizes: Sequence[int], repeats: int, table: Table, *, check: bool) -> None:
    weights, clock = RandomEncoder(), clock_attention()
    exact = weights.load("none") if check else None
    references = {side: encode(exact, side, 1, clock)[1] for side in sizes} if exact else {}
    for scheme in schemes:
        encoder = weights.load(scheme)
        for side in sizes:
            (cpu, seconds, attention), embeddings = encode(encoder, side, repeats, clock)
            near = ""
            if references:
                likeness = torch.cosine_similarity(embeddings, references[side], dim=1)
                near = f"{likeness.mean():.5f}, {likeness.min():.5f}"
            n, share = len(embeddings), attention / seconds
            times = f"{seconds:.2f}", f"{cpu:.2f}", f"{share:.0%}", f"{1 - share:.0%}"
            table.add_row(scheme, str(side), str(n * encoder.config.merge**2), str(n), *times, near)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemes", nargs="+", default=["bfloat16", "int8"])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--attention", type=int, metavar="PATCHES")
    parser.add_argument("--check", action="store_true", help="compare with float32")
    args = parser.parse_args()
    threads = native.use_threads(choose_threads(args.threads))
    if args.attention:
        attend(args.attention, threads, args.repeats)
        return
    torch.set_num_threads(1)  # as the engine does beside the kernels' threads
    table = Table(*COLUMNS, title=f"{native.describe(native.kernels())}, {threads} threads")
    measure(args.schemes, args.sizes, args.repeats, table, check=args.check)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
