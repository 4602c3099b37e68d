"""No bit of tokens or logprobs depends on whether pages come from the disk, from memory, or are computed.

The store is the one of the product, with its threads. An engine saves its pages and ends; the next one has other limits
of its steps and another size of the cache.
"""

from pathlib import Path
from typing import Any

import pytest

from model.loading import create
from tests.e2e.conftest import Load
from tests.e2e.served import GREEDY, SEEDED, SERVED, prompt
from tests.e2e.storing import Engine
from tests.e2e.without_server import Request

PAGE = 32
MINE: list[Request] = [(prompt(0, 90), GREEDY), (prompt(1, 37), SEEDED)]
FROM_DISK = 2 * PAGE + PAGE


@pytest.fixture(params=SERVED, ids=lambda options: "-".join(map(str, options.values())))
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def test_after_a_restart(options: dict[str, Any], load_short: Load, tmp_path: Path) -> None:
    options["prefix_store"] = str(tmp_path)
    first = Engine(load_short(**options))
    alone = [first.serve([item], cache_salt="alone")[0][0] for item in MINE]
    computed, from_disk = first.serve(MINE)
    assert (computed, from_disk) == (alone, 0)
    first.end()
    second = Engine(load_short(**options, max_step_tokens=64, max_sequences=4, cache_memory=96 * 2**20))
    assert second.serve(MINE) == (alone, FROM_DISK)
    assert second.serve(MINE) == (alone, 0)
    assert second.serve(MINE, cache_owner="another") == (alone, 0)


@pytest.mark.parametrize("window", [40, 70])
def test_with_a_window(window: int, load_short: Load, tmp_path: Path) -> None:
    """The window has lost the first pages, before the prompt ends."""
    options: dict[str, Any] = {"sliding_window": window, "prefix_store": str(tmp_path), "max_step_tokens": 32}
    requests = [(prompt(3, 200), GREEDY)]
    first = Engine(load_short(**options))
    alone, _ = first.serve(requests)
    first.end()
    assert len([*tmp_path.rglob("*.page")]) == 6 - (192 - window + 1) // PAGE
    second = Engine(load_short(**options))
    assert second.serve(requests) == (alone, 192)


@pytest.mark.parametrize(
    ("options", "head_bytes"),
    [
        ({"dtype": "float32"}, 4 * 64),
        ({"dtype": "float32", "attention": "sdpa"}, 4 * 64),
        ({"dtype": "bfloat16", "attention": "sdpa"}, 2 * 64),
        ({"kv_dtype": "int8"}, 64 + 4),
    ],
)
def test_a_file_has_the_bytes_of_a_page(
    options: dict[str, Any], head_bytes: int, load_short: Load, tmp_path: Path
) -> None:
    """Counted by hand: keys and values of 4 layers and 3 heads, between the head of the file and its hash."""
    engine = Engine(load_short(**options, prefix_store=str(tmp_path)))
    engine.serve([(prompt(0, 40), GREEDY)])
    engine.end()
    (path,) = tmp_path.rglob("*.page")
    assert path.stat().st_size == 320 + 4 * 2 * PAGE * 3 * head_bytes + 32


def test_what_changes_a_bit_changes_the_fingerprint(short_model: Path, tmp_path: Path) -> None:
    """And nothing else does: not the limits of a step, the size of the cache, or the context."""

    def fingerprint(**options: Any) -> str:
        chosen = {"max_model_len": 256, "cache_memory": 64 * 2**20, "prefix_store": str(tmp_path), **options}
        runner = create(lambda stage, done: None, model=str(short_model), device="cpu", **chosen)
        assert runner.info.prefixes is not None
        return runner.info.prefixes.fingerprint

    same = [{}, {"max_model_len": 128}, {"cache_memory": 96 * 2**20}, {"max_sequences": 3}, {"threads": 1}]
    others = [{"kv_dtype": "int8"}, {"quantize": "int8"}, {"sliding_window": 64}, {"attention": "sdpa"}]
    assert len({fingerprint(**some) for some in same}) == 1
    assert len({fingerprint(**some) for some in [{}, *others]}) == 1 + len(others)
