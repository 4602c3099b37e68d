"""The page pool's bookkeeping and the choice of a prefix to start from."""

import pytest

from model.batch import PoolSpec
from service.engine.scheduling.pages import PagePool, Table, page_name, reusable_blocks


def pool(n_pages: int = 4, window: int | None = None, page_size: int = 4) -> PagePool:
    return PagePool(PoolSpec(window, n_pages), page_size)


def test_least_recently_used_content_goes_first() -> None:
    wheel = pool(n_pages=2)
    first, second = wheel.take(), wheel.take()
    wheel.name(first, b"a")
    wheel.name(second, b"b")
    wheel.release(first)
    wheel.release(second)
    wheel.release(wheel.share(b"a"))  # used again, so b is the older one
    assert wheel.take() == second
    assert wheel.contains(b"a")
    assert not wheel.contains(b"b")
    wheel.check()


def test_names_depend_on_all_tokens_before() -> None:
    assert page_name(page_name(b"", [1, 2]), [3, 4]) != page_name(page_name(b"", [9, 2]), [3, 4])
    assert page_name(b"", [1, 2]) == page_name(b"", [1, 2])


@pytest.mark.parametrize(
    ("window", "position", "block"),
    [(None, 99, 0), (5, 9, 1), (5, 4, 0), (5, 7, 0), (5, 8, 1), (1, 8, 2), (2, 8, 1), (100, 99, 0), (100, 103, 1)],
)
def test_first_visible_block_by_hand(window: int | None, position: int, block: int) -> None:
    assert pool(window=window).first_visible_block(position) == block


def fill(wheel: PagePool, names: list[bytes]) -> None:
    for name in names:
        page = wheel.take()
        wheel.name(page, name)
        wheel.release(page)


def test_full_attention_reuses_the_whole_prefix_only() -> None:
    wheel = pool(n_pages=8)
    fill(wheel, [b"0", b"1", b"3"])
    assert reusable_blocks([wheel], [b"0", b"1", b"2", b"3"]) == 2


def test_a_window_reuses_from_any_boundary_whose_last_positions_are_there() -> None:
    wheel = pool(n_pages=8, window=5)
    fill(wheel, [b"2", b"3"])
    # The token at position 16 sees 12..16: block 3 alone is enough, blocks 0..2 may be gone.
    assert reusable_blocks([wheel], [b"0", b"1", b"2", b"3"]) == 4
    # At position 12 it sees 8..12: block 2.
    assert reusable_blocks([wheel], [b"0", b"1", b"2", b"x"]) == 3
    assert reusable_blocks([wheel], [b"0", b"x"]) == 0


def test_the_boundary_must_suit_every_pool() -> None:
    full, windowed = pool(n_pages=8), pool(n_pages=8, window=5)
    fill(full, [b"0", b"1", b"2"])
    fill(windowed, [b"0", b"1"])
    assert reusable_blocks([full, windowed], [b"0", b"1", b"2"]) == 2


def test_a_name_that_is_forgotten_leads_nowhere() -> None:
    """Whoever holds the page keeps it; afterwards it is free, not cached. A cached page becomes free at once."""
    wheel = pool()
    held = wheel.take()
    wheel.name(held, b"held")
    fill(wheel, [b"cached", b"other"])
    for name in (b"held", b"cached", b"unknown"):
        wheel.forget(name)
        wheel.check()
    assert reusable_blocks([wheel], [b"held"]) == reusable_blocks([wheel], [b"cached"]) == 0
    assert (wheel.stats.held, wheel.stats.cached, wheel.stats.free) == (1, 1, 2)
    wheel.release(held)
    assert (wheel.stats.held, wheel.stats.cached, wheel.stats.free) == (0, 1, 3)
    wheel.check()


def test_a_slice_keeps_the_table_that_it_got() -> None:
    """A view stays as it is, and serves all slices until the table changes."""
    table = Table(PagePool(PoolSpec(5, 8), 4))
    table.grow(8)
    view, pages = table.view, [*table.view.pages]
    table.grow(8)
    assert table.view is view
    table.grow(16)
    table.shrink(12)
    table.roll(9)
    assert (view.first_block, [*view.pages]) == (0, pages)
    assert (table.view.first_block, [*table.view.pages][:1], table.stop) == (1, pages[1:], 12)
