"""Writes a Mistral-shaped GGUF file of random weights: `python -m benchmarks.random_gguf OUT [--shape] [--mix]`.

llama.cpp and Noria read it. The kinds of its matrices are those that `llama-quantize Q4_0` or Q4_K_M writes. Magnitudes
are those of a network at its initialisation, which keeps activations finite. The tokenizer is a SentencePiece model of
short invented pieces.
"""

import argparse
import itertools
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType

VOCAB = 32_000


@dataclass(frozen=True)
class Shape:
    """Sizes of a network; dim and hidden_dim are multiples of 256."""

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    hidden_dim: int

    def matrices(self) -> Iterator[tuple[str, int, int, float]]:
        """Name, n_out, n_in and standard deviation of each."""
        kv, deep = self.dim // self.n_heads * self.n_kv_heads, (2 * self.n_layers) ** -0.5
        yield "token_embd", VOCAB, self.dim, 1.0
        for layer in range(self.n_layers):
            for name, n_out, n_in, gain in (
                ("attn_q", self.dim, self.dim, 1.0),
                ("attn_k", kv, self.dim, 1.0),
                ("attn_v", kv, self.dim, 1.0),
                ("attn_output", self.dim, self.dim, deep),
                ("ffn_gate", self.hidden_dim, self.dim, 1.0),
                ("ffn_up", self.hidden_dim, self.dim, 1.0),
                ("ffn_down", self.dim, self.hidden_dim, deep),
            ):
                yield f"blk.{layer}.{name}", n_out, n_in, gain * n_in**-0.5
        yield "output", VOCAB, self.dim, self.dim**-0.5

    def norms(self) -> list[str]:
        layers = [f"blk.{i}.{name}_norm" for i in range(self.n_layers) for name in ("attn", "ffn")]
        return [*layers, "output_norm"]


SHAPES = {"7b": Shape(4096, 32, 32, 8, 14336), "small": Shape(256, 4, 8, 2, 768)}


def q4_0(n_out: int, n_in: int, deviation: float, random: np.random.Generator) -> np.ndarray:
    """Blocks of 32: a scale of either sign, then half-bytes 0..15 that stand for -8..7 (deviation 4.6)."""
    blocks = np.empty((n_out, n_in // 32, 18), np.uint8)
    blocks[..., 2:] = np.frombuffer(random.bytes(n_out * n_in // 2), np.uint8).reshape(n_out, -1, 16)
    scales = random.uniform(0.5, 1.5, blocks.shape[:2]) * random.choice((-1, 1), blocks.shape[:2])
    blocks[..., :2] = (scales * deviation / 4.6).astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(n_out, -1)


def q6_k(n_out: int, n_in: int, deviation: float, random: np.random.Generator) -> np.ndarray:
    """Blocks of 256: 192 bytes of weights -32..31 (deviation 18.5), 16 scales (64 on average), a scale of those."""
    blocks = np.empty((n_out, n_in // 256, 210), np.uint8)
    blocks[..., :192] = np.frombuffer(random.bytes(n_out * n_in // 4 * 3), np.uint8).reshape(n_out, -1, 192)
    blocks[..., 192:208] = random.integers(32, 97, (*blocks.shape[:2], 16))
    blocks[..., 208:] = np.array([deviation / 18.5 / 64], np.float16).view(np.uint8)
    return blocks.reshape(n_out, -1)


def q4_k(n_out: int, n_in: int, deviation: float, random: np.random.Generator) -> np.ndarray:
    """Blocks of 256: two float16, 8 scales and 8 equal minima of 32..63, half-bytes q that stand for q - 7.5."""
    blocks = np.empty((n_out, n_in // 256, 144), np.uint8)
    blocks[..., 16:] = np.frombuffer(random.bytes(n_out * n_in // 2), np.uint8).reshape(n_out, -1, 128)
    six = random.integers(0, 256, (*blocks.shape[:2], 4), dtype=np.uint8) | 0xA0
    four = random.integers(0, 16, (*blocks.shape[:2], 4), dtype=np.uint8)
    blocks[..., 4:16] = np.concatenate((six, six, four | four << 4), 2)
    scale = deviation / 4.6 / 48
    blocks[..., :4] = np.array([scale, 7.5 * scale], np.float16).view(np.uint8)
    return blocks.reshape(n_out, -1)


@dataclass(frozen=True)
class Kind:
    """A kind of blocks: its number, the values and the bytes of a block, and random rows of it."""

    number: GGMLQuantizationType
    values: int
    n_bytes: int
    rows: Callable[[int, int, float, np.random.Generator], np.ndarray]


Q4_0 = Kind(GGMLQuantizationType.Q4_0, 32, 18, q4_0)
Q4_K = Kind(GGMLQuantizationType.Q4_K, 256, 144, q4_k)
Q6_K = Kind(GGMLQuantizationType.Q6_K, 256, 210, q6_k)


def _q4_0_file(name: str, n_layers: int) -> Kind:
    return Q6_K if name == "output" else Q4_0


def _q4_k_m_file(name: str, n_layers: int) -> Kind:
    """Values and down projections of the first and last eighth of the layers, and of a third between, get 6 bits."""
    if not name.endswith(("attn_v", "ffn_down")):
        return Q6_K if name == "output" else Q4_K
    layer, eighth = int(name.split(".")[1]), n_layers // 8
    return Q6_K if layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2 else Q4_K


MIXES: Mapping[str, Callable[[str, int], Kind]] = {"Q4_0": _q4_0_file, "Q4_K_M": _q4_k_m_file}


def add_tokenizer(writer: GGUFWriter) -> None:
    """Control and byte tokens, then letters, pairs and triples of them, with and without a space before."""
    letters = string.ascii_lowercase
    words = ("".join(word) for length in (1, 2, 3) for word in itertools.product(letters, repeat=length))
    pieces = itertools.chain(["▁", *string.ascii_uppercase, *".,!?"], *((word, f"▁{word}") for word in words))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    tokens += itertools.islice(pieces, VOCAB - len(tokens))
    kinds += [TokenType.NORMAL] * (VOCAB - len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(rank) for rank in range(VOCAB)])
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def add_metadata(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(2)
    writer.add_vocab_size(VOCAB)
    writer.add_context_length(32_768)
    writer.add_embedding_length(shape.dim)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(shape.hidden_dim)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_rope_dimension_count(shape.dim // shape.n_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e6)


def write(path: Path, shape: Shape, mix: str = "Q4_0") -> None:
    """Write the tensors, with one matrix in memory at a time."""
    kind_of = MIXES[mix]
    writer = GGUFWriter(path, "llama")
    add_metadata(writer, shape)
    add_tokenizer(writer)
    for name in shape.norms():
        writer.add_tensor_info(f"{name}.weight", (shape.dim,), np.dtype(np.float32), 4 * shape.dim)
    for name, n_out, n_in, _ in shape.matrices():
        kind = kind_of(name, shape.n_layers)
        width = n_in // kind.values * kind.n_bytes
        writer.add_tensor_info(f"{name}.weight", (n_out, width), np.dtype(np.uint8), n_out * width, kind.number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _ in shape.norms():
        writer.write_tensor_data(np.ones(shape.dim, np.float32))
    random = np.random.default_rng(0)
    for name, n_out, n_in, deviation in shape.matrices():
        writer.write_tensor_data(kind_of(name, shape.n_layers).rows(n_out, n_in, deviation, random))
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--mix", choices=MIXES, default="Q4_0")
    args = parser.parse_args()
    write(args.out, SHAPES[args.shape], args.mix)
    print(f"{args.out}: {args.out.stat().st_size / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
