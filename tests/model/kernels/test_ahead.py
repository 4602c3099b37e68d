"""What the products of a step prefetch: the pages that the attention of the next layer reads, and no other memory."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from model.kernels.cpu import records
from model.kernels.cpu.build import INCLUDE, compiler

PAGE_BYTES = 640
DRIVER = """
#define VARIANT test
#include "linear/ahead.h"
/* Lets each thread take all that it may, and writes (thread, offset, bytes) to `found`. Returns their number. */
int drive(const attention_call *c, int64_t page_bytes, int threads, int64_t unit, int n, int64_t *found) {
    cursor cursors[threads];
    ahead_t a = {.attention = c, .cells = c->cells, .page_bytes = page_bytes, .cursors = cursors};
    const uint8_t *from;
    int64_t *to = found;
    begin_ahead(&a, threads);
    for (int i = 0; i < threads; i++)
        for (int empty = 0; empty < 3;) { /* a page shorter than a unit gives nothing, and others may follow */
            int got = take_ahead(&a, cursors + i, unit, n, &from);
            empty = got ? 0 : empty + 1;
            if (got) *to++ = i, *to++ = (const char *)from - c->cells, *to++ = got * unit;
        }
    return (int)(to - found) / 3;
}
"""


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder, command = tmp_path_factory.mktemp("ahead"), compiler()
    assert command is not None
    Path(folder / "drive.c").write_text(DRIVER)
    options = ["-std=gnu11", "-O1", "-Wno-psabi", "-fPIC", "-shared", INCLUDE]
    subprocess.run([*command, *options, "-o", folder / "drive.so", folder / "drive.c"], check=True)
    return ctypes.CDLL(str(folder / "drive.so"))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("unit", "n"), [(64, 3), (64, 100), (320, 1), (640, 2)])
def test_each_page_once_in_the_order_of_attention(drive: ctypes.CDLL, threads: int, unit: int, n: int) -> None:
    """Tasks of 2, 1 and 3 pages; entry 0 of `pages`, whose page is not there, belongs to no task."""
    pages = np.array([-1, 7, 3, 9, 0, 4, 8], dtype=np.int64)
    tasks = np.array([(0, 1, 70, 1, 1, 3, -1), (1, 1, 5, 3, 0, 1, -1), (2, 1, 90, 4, 0, 3, -1)], dtype=np.int64)
    call = records.struct("attention_call")(
        cells=1 << 20, pages=pages.ctypes.data, tasks=tasks.ctypes.data, n_tasks=len(tasks)
    )
    found = np.zeros((1000, 3), dtype=np.int64)
    count = drive.drive(
        ctypes.byref(call),
        ctypes.c_int64(PAGE_BYTES),
        threads,
        ctypes.c_int64(unit),
        n,
        found.ctypes.data_as(ctypes.c_void_p),
    )
    lines = [at for _, first, size in found[:count].tolist() for at in range(first, first + size, 64)]
    assert lines == [page * PAGE_BYTES + at for page in (7, 3, 9, 0, 4, 8) for at in range(0, PAGE_BYTES, 64)]
    assert found[:count, 2].max() <= unit * n
    assert np.all(np.diff(found[:count, 0]) >= 0)
