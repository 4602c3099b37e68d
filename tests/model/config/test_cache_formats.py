"""The table of cache formats agrees with the memory that backends allocate."""

import subprocess
import sys

import pytest
import torch

from model.attention import BACKENDS
from model.config.cache_formats import CACHE_FORMATS, KV_DTYPES, CacheFormat
from tests.model.driving import CPU


@pytest.mark.parametrize("row", CACHE_FORMATS.values(), ids=lambda row: row.name)
def test_cache_formats_take_what_backends_allocate(row: CacheFormat) -> None:
    dtype = getattr(torch, row.dtype)
    backends = {name: kind for name, kind in BACKENDS.items() if dtype in kind.dtypes}
    assert backends
    assert not row.needs or [f"--attention {name}" for name in backends] == [row.needs.partition(" (")[0]]
    for kind in backends.values():
        backend = kind.__new__(kind)  # memory needs none of what kernels do
        cache = backend.allocate((3, 2, 24), dtype, CPU)
        assert cache.k.nbytes + cache.v.nbytes == 2 * 3 * backend.page_size * 2 * row.head_bytes(24)


def test_names() -> None:
    assert KV_DTYPES == ("auto", "int8", "fp8")


def test_the_table_needs_no_torch() -> None:
    code = "import sys, model.config.cache_formats; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
