"""The product that Triton's interpreter uses in these tests: the bits of a row do not depend on its place."""

import numpy as np
import pytest

pytest.importorskip("triton")

from triton import language as tl
from triton.runtime.interpreter import TensorHandle, interpreter_builder


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product as a kernel's `tl.dot` computes it, added to zeros."""
    zeros = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    handles = [TensorHandle(part, tl.float32) for part in (a, b, zeros)]
    return interpreter_builder.create_dot(*handles, None, None).data


@pytest.mark.parametrize("shape", [(40, 128, 24), (16, 64, 16), (5, 32, 300)], ids=str)
def test_bits_of_a_row_do_not_depend_on_its_place(shape: tuple[int, int, int]) -> None:
    """`np.matmul` fails this where OPENBLAS_CORETYPE is Haswell."""
    m, k, n = shape
    random = np.random.default_rng(0)
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    whole = dot(a, b)
    np.testing.assert_allclose(whole, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
    order = random.permutation(m)
    assert np.array_equal(dot(a[order], b), whole[order])
    assert np.array_equal(dot(np.concatenate([a[::-1], a]), b)[m:], whole)
    assert np.array_equal(dot(a.T.copy().T, b[:, ::-1])[:, ::-1], whole)
    for row in range(m):
        assert np.array_equal(dot(a[row : row + 1], b), whole[row : row + 1])


def test_several_products_at_once() -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((3, 4, 8), np.float32), random.standard_normal((3, 8, 5), np.float32)
    assert np.array_equal(dot(a, b), np.stack([dot(*pair) for pair in zip(a, b, strict=True)]))
