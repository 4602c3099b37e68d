"""Attention inside an image, in every variant of the kernels and in PyTorch, against float64."""

import pytest
import torch
from torch import Tensor

from model.attention.encoder import CompiledEncoderAttention, PlainEncoderAttention, encoder_attention
from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def random_image(n_patches: int, n_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """qkv [P, 3 n_heads, head_dim], and the rotations [P, 2, head_dim/2] by random angles."""
    source = torch.Generator().manual_seed(n_patches + head_dim)
    angles = torch.rand(n_patches, head_dim // 2, generator=source) * 6
    return torch.randn(n_patches, 3 * n_heads, head_dim, generator=source), torch.stack((angles.cos(), angles.sin()), 1)


def expected(qkv: Tensor, rotations: Tensor) -> Tensor:
    """The attention of all patches in float64. A rotation is a product of complex numbers."""
    turn = torch.complex(*rotations.double().unbind(1))[:, None]
    q, k, v = (part.transpose(0, 1) for part in qkv.double().chunk(3, dim=1))
    q, k = ((torch.complex(*part.chunk(2, dim=-1)).transpose(0, 1) * turn).transpose(0, 1) for part in (q, k))
    scores = (q @ k.conj().transpose(1, 2)).real / qkv.shape[2] ** 0.5
    return (scores.softmax(-1) @ v).transpose(0, 1)


def attend(attention: CompiledEncoderAttention | PlainEncoderAttention, qkv: Tensor, tile: int) -> Tensor:
    firsts = range(0, len(qkv), tile)
    for first in reversed(firsts):
        attention.store(first, qkv[first : first + tile].contiguous())
    return torch.cat([attention.attend(first, min(tile, len(qkv) - first)) for first in firsts])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("n_patches", "n_heads", "head_dim"),
    [(1, 1, 2), (31, 3, 16), (32, 2, 80), (33, 2, 88), (129, 1, 104), (700, 2, 64), (1030, 3, 20)],
)
def test_every_patch_sees_all_patches(
    kernels: Kernels, n_patches: int, n_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    qkv, rotations = random_image(n_patches, n_heads, head_dim)
    attention = CompiledEncoderAttention(rotations, n_heads, dtype, kernels)
    wanted, near = expected(qkv, rotations), TOLERANCES[dtype]
    found = attend(attention, qkv, 256)
    torch.testing.assert_close(found.double(), wanted, atol=near, rtol=near)
    other = random_image(n_patches, n_heads, head_dim + 2)[0][:, :, :head_dim]  # another layer in the same memory
    found = attend(attention, other, 256)
    torch.testing.assert_close(found.double(), expected(other, rotations), atol=near, rtol=near)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tiles_and_threads_do_not_change_bits(kernels: Kernels, dtype: torch.dtype) -> None:
    qkv, rotations = random_image(600, 3, 64)
    whole = attend(CompiledEncoderAttention(rotations, 3, dtype, kernels), qkv, 600)
    before = native.use_threads(2)
    try:
        for n_threads, tile in ((1, 256), (2, 64), (2, 7), (5, 333)):
            assert native.use_threads(n_threads) == n_threads
            assert torch.equal(attend(CompiledEncoderAttention(rotations, 3, dtype, kernels), qkv, tile), whole)
    finally:
        native.use_threads(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_pytorch_attends_alike(dtype: torch.dtype) -> None:
    qkv, rotations = random_image(300, 2, 64)
    found = attend(PlainEncoderAttention(rotations, 2, dtype), qkv, 128)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), expected(qkv, rotations), atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


def test_activations_may_have_half_the_bits(kernels: Kernels) -> None:
    """As beside weights in fp8, whose activations are in the model's format."""
    qkv, rotations = random_image(40, 2, 16)
    found = attend(CompiledEncoderAttention(rotations, 2, torch.bfloat16, kernels), qkv.bfloat16(), 32)
    torch.testing.assert_close(found.double(), expected(qkv.bfloat16(), rotations), atol=2e-2, rtol=2e-2)


def test_a_value_that_is_no_number_reaches_all_patches(kernels: Kernels) -> None:
    """The image's fault is visible in every row, whichever tile it comes from."""
    qkv, rotations = random_image(300, 2, 64)
    qkv[299, 5, 3] = torch.nan  # head 1 of the values
    found = attend(CompiledEncoderAttention(rotations, 2, torch.bfloat16, kernels), qkv, 128)
    assert found[:, 0].isfinite().all()
    assert found[:, 1, 3].isnan().all()


def test_kernels_serve_where_they_are(kernels: Kernels) -> None:
    _, rotations = random_image(40, 2, 16)
    assert isinstance(encoder_attention(rotations, 2, torch.bfloat16, kernels), CompiledEncoderAttention)
    assert isinstance(encoder_attention(rotations, 2, torch.float16, kernels), PlainEncoderAttention)
    assert isinstance(encoder_attention(torch.zeros(1, 2, 257), 1, torch.float32, kernels), PlainEncoderAttention)
    assert isinstance(encoder_attention(rotations, 2, torch.bfloat16, None), PlainEncoderAttention)
