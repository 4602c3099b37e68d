"""The number of pages from bytes, and the errors if the bytes are not enough."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.shapes import SMALL_4
from model.attention import sdpa
from model.attention.rope import RopeTables
from model.config.model import QueryTemperature, Rope
from model.errors import OptionError
from model.kernels.cpu import native
from model.linear.schemes import SCHEMES
from model.loading import create
from model.memory import sizes as memory
from model.memory.sizes import PoolSizes
from model.network import weights
from model.network.transformer import Transformer
from model.sharding.shard import shard_of
from model.step.runner import ModelRunner
from tests.model.driving import CPU, EXPERTS, random_stored, tiny
from tests.model.network.oracles import llama

# tiny(): 2 KV heads of 8, so a page of 4 positions holds 2 * 4 * 16 values a layer: 512 bytes in float32.
PAGE = 512
SPARE = 10**12


def plan(windows: tuple[int | None, ...], **changes: int) -> PoolSizes:
    values = {"page_size": 4, "head_bytes": 32, "max_step_tokens": 4, "max_sequences": 100, **changes}
    return PoolSizes(tiny(windows, max_position=64), **values)


def test_pools_stay_within_the_budget_and_hold_one_sequence() -> None:
    pool = plan((5, None, None))
    need = pool.bytes_for(64)
    for budget in (need, need + 1, 3 * need - 1, 7 * need + 999):
        specs = pool.pools(64, budget)
        assert sum(spec.n_pages * pool.page_bytes(spec.window) for spec in specs) <= budget
        assert all(spec.n_pages >= pool.pages(spec.window, 64) for spec in specs)


CONTEXT = "--max-model-len 65 is more than the model's context of 64 tokens"
LITTLE = rf"1 tokens needs {PAGE} bytes .* has {PAGE - 100} bytes; --cache-memory 1MiB would hold 64 tokens, 1MiB the m"


@pytest.mark.parametrize(
    ("windows", "wanted", "budget", "spare", "message"),
    [
        ((None,), 21, 5 * PAGE, SPARE, r"21 tokens needs 3.0 KiB .* has 2.5 KiB; --max-model-len 20 would fit, or "),
        ((None,), None, PAGE - 100, SPARE, LITTLE),
        ((5, None), 65, 10**9, SPARE, CONTEXT),
        ((None,), 0, 10**9, SPARE, "--max-model-len must be at least 1, got 0"),
        ((5, 7), 101, 10**9, 3200, r"positions of 101 tokens need 3\.2 KiB, 3\.1 KiB are free .* at most 100$"),
        ((5, 7), None, 10**9, 31, r"positions of 1 tokens need .*; choose a smaller --cache-memory$"),
    ],
)
def test_a_length_that_does_not_fit(
    windows: tuple[int | None, ...], wanted: int | None, budget: int, spare: int, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        plan(windows).length(wanted, budget, spare)


def test_windows_and_rotary_positions_bound_the_length() -> None:
    """Cosine and sine of 4 pairs, 4 bytes each: 32 bytes a position, beside the cache."""
    windowed = plan((5, 7))
    assert windowed.length(100_000, 10**9, SPARE) == 100_000
    assert windowed.length(100, 10**9, 3200) == 100
    assert windowed.length(None, 10**9, 330) == 10


def test_weights_that_do_not_fit_name_a_dtype_that_does() -> None:
    shard = shard_of(tiny())
    n = shard.whole.n_parameters
    memory.check_weights(shard, 4 * n, "float32", 4 * n, "this machine")
    with pytest.raises(OptionError, match=r"in float32, this machine has .* --dtype bfloat16 would need"):
        memory.check_weights(shard, 4 * n, "float32", 3 * n, "this machine")
    with pytest.raises(OptionError, match="choose a smaller model"):
        memory.check_weights(shard, 4 * n, "float32", n, "this machine")
    with pytest.raises(OptionError, match=r"in int8, this machine has .*; choose a smaller model"):
        memory.check_weights(shard, n, "int8", n - 1, "this machine")


def test_cpu_budget() -> None:
    assert memory.cpu_budget(None, 1000, "this machine") == 250
    assert memory.cpu_budget(999, 1000, "this machine") == 999
    assert memory.cpu_budget(2**20, 3 * 2**20, "this machine", 2**21) == 2**20
    with pytest.raises(
        OptionError, match=r"2\.00 MiB are for threads and pages on their way .*; at most 1MiB would fit"
    ):
        memory.cpu_budget(2**20 + 1, 3 * 2**20, "this machine", 2**21)
    with pytest.raises(OptionError, match=r"--cache-memory 2.00 GiB is more than .* at most 1024MiB would fit"):
        memory.cpu_budget(2**31, 2**30, "this machine")


SPARSE = tiny((None, None), dim=64, head_dim=16, hidden_dim=128, **{**EXPERTS, "expert_hidden_dim": 64})
"""A dense layer, then one of experts with shared ones. The kernels pad none of its matrices."""


def test_the_step_of_sparse_layers_is_not_underestimated() -> None:
    """The kernels' memory for the experts of a step is a part of the estimate."""
    with torch.device("meta"):
        model = Transformer(SPARSE, "int8")
    weights.load(model, shard_of(SPARSE), "half", random_stored(SPARSE), torch.float32, CPU, lambda _: None)
    block = model.layers[1].feed_forward
    norm = torch.ones(SPARSE.dim)
    for n in (64, 512):
        kernels = native.variant.__wrapped__(native.needed().variant)  # it has no scratch memory yet
        kernels.experts(block.packed, torch.zeros(n, SPARSE.dim), norm=norm, eps=1e-5, onto=torch.zeros(n, SPARSE.dim))
        scratch = kernels.scratch_bytes * 4 // 5
        sizes = PoolSizes(SPARSE, page_size=4, head_bytes=32, max_step_tokens=n, max_sequences=8)
        logits = min(n, memory.LOGIT_VALUES // SPARSE.vocab_size) * SPARSE.vocab_size * 4 * memory.LOGIT_COPIES
        assert scratch <= sizes.step_bytes(4) - logits


def test_the_step_of_latent_attention_in_pytorch_is_not_underestimated() -> None:
    """What heads make at once takes no more than the logits, which come later."""
    for value_bytes in (2, 4):
        sizes = PoolSizes(SMALL_4, 32, 640, max_step_tokens=512, max_sequences=64)
        beside = sizes.step_bytes(value_bytes) - sizes.block_bytes(512, value_bytes)
        assert sdpa.PIECE * value_bytes <= beside


def test_a_scheme_must_fit_the_experts_too() -> None:
    assert SCHEMES["int4"].fits(SPARSE)
    assert not SCHEMES["int4"].fits(replace(SPARSE, expert_hidden_dim=40))


def test_rotary_positions_count_every_table() -> None:
    """A position takes 8 float32 for each distinct RoPE of heads of 8 values, and one for the query temperature."""
    full, temperature = Rope(5e5, 8), QueryTemperature(16, 0.1)
    for windows, changes, values in (
        ((5, None), {}, 8),
        ((5, None), {"full_rope": full}, 16),
        ((5, None, 7), {"full_rope": full, "query_temperature": temperature}, 17),
        ((None, None), {"full_rope": full, "query_temperature": temperature}, 9),
    ):
        config = tiny(windows, **changes)
        tables = RopeTables.build(config, 10, torch.device("cpu"))
        kept = [*tables.tables, *([] if tables.q_factors is None else [tables.q_factors])]
        assert (
            sum(table.nbytes for table in kept) == 10 * PoolSizes(config, 4, 32, 4, 100).position_bytes == 40 * values
        )


def test_the_least_cache_that_a_refusal_names_is_enough(tmp_path: Path) -> None:
    llama(max_position_embeddings=8192, num_hidden_layers=8).save_pretrained(tmp_path)

    def start(cache_memory: int) -> ModelRunner:
        return create(lambda *_: None, model=str(tmp_path), device="cpu", dtype="float32", cache_memory=cache_memory)

    with pytest.raises(OptionError) as caught:
        start(4)
    named = re.search(r"has 4 bytes; --cache-memory (\d+)MiB would hold (\d+) tokens, (\d+)MiB the", str(caught.value))
    assert named is not None, caught.value
    least, tokens, whole = map(int, named.groups())
    assert start(least * 2**20).info.max_model_len == tokens < 8192
    assert start(whole * 2**20).info.max_model_len == 8192
    assert start((whole - 1) * 2**20).info.max_model_len < 8192
