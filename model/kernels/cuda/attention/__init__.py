"""Attention over pages of keys and values.

The keys of a layer are [n_pages, N_KV, PAGE, WIDTH], and so are its values. A slice is a row of `PoolInputs.table`:
`row`, `n_queries`, `start`, `first_key`, `page`. Its origin is the greatest multiple of GROUP that is not greater than
`first_key`. Keys are counted from the origin: 32 bits then suffice, and blocks of KEYS, parts of SPLIT and groups of
GROUP keys begin at fixed positions of the sequence. A tile has a row for each of QUERIES queries and HEADS heads of a
group of heads, of which HEADS_PER_KV are real.

The sums over some keys are: `top`, the largest score; `total`, the sum of the weights 2^(score - top); and `sums`
[WIDTH], the sum of the weighted values. Blocks are added to a part in order, parts are folded into a group in order,
and groups are folded in order (`walk.py`). A block that a row does not see changes none of its bits, and folding sums
over no keys changes none either. A row's bits therefore depend on its own keys only, and not on how its keys are
divided among programs: a program may compute a part, a group, or all keys (`plan.py` chooses).

Launch with enable_fp_fusion=False: the compiler might fuse multiplications and additions differently in each kernel.
Float32 is multiplied in three products of tf32, which lose almost no accuracy and run on tensor cores.
"""
