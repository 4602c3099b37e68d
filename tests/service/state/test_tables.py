"""The store of responses: bounds, owners, chains, files."""

import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors.errors import HistoryTooLarge, StoreFull
from service.state.stored import Owner, Stored, StoredItem
from service.state.tables import MEMORY, Tables

A, B = Owner("a"), Owner("b")
ANY = 10**9
HOUR = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


def made(n_bytes: int = 10**6, seconds: float = HOUR, path: str = MEMORY) -> tuple[Tables, Clock]:
    clock = Clock()
    return Tables(path, n_bytes, seconds, clock), clock


def response(id: str, size: int = 100, previous: str | None = None, **more: Any) -> Stored:
    """A response with an input and an output item, together about so large."""
    items = (StoredItem(f"in_{id}", b"i" * (size // 2)), StoredItem(f"out_{id}", b"o" * (size // 2), True))
    return Stored(id, b"{}", items, previous, **more)


def ids(tables: Tables, owner: Owner, names: str) -> str:
    """Those of the responses that are there; looking does not count as use."""
    found = tables.referenced(owner, [f"in_{name}" for name in names], ANY)
    return "".join(name for name in names if f"in_{name}" in found)


def test_one_owner_never_finds_what_another_has() -> None:
    tables, _ = made()
    tables.put(A, response("r"))
    assert tables.find(A, "r") is not None
    assert tables.find(B, "r") is None
    assert tables.chain(B, "r", ANY) is None
    assert tables.referenced(B, ["in_r"], ANY) == {}
    assert not tables.delete(B, "r")
    assert not tables.append(B, "r", [StoredItem("x", b"x")])
    assert not tables.put(B, response("r"), only_running=True)
    assert not tables.update(B, "r", b"[]")
    assert not tables.remove_item(B, "r", "in_r")
    assert tables.find(A, "r") == response("r")


def test_a_chain_has_all_items_in_order_and_ends_where_one_is_missing() -> None:
    tables, _ = made()
    for id, previous in (("1", None), ("2", "1"), ("3", "2")):
        tables.put(A, response(id, previous=previous))
    found = tables.chain(A, "3", ANY)
    assert found is not None
    assert [item.id for item in found] == ["in_1", "out_1", "in_2", "out_2", "in_3", "out_3"]
    assert tables.delete(A, "2")
    assert tables.chain(A, "3", ANY) is None
    assert tables.chain(A, "1", ANY) is not None


def test_what_was_used_least_recently_goes() -> None:
    size = response("0").size
    tables, _ = made(3 * size)
    for id in "012":
        tables.put(A, response(id))
    tables.find(A, "0")
    tables.put(A, response("3"))
    assert ids(tables, A, "0123") == "023"
    assert tables.total.n_bytes == 3 * size


def test_what_is_too_large_pushes_nothing_out() -> None:
    tables, _ = made(1000)
    tables.put(A, response("0"))
    with pytest.raises(StoreFull):
        tables.put(A, response("1", 1000))
    assert ids(tables, A, "01") == "0"
    assert tables.total.n_bytes == response("0").size


def test_an_owner_with_less_loses_nothing_for_one_with_more() -> None:
    size = response("0").size
    tables, _ = made(4 * size)
    small, large, new = Owner("small"), Owner("large"), Owner("new")
    tables.put(small, response("0"))
    for id in "12345":
        tables.put(large, response(id))
    assert ids(tables, small, "0") == "0"
    assert ids(tables, large, "12345") == "345"
    tables.put(new, response("6"))
    assert ids(tables, large, "345") == "45"


def test_what_runs_is_not_removed_to_gain_place() -> None:
    size = response("0").size
    tables, _ = made(2 * size)
    for owner in (A, B):
        tables.put(owner, response("0", running=True))
    with pytest.raises(StoreFull):
        tables.put(A, response("2"))
    assert (ids(tables, A, "02"), ids(tables, B, "0")) == ("0", "0")
    assert tables.chain(A, "0", ANY) is None  # it is not complete
    assert tables.put(A, response("0"), only_running=True)
    tables.put(A, response("2"))
    assert (ids(tables, A, "02"), ids(tables, B, "0")) == ("2", "0")


def test_what_runs_of_one_owner_leaves_half_to_others() -> None:
    size = response("0").size
    tables, _ = made(6 * size)
    for id in "012":
        tables.put(A, response(id, running=True))
    with pytest.raises(StoreFull, match=f"{3 * size} bytes.*{4 * size}"):
        tables.put(A, response("3", running=True))
    tables.put(A, response("3"))
    for id in "456":
        tables.put(B, response(id))
    assert (ids(tables, A, "0123"), ids(tables, B, "456")) == ("012", "456")
    assert tables.put(A, response("0", running=True), only_running=True)  # in its own place
    tables.delete(B, "4")
    assert tables.put(A, response("1", size), only_running=True)  # the end has no such bound


def test_the_end_of_what_was_deleted_is_not_stored() -> None:
    tables, _ = made()
    tables.put(A, response("0", running=True))
    assert tables.delete(A, "0")
    assert not tables.put(A, response("0"), only_running=True)
    assert tables.total.n_bytes == 0
    tables.put(A, response("1"))
    assert not tables.put(A, response("1", running=True), only_running=True)
    assert tables.chain(A, "1", ANY) is not None, "it has ended, and stays"


def test_limits_of_an_owner_hold_for_it_alone() -> None:
    size = response("0").size
    tables, _ = made()
    for limited in (Owner("a", max_stored=2), Owner("a", max_bytes=2 * size)):
        for id in "0123":
            tables.put(B, response(id))
            tables.put(limited, response(id))
        assert (ids(tables, A, "0123"), ids(tables, B, "0123")) == ("23", "0123")
        for owner in (A, B):
            for id in "0123":
                tables.delete(owner, id)
    with pytest.raises(StoreFull):
        tables.put(Owner("a", max_bytes=size - 1), response("0"))


def test_what_is_not_used_for_long_is_forgotten() -> None:
    tables, clock = made(seconds=10)
    for id in "012":
        tables.put(A, response(id, running=id == "2"))
    clock.now += 6
    tables.find(A, "0")
    clock.now += 6
    assert tables.find(A, "1") is None
    assert ids(tables, A, "012") == "02"
    assert tables.total.n_bytes == 2 * response("0").size


def item_ids(tables: Tables, id: str) -> list[str]:
    found = tables.find(A, id)
    assert found is not None
    return [item.id for item in found.items]


def test_items_of_a_conversation_come_and_go() -> None:
    tables, _ = made(2000)
    tables.put(A, Stored("c", b"{}"))
    empty = tables.total.n_bytes
    assert tables.append(A, "c", [StoredItem("1", b"x"), StoredItem("2", b"y")])
    assert tables.append(A, "c", [StoredItem("3", b"z")])
    assert item_ids(tables, "c") == ["1", "2", "3"]
    assert tables.remove_item(A, "c", "2")
    assert not tables.remove_item(A, "c", "2")
    assert tables.referenced(A, ["1", "2", "3"], ANY) == {"1": b"x", "3": b"z"}
    with pytest.raises(StoreFull):
        tables.append(A, "c", [StoredItem("4", b"w" * 2000)])
    assert item_ids(tables, "c") == ["1", "3"]
    assert tables.total.n_bytes == empty + StoredItem("1", b"x").size + StoredItem("3", b"z").size


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "run", "end", "delete", "find", "append", "update", "later"]),
            st.sampled_from("ab"),
            st.sampled_from("0123"),
            st.integers(0, 1500),
        ),
        max_size=40,
    )
)
def test_the_bounds_hold_whatever_happens(steps: list[tuple[str, str, str, int]]) -> None:
    """Counts are those of the tables, and never beyond the limit."""
    tables, clock = made(4000, seconds=50)
    owners = [Owner(name, 3000, 3) for name in "ab"]
    for step, name, id, size in steps:
        owner = owners["ab".index(name)]
        try:
            if step in ("put", "run"):
                tables.delete(owner, id)
                tables.put(owner, response(id, size, running=step == "run"))
            elif step == "end":
                tables.put(owner, response(id, size), only_running=True)
            elif step == "delete":
                tables.delete(owner, id)
            elif step == "find":
                tables.find(owner, id)
            elif step == "append":
                tables.append(owner, id, [StoredItem("x", b"x" * size)])
            elif step == "update":
                tables.update(owner, id, b"v" * size)
            else:
                clock.now += size / 30
        except StoreFull:
            pass
        found = {name.name: [stored for each in "0123" if (stored := tables.find(name, each))] for name in owners}
        sizes = {name: sum(stored.size for stored in all_of) for name, all_of in found.items()}
        assert tables.total.n_bytes == sum(sizes.values()) <= 4000
        assert tables.total.n_stored == sum(map(len, found.values()))
        assert all(size <= 3000 and len(found[name]) <= 3 for name, size in sizes.items())


def test_one_response_has_its_own_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request reads one as a whole."""
    monkeypatch.setattr("service.state.tables.LARGEST", 5000)
    tables, _ = made()
    with pytest.raises(StoreFull):
        tables.put(A, response("0", 5000))
    tables.put(A, Stored("c", b"{}"))
    for number in range(6):
        tables.append(A, "c", [StoredItem(str(number), b"x" * 500)])
    with pytest.raises(StoreFull):
        tables.append(A, "c", [StoredItem("6", b"x" * 500)])
    assert len(item_ids(tables, "c")) == 6
    with pytest.raises(StoreFull):
        tables.update(A, "c", b"v" * 1000)


def test_no_more_is_read_than_a_request_may_have() -> None:
    tables, _ = made()
    for id, previous in (("1", None), ("2", "1"), ("3", "2")):
        tables.put(A, response(id, 1000, previous))
    assert tables.chain(A, "2", 2 * response("1", 1000).size) is not None
    with pytest.raises(HistoryTooLarge):
        tables.chain(A, "3", 2 * response("1", 1000).size)
    assert len(tables.referenced(A, ["in_1", "in_2"], 1000)) == 2
    with pytest.raises(HistoryTooLarge):
        tables.referenced(A, ["in_1", "in_2", "in_3"], 1000)


def test_a_file_survives_and_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    tables, _ = made(path=str(path))
    tables.put(A, response("0"))
    tables.put(A, response("1", running=True))
    modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert any(name.endswith("-wal") for name in modes)
    tables.close()
    again, _ = made(path=str(path))
    assert again.total.n_bytes == 2 * response("0").size
    assert again.find(A, "0") is not None
    assert [(owner, stored.id, len(stored.items)) for owner, stored in again.interrupted()] == [("a", "1", 2)]


def test_a_file_is_for_one_server(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.db")
    first, _ = made(path=path)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        made(path=path)
    first.close()
    made(path=path)[0].close()


def test_files_of_others_are_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    text = tmp_path / "text"
    text.write_text("no database " * 100)
    for found in (path, text):
        before = found.read_bytes()
        with pytest.raises(sqlite3.DatabaseError):
            made(path=str(found))
        assert found.read_bytes() == before


@pytest.mark.parametrize("size", [100, 1000, 20_000, 200_000])
def test_the_file_stays_about_as_small_as_its_limit(tmp_path: Path, size: int) -> None:
    """Also where rows are small. The store in memory is the same, without the file."""
    path = tmp_path / "responses.db"
    limit = 2**20
    tables, _ = made(limit, path=str(path))
    for number in range(3 * limit // size // (1 if size > 500 else 8)):
        tables.put(A, response(str(number), size + size // 200 * (number % 50)))
        tables.find(A, str(number))
    on_disk = sum(found.stat().st_size for found in tmp_path.iterdir())
    assert on_disk < 2 * limit + 2**23, "the write-ahead log"
    tables.close()
    assert limit // 3 < path.stat().st_size < 1.3 * limit
    assert [*tmp_path.iterdir()] == [path]


def test_what_is_deleted_is_gone_from_the_files(tmp_path: Path) -> None:
    """At once: the write-ahead log has it no more either."""
    path = tmp_path / "responses.db"
    tables, _ = made(path=str(path))
    secret = StoredItem("i", b"secret-text" * 300)
    tables.put(A, Stored("0", b"{}", (secret,)))
    tables.put(A, Stored("c", b"{}", (secret, StoredItem("j", b"rest"))))
    assert any(b"secret-text" in found.read_bytes() for found in tmp_path.iterdir())
    tables.delete(A, "0")
    tables.remove_item(A, "c", "i")
    assert not any(b"secret-text" in found.read_bytes() for found in tmp_path.iterdir())
    assert any(b"rest" in found.read_bytes() for found in tmp_path.iterdir())


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its items had their log probabilities among the rest."""
    path = str(tmp_path / "responses.db")
    db = sqlite3.connect(path)
    scored = b'{"type":"message","content":[{"type":"output_text","text":"a","logprobs":[{"token":"a"}]}]}'
    plain = b'{"type":"message","content":[{"type":"output_text","text":"a","logprobs":[]}]}'
    call = b'{"type":"function_call","arguments":"{}"}'
    db.executescript(
        "CREATE TABLE stored (owner TEXT NOT NULL, id TEXT NOT NULL, previous TEXT, used REAL NOT NULL, size INTEGER "
        "NOT NULL, running INTEGER NOT NULL, value BLOB NOT NULL, events BLOB NOT NULL, request BLOB NOT NULL, "
        "PRIMARY KEY (owner, id)); CREATE INDEX oldest ON stored (owner, running, used); CREATE INDEX expiring ON "
        "stored (used); CREATE TABLE items (owner TEXT NOT NULL, holder TEXT NOT NULL, position INTEGER NOT NULL, "
        "id TEXT NOT NULL, output INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (owner, holder, position)); "
        "CREATE INDEX by_id ON items (owner, id); PRAGMA application_id=1315926633; PRAGMA user_version=1;"
    )
    old = Stored("r", b"{}", (StoredItem("in", b"{}"), StoredItem("out", scored, True), StoredItem("call", call, True)))
    db.execute("INSERT INTO stored VALUES ('a', 'r', NULL, 1000, ?, 0, x'7b7d', x'', x'')", (old.size,))
    rows = [("a", "r", n, item.id, item.output, item.value) for n, item in enumerate(old.items)]
    db.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?)", rows)
    db.commit()
    db.close()
    for _ in range(2):
        tables, _clock = made(path=path)
        expected = (old.items[0], StoredItem("out", plain, True, scored), old.items[2])
        assert tables.find(A, "r", scored=True) == Stored("r", b"{}", expected)
        assert tables.find(A, "r") == Stored("r", b"{}", (old.items[0], StoredItem("out", plain, True), old.items[2]))
        assert tables.total.n_bytes == Stored("r", b"{}", expected).size
        tables.close()


def test_a_file_of_the_second_version_loses_its_requests(tmp_path: Path) -> None:
    """They were there to compute responses again."""
    path = str(tmp_path / "responses.db")
    tables, _ = made(path=path)
    stored = Stored("r", b"{}", (StoredItem("in", b"{}"),))
    tables.put(A, stored)
    tables.close()
    db = sqlite3.connect(path)
    db.executescript(
        "ALTER TABLE stored ADD COLUMN request BLOB NOT NULL DEFAULT x''; PRAGMA user_version=2;"
        "UPDATE stored SET request = x'616263', size = size + 3;"
    )
    db.close()
    tables, _ = made(path=path)
    assert tables.find(A, "r") == stored
    assert tables.total.n_bytes == stored.size
    tables.put(A, stored)
    tables.close()
