"""What int8 and bfloat16 cost an image encoder: `python -m benchmarks.vision_quality [--side 448]`.

The embeddings of drawn images are compared with those in float32, token by token: mean and least cosine similarity.
The weights are random, with and without channels that stand out. The text model is the embedded one; the embeddings are
scaled to those of its tokens. "logprobs" is the mean difference of the log probabilities of a text after the image.

No published encoder is at hand. The last rows therefore show trained blocks of the same kind: the hidden states of the
embedded text model over a text.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

import torch
from rich.console import Console
from torch import Tensor

from benchmarks.images import IMAGES, RandomEncoder, pixels
from benchmarks.perplexity import default_text
from model.attention import choose
from model.attention.cache import PagePools
from model.attention.rope import RopeTables
from model.batch import PageTable, PoolSpec, Slice, StepBatch
from model.checkpoint.open import open_checkpoint
from model.checkpoint.resolve import EMBEDDED, resolve
from model.kernels.cpu import native
from model.machine.host import choose_threads
from model.network import weights
from model.network.transformer import Transformer
from model.sampling_params import SamplingParams
from model.sharding.shard import shard_of
from model.step.packing import pack
from model.tokenizers.load import load_tokenizer

CPU = torch.device("cpu")
SCHEMES = ("int8", "bfloat16")
TOKENS = 500


def text_model(scheme: str) -> Transformer:
    """The embedded model on float32 activations."""
    opened = open_checkpoint(resolve(EMBEDDED))
    with torch.device("meta"):
        model = Transformer(opened.config, scheme)
    weights.load(model, shard_of(opened.config), opened.rotation, opened.tensors(), torch.float32, CPU, lambda _: None)
    return model.eval()


def states(model: Transformer, tokens: list[int], image: Tensor | None = None) -> Tensor:
    """Hidden states [T, dim] of one sequence. The embeddings of an image take the place of its first tokens."""
    config, (_, attention) = model.config, choose("auto", CPU)
    n_pages = -(-len(tokens) // attention.page_size)
    pages = (PageTable(0, tuple(range(n_pages))),)
    batch = StepBatch((Slice(0, tokens, len(tokens), 0, len(tokens), pages, SamplingParams()),))
    inputs = pack(batch, attention.page_size, config.pool_windows, CPU)
    if image is not None:
        inputs = replace(inputs, images=(torch.arange(len(image)), image))
    pools = PagePools.allocate(
        config, (PoolSpec(None, n_pages),), lambda shape: attention.allocate(shape, torch.float32, CPU)
    )
    return model(inputs, RopeTables.build(config, len(tokens), CPU), attention, pools)


def after_image(model: Transformer, image: Tensor, tokens: list[int]) -> Tensor:
    """Log probabilities of `tokens` but the first, after an image."""
    scale = model.tok_embeddings.weight.float().std() / image.std()
    hidden = states(model, [0] * len(image) + tokens, image * scale)[len(image) : -1]
    return model.logits(hidden).log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


def likeness(found: Tensor, expected: Tensor) -> str:
    """Mean and least cosine similarity of rows."""
    cosine = torch.cosine_similarity(found, expected, dim=1)
    return f"mean {cosine.mean():.6f}  least {cosine.min():.6f}"


def encoders(side: int, outliers: float, names: list[str], tokens: list[int]) -> Iterator[str]:
    reader = text_model("none")
    random = RandomEncoder(reader.config.dim, outliers)
    drawn = {name: pixels(IMAGES[name](side)) for name in names}
    exact = random.load("none")
    expected = {name: exact(image, columns, columns) for name, (image, columns) in drawn.items()}
    del exact
    before = {name: after_image(reader, embeddings, tokens) for name, embeddings in expected.items()}
    for scheme in SCHEMES:
        encoder = random.load(scheme)
        for name, (image, columns) in drawn.items():
            found = encoder(image, columns, columns)
            gap = (after_image(reader, found, tokens) - before[name]).abs().mean()
            yield f"{scheme:9} outliers {outliers:<4g} {name:9} {likeness(found, expected[name])}  logprobs {gap:.4f}"


def trained(tokens: list[int]) -> Iterator[str]:
    expected = states(text_model("none"), tokens)
    for scheme in SCHEMES:
        yield f"{scheme:9} trained blocks, text    {likeness(states(text_model(scheme), tokens), expected)}"


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=448, help="pixels")
    parser.add_argument("--outliers", type=float, nargs="*", default=[1.0, 5.0, 20.0])
    parser.add_argument("--images", nargs="+", choices=[*IMAGES], default=[*IMAGES])
    args = parser.parse_args()
    native.use_threads(choose_threads())
    torch.set_num_threads(1)  # as the engine does beside the kernels' threads
    tokenizer, console = load_tokenizer(resolve(EMBEDDED)), Console()
    tokens = tokenizer.encode(default_text(), add_bos=False, parse_control=False)[:TOKENS]
    console.print(f"{args.side} x {args.side} pixels, {native.describe(native.kernels())}")
    for outliers in args.outliers:
        for line in encoders(args.side, outliers, args.images, tokens):
            console.print(line)
    for line in trained(tokens):
        console.print(line)


if __name__ == "__main__":
    main()
