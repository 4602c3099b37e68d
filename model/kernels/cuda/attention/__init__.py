"""Attention over pages of keys and values.

The keys of a layer are [n_pages, N_KV, PAGE, WIDTH], and so are its values. In latent attention there is one key head
and no values: the first VALUE channels of a key are its value. Else VALUE is WIDTH. A slice is a row of
`PoolInputs.table`: `row`, `n_queries`, `start`, `first_key`, `page`. A tile has a row for each of QUERIES queries and
HEADS query heads, of which HEADS_PER_GROUP are real. They share a key head. In latent attention all groups share one.

Keys are computed in blocks of KEYS. SPLIT keys are a part, FAN parts a group, FAN groups a section. All of them begin
at fixed positions of the sequence. The origin of a slice is the start of the section of `first_key`. Keys are counted
from the origin: 32 bits then suffice.

The sums over some keys are: `top`, the largest score; `total`, the sum of the weights 2^(score - top); and `sums`
[WIDTH], the sum of the weighted values. Blocks are added to a part in order. Parts are folded into a group in order,
groups into a section, and sections into the sums over all keys (`walk.py`). A block that a row does not see changes
none of its bits, and neither does folding the sums over no keys. A row's bits therefore depend on its own keys only.
They do not depend on how `plan.py` divides the keys: a program computes a part, a group, a section, or all keys.

Launch with enable_fp_fusion=False: the compiler might fuse multiplications and additions differently in each kernel.
Float32 is multiplied in three products of tf32, which lose almost no accuracy and run on tensor cores.
"""

ITEM = 8
"""Columns of an item of work in int64: row, n_queries, start from the origin, first key from the origin, entry of the
origin's page among the pages, the item's keys low..high-1, and the place of its first query's sums. An item without
work has no queries."""
