"""The audio encoder: the mel spectrum of a chunk of audio to embeddings of the text model."""

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from model.config.audio import STRIDE, AudioConfig
from model.kernels.cpu.functions import Kernels
from model.linear.selection import make_linear
from model.machine.transfers import send
from model.network.audio.block import AudioBlock, Biased, LayerNorm
from model.network.encoding import Encoder, Encoding

KERNEL = 3
"""Frames that a convolution sees: one before, its own, one after."""


class AudioEncoder(Encoder):
    """Spectra to embeddings of a text model of `dim`.

    A convolution is a product with the frames that it sees, of each channel side by side: [n, channels * KERNEL].
    """

    def __init__(self, config: AudioConfig, dim: int, scheme: str = "none", kernels: Kernels | None = None) -> None:
        super().__init__(dim, scheme, kernels)
        self.config = config
        self.conv1 = Biased(KERNEL * config.n_mels, config.dim, scheme)
        self.conv2 = Biased(KERNEL * config.dim, config.dim, scheme)
        table = nn.Parameter(torch.empty(config.n_positions, config.dim)) if config.stores_positions else None
        self.register_parameter("positions", table)
        self.layers = nn.ModuleList(AudioBlock(config, scheme) for _ in range(config.n_layers))
        self.norm = LayerNorm(config.dim, config.norm_eps)
        self.w_in = make_linear(config.group * config.dim, dim, scheme=scheme)
        self.w_out = make_linear(dim, dim, scheme=scheme)

    @property
    def weight(self) -> Tensor:
        return self.norm.weight

    def begin(self, inputs: bytes | memoryview, rows: int, columns: int) -> Encoding:
        """Begin with `inputs`, the log-mel spectrum [n_mels, n_frames] float32; a chunk has one row of `max_tokens`."""
        config, device = self.config, self.weight.device
        values, shape = torch.tensor(np.frombuffer(inputs, np.float32)), (config.n_mels, config.n_frames)
        if (rows, columns) != (1, config.max_tokens) or len(values) != shape[0] * shape[1]:
            raise ValueError(
                f"a chunk of audio has 1 x {config.max_tokens} tokens and a spectrum {[*shape]} in float32, got "
                f"{rows} x {columns} tokens and {len(values)} numbers"
            )
        silent = torch.tensor([1.0, 0.0]).expand(config.head_dim // 2, 2).T  # cosines and sines that rotate nothing
        return self.begun(
            send(values.view(shape).T.contiguous(), device),
            torch.arange(config.n_positions, device=device).view(-1, config.group),
            silent.expand(config.n_positions, 2, -1).contiguous(),
            config.n_heads,
            config.dim,
        )

    def first(self, encoding: Encoding, tile: slice) -> Tensor:
        """Convolve twice. The second has stride 2: position p sees the frames 2p - 1 to 2p + 1 of the first one."""
        stop = min(tile.stop, self.config.n_positions)
        frames = range(STRIDE * tile.start - 1, STRIDE * stop)
        x = gelu(self.conv1(_seen(encoding.inputs, frames.start, frames.stop).to(encoding.x.dtype)))
        if tile.start == 0:
            x[0] = 0  # before the first frame there is nothing
        windows = torch.stack((x[:-2:STRIDE], x[1:-1:STRIDE], x[2::STRIDE]), dim=2)  # [n, dim, KERNEL]
        return gelu(self.conv2(windows.flatten(1))) + self._positions(x)[tile.start : stop]

    def join(self, x: Tensor) -> Tensor:
        return self.w_out(gelu(self.w_in(self.norm(x).flatten(1))))

    def costs(self, n_patches: int) -> tuple[int, int, int, int]:
        dim, hidden = self.config.dim, self.config.hidden_dim
        first = KERNEL * (STRIDE * self.config.n_mels + dim) * dim
        end = (self.config.group * dim + self.dim) * self.dim
        return first, 3 * dim * dim, dim * dim + 2 * dim * hidden + 2 * n_patches * dim, end

    def _positions(self, x: Tensor) -> Tensor:
        table, n, dim = self.positions, self.config.n_positions, self.config.dim
        return table.to(x) if isinstance(table, Tensor) else sinusoids(n, dim, x.device, x.dtype)


def _seen(frames: Tensor, start: int, stop: int) -> Tensor:
    """Return what a convolution sees at frames start..stop-1 of [F, n]: [stop - start, n * KERNEL], zeros outside."""
    padded = frames.new_zeros(stop - start + 2, frames.shape[1])
    first, last = max(0, start - 1), min(len(frames), stop + 1)
    padded[first - (start - 1) : last - (start - 1)] = frames[first:last]
    return torch.stack((padded[:-2], padded[1:-1], padded[2:]), dim=2).flatten(1)


@cache
def sinusoids(n: int, dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return Whisper's vectors of n positions [n, dim]: sines, then cosines, of wavelengths 2 pi to 20,000 pi.

    Worked example: dim 4 has the frequencies 1 and 1 / 10,000; position 3 is sin 3, sin 0.0003, cos 3, cos 0.0003.
    """
    step = math.log(10_000) / (dim // 2 - 1)
    angles = torch.arange(n).float()[:, None] * torch.exp(-step * torch.arange(dim // 2).float())
    return torch.cat((angles.sin(), angles.cos()), dim=1).to(device, dtype)
