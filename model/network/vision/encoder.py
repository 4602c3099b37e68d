"""The image encoder: pixels of an image to embeddings of the text model."""

import numpy as np
import torch
from torch import Tensor, nn

from model.config.vision import VisionConfig
from model.kernels.cpu.functions import Kernels
from model.linear.base import RMSNorm
from model.linear.selection import make_linear
from model.machine.transfers import send
from model.network.encoding import Encoder, Encoding
from model.network.vision.adapter import Projector
from model.network.vision.block import VisionBlock
from model.network.vision.patches import normalize, rotations, unfold


class ImageEncoder(Encoder):
    """Pixels to embeddings of a text model of `dim`, whose `norm_eps` the adapter has."""

    def __init__(
        self, config: VisionConfig, dim: int, norm_eps: float, scheme: str = "none", kernels: Kernels | None = None
    ) -> None:
        super().__init__(dim, scheme, kernels)
        self.config = config
        self.patch_conv = make_linear(config.patch_width, config.dim, scheme=scheme)
        self.ln_pre = RMSNorm(config.dim, config.norm_eps)
        self.layers = nn.ModuleList(VisionBlock(config, scheme) for _ in range(config.n_layers))
        self.adapter = Projector(config, dim, norm_eps, scheme)

    @property
    def weight(self) -> Tensor:
        return self.ln_pre.weight

    def begin(self, inputs: bytes | memoryview, rows: int, columns: int) -> Encoding:
        """Begin with `inputs`, RGB [H, W, 3], one byte each; H is `rows * token_side`, W is `columns * token_side`."""
        config, side = self.config, self.config.token_side
        shape = rows * side, columns * side, config.n_channels
        pixels = torch.tensor(np.frombuffer(inputs, np.uint8))
        if len(pixels) != shape[0] * shape[1] * shape[2]:
            raise ValueError(f"an image of {rows} x {columns} tokens needs pixels {[*shape]}, got {len(pixels)} bytes")
        height, width, device = rows * config.merge, columns * config.merge, self.weight.device
        ids = torch.arange(height * width, device=device).view(rows, config.merge, columns, config.merge)
        return self.begun(
            unfold(send(pixels.view(shape), device), config.patch_size),
            ids.transpose(1, 2).reshape(rows * columns, -1),
            rotations(height, width, config.head_dim, config.rope_theta),
            config.n_heads,
            config.dim,
        )

    def first(self, encoding: Encoding, tile: slice) -> Tensor:
        return self.ln_pre(self.patch_conv(normalize(encoding.inputs[tile]).to(encoding.x.dtype)))

    def join(self, x: Tensor) -> Tensor:
        return self.adapter(x)

    def costs(self, n_patches: int) -> tuple[int, int, int, int]:
        dim, width, merge = self.config.dim, self.config.n_heads * self.config.head_dim, self.config.merge
        complete = width * dim + 3 * dim * self.config.hidden_dim + 2 * n_patches * width
        end = (merge**2 * dim if merge > 1 else 0) * dim + (dim + self.dim) * self.dim
        return self.config.patch_width * dim, 3 * width * dim, complete, end
