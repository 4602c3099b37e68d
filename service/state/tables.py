"""The tables of the store, in SQLite: in memory, or in a file that one server uses. They block."""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from service.errors.errors import HistoryTooLarge, StoreFull
from service.state.stored import Owner, Stored, StoredItem, Use

MEMORY = ":memory:"
VERSION = 3
APPLICATION = 0x4E6F7269
""""Nori": a file of another program is not touched."""
MARKS = {"application_id": APPLICATION, "user_version": VERSION}
LARGEST = 2**25
"""Bytes of one response or conversation: a request reads all its items at once."""
EVENTS_PIECE = 2**16
"""Compressed bytes of events that are read at once."""
UPGRADES = {
    1: """
ALTER TABLE items ADD COLUMN scored BLOB NOT NULL DEFAULT x'';
UPDATE items
    SET scored = value, value = CAST(json_set(CAST(value AS TEXT), '$.content[0].logprobs', json('[]')) AS BLOB)
    WHERE output AND json_extract(CAST(value AS TEXT), '$.content[0].logprobs[0]') IS NOT NULL;
UPDATE stored SET size = size + (
    SELECT coalesce(sum(length(value)), 0) FROM items
    WHERE owner = stored.owner AND holder = stored.id AND length(scored)
);
""",
    2: "UPDATE stored SET size = size - length(request); ALTER TABLE stored DROP COLUMN request;\n",
}
"""From version 1, in which items had their log probabilities among the rest, and from 2, which had requests."""
SCHEMA = """
CREATE TABLE stored (
    owner TEXT NOT NULL, id TEXT NOT NULL, previous TEXT, used REAL NOT NULL, size INTEGER NOT NULL,
    running INTEGER NOT NULL, value BLOB NOT NULL, events BLOB NOT NULL,
    PRIMARY KEY (owner, id)
);
CREATE INDEX oldest ON stored (owner, running, used);
CREATE INDEX expiring ON stored (used);
CREATE TABLE items (
    owner TEXT NOT NULL, holder TEXT NOT NULL, position INTEGER NOT NULL, id TEXT NOT NULL, output INTEGER NOT NULL,
    value BLOB NOT NULL, scored BLOB NOT NULL DEFAULT x'', PRIMARY KEY (owner, holder, position)
);
CREATE INDEX by_id ON items (owner, id);
"""


class Tables:
    """Responses and conversations by owner and id. Nobody finds what another owner has stored. `total` counts all.

    They have `limit` bytes at most, and stay for so many seconds after their last use. A change happens completely or
    not at all. Methods raise sqlite3.Error; the constructor also for a file of another program or server.
    """

    def __init__(self, path: str, limit: int, seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._limit, self._seconds, self._clock = limit, seconds, clock
        if path != MEMORY:
            Path(path).touch(mode=0o600)
        self._db = sqlite3.connect(path, timeout=0, check_same_thread=False)
        try:
            self._open()
            self._recount()
        except sqlite3.Error:
            self._db.close()
            raise

    def _open(self) -> None:
        """Lock the file, and make the tables if there are none."""
        application, version = (self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in MARKS)
        (n_tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if (application or n_tables) and (application != APPLICATION or version not in (*UPGRADES, VERSION)):
            raise sqlite3.DatabaseError("it is the file of another program, or of another version")
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=NORMAL"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("PRAGMA secure_delete=ON")  # what a client deletes is gone from the file
        if version != VERSION:
            upgrade = "".join(change for since, change in UPGRADES.items() if since >= version)
            marked = "".join(f"PRAGMA {name}={value};" for name, value in MARKS.items())
            self._db.executescript(f"BEGIN;{upgrade if n_tables else SCHEMA}{marked}COMMIT;")
        with self._db:
            self._db.execute("UPDATE stored SET used = used WHERE 0")  # takes the lock now, not at the first answer

    def _recount(self) -> None:
        rows = self._db.execute("SELECT owner, sum(size), count(*) FROM stored GROUP BY owner")
        self._uses = {owner: Use(size, n) for owner, size, n in rows}
        uses = self._uses.values()
        self.total = Use(sum(use.n_bytes for use in uses), sum(use.n_stored for use in uses))

    def close(self) -> None:
        self._db.commit()
        self._db.close()

    def put(self, owner: Owner, stored: Stored, *, only_running: bool = False) -> bool:
        """Store something, in place of what has its id. The least recently used is evicted. Raises StoreFull.

        False: it would replace `only_running` things, and this one has ended or is gone.
        """
        with self._change():
            self._expire()
            if only_running and not self.runs(owner.name, stored.id):
                return False
            self._remove(owner.name, stored.id)
            if stored.running:
                self._check_running(owner.name, stored.size)
            about = (owner.name, stored.id, stored.previous, self._clock(), 0, stored.running)
            row = (*about, stored.value, stored.events)
            self._db.execute("INSERT INTO stored VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._insert(owner.name, stored.id, stored.items, 0)
            self._count(owner.name, 0, 1)
            self._grow(owner, stored.id, stored.size)
        return True

    def update(self, owner: Owner, id: str, value: bytes) -> bool:
        """Change the JSON of something. False: it is gone. Raises StoreFull."""
        with self._change():
            length = "SELECT length(value) FROM stored WHERE owner = ? AND id = ?"
            if found := self._db.execute(length, (owner.name, id)).fetchone():
                self._db.execute("UPDATE stored SET value = ? WHERE owner = ? AND id = ?", (value, owner.name, id))
                self._grow(owner, id, len(value) - found[0])
        return found is not None

    def append(self, owner: Owner, id: str, items: Sequence[StoredItem]) -> bool:
        """Add items to something. False: it is gone. Raises StoreFull."""
        with self._change():
            last = "SELECT coalesce(max(position), -1) FROM items WHERE owner = ? AND holder = ?"
            (position,) = self._db.execute(last, (owner.name, id)).fetchone()
            if found := self._touch(owner.name, id):
                self._insert(owner.name, id, items, position + 1)
                self._grow(owner, id, sum(item.size for item in items))
        return found

    def remove_item(self, owner: Owner, holder: str, id: str) -> bool:
        """Remove an item of something. False: it is gone."""
        with self._change():
            removed = [item for item in self._items(owner.name, holder, scored=True) if item.id == id]
            self._db.execute("DELETE FROM items WHERE owner = ? AND holder = ? AND id = ?", (owner.name, holder, id))
            self._resize(owner.name, holder, -sum(item.size for item in removed))
        self._purge()
        return bool(removed)

    def delete(self, owner: Owner, id: str) -> bool:
        """Remove something. False: it is gone."""
        with self._change():
            found = self._remove(owner.name, id)
        self._purge()
        return found

    def _purge(self) -> None:
        """Take what was deleted out of the write-ahead log, too."""
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def find(self, owner: Owner, id: str, *, scored: bool = False) -> Stored | None:
        """Find something with its items, without its events; log probabilities only if `scored`. It counts as used."""
        self._expire()
        self._touch(owner.name, id)
        found = self._select("owner = ? AND id = ?", owner.name, id, scored=scored)
        return next((stored for _, stored in found), None)

    def events(self, owner: Owner, id: str, at: int) -> bytes | None:
        """Return at most `EVENTS_PIECE` compressed bytes of a response's events from byte `at` on. None: it is gone."""
        self._touch(owner.name, id)
        row = self._db.execute("SELECT rowid FROM stored WHERE owner = ? AND id = ?", (owner.name, id)).fetchone()
        if row is None:
            return None
        with self._db.blobopen("stored", "events", row[0], readonly=True) as events:
            events.seek(at)
            return events.read(EVENTS_PIECE)

    def chain(self, owner: Owner, id: str, limit: int) -> list[StoredItem] | None:
        """Return the items of a response and of all that it continues, the oldest first. None: one of these is missing.

        Raises HistoryTooLarge if they have more than `limit` bytes.
        """
        found: list[Stored] = []
        n_bytes = 0
        at: str | None = id
        while at is not None:
            if (stored := self.find(owner, at)) is None or stored.running:
                return None
            found.append(stored)
            if (n_bytes := n_bytes + stored.size) > limit:
                raise HistoryTooLarge(n_bytes, limit)
            at = stored.previous
        for stored in found:  # those that are continued are the last to go
            self._touch(owner.name, stored.id)
        return [item for stored in reversed(found) for item in stored.items]

    def referenced(self, owner: Owner, ids: Sequence[str], limit: int) -> dict[str, bytes]:
        """Return the JSON of the items with these ids that are stored. Raises HistoryTooLarge as `chain` does."""
        self._expire()
        newest = "SELECT value FROM items WHERE owner = ? AND id = ? ORDER BY rowid DESC LIMIT 1"
        found: dict[str, bytes] = {}
        n_bytes = 0
        for id in ids:
            for (value,) in self._db.execute(newest, (owner.name, id)):
                found[id] = value
                if (n_bytes := n_bytes + len(value)) > limit:
                    raise HistoryTooLarge(n_bytes, limit)
        return found

    def interrupted(self) -> list[tuple[str, Stored]]:
        """Return what was running when the server ended, with the names of the owners."""
        return [*self._select("running")]

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Make a transaction of the context. If it fails, the counts are those of the tables again."""
        try:
            with self._db:
                yield
        except BaseException:
            self._recount()
            raise

    def _select(self, where: str, *values: str, scored: bool = False) -> Iterator[tuple[str, Stored]]:
        columns = "owner, id, value, previous, running"
        for owner, id, value, previous, running in self._db.execute(
            f"SELECT {columns} FROM stored WHERE {where}", values
        ):
            items = self._items(owner, id, scored=scored)
            yield owner, Stored(id, value, items, previous, bool(running))

    def _items(self, owner: str, holder: str, *, scored: bool) -> tuple[StoredItem, ...]:
        rows = self._db.execute(
            f"SELECT id, value, output, {'scored' if scored else 'NULL'} FROM items "
            "WHERE owner = ? AND holder = ? ORDER BY position",
            (owner, holder),
        )
        return tuple(StoredItem(id, value, bool(output), scores or b"") for id, value, output, scores in rows)

    def _insert(self, owner: str, holder: str, items: Sequence[StoredItem], first: int) -> None:
        rows = [
            (owner, holder, first + n, item.id, item.output, item.value, item.scored) for n, item in enumerate(items)
        ]
        self._db.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def runs(self, owner: str, id: str) -> bool:
        running = "SELECT 1 FROM stored WHERE owner = ? AND id = ? AND running"
        return self._db.execute(running, (owner, id)).fetchone() is not None

    def _remove(self, owner: str, id: str) -> bool:
        row = self._db.execute("SELECT size FROM stored WHERE owner = ? AND id = ?", (owner, id)).fetchone()
        if row is None:
            return False
        self._db.execute("DELETE FROM stored WHERE owner = ? AND id = ?", (owner, id))
        self._db.execute("DELETE FROM items WHERE owner = ? AND holder = ?", (owner, id))
        self._count(owner, -row[0], -1)
        return True

    def _resize(self, owner: str, id: str, n_bytes: int) -> None:
        self._db.execute("UPDATE stored SET size = size + ? WHERE owner = ? AND id = ?", (n_bytes, owner, id))
        self._count(owner, n_bytes, 0)

    def _count(self, owner: str, n_bytes: int, n_stored: int) -> None:
        self.total = self.total.plus(n_bytes, n_stored)
        self._uses[owner] = self._uses.get(owner, Use()).plus(n_bytes, n_stored)
        if not self._uses[owner].n_stored:
            del self._uses[owner]

    def _touch(self, owner: str, id: str) -> bool:
        """Count something as used. False: it is gone. The disk may learn it with the next change."""
        touched = "UPDATE stored SET used = ? WHERE owner = ? AND id = ?"
        return bool(self._db.execute(touched, (self._clock(), owner, id)).rowcount)

    def _expire(self) -> None:
        oldest = self._clock() - self._seconds
        rows = self._db.execute("SELECT owner, id FROM stored WHERE used < ? AND NOT running", (oldest,)).fetchall()
        for owner, id in rows:
            self._remove(owner, id)

    def _grow(self, owner: Owner, id: str, n_bytes: int) -> None:
        """Count what something has more, and evict until the bounds hold. Raises StoreFull.

        Something that is too large itself evicts nothing.
        """
        self._resize(owner.name, id, n_bytes)
        (size,) = self._db.execute("SELECT size FROM stored WHERE owner = ? AND id = ?", (owner.name, id)).fetchone()
        if size > min(LARGEST, self._limit) or not Use(size, 1).within(owner):
            raise StoreFull
        while owners := self._over(owner):
            if not any(self._evict(name, but=id) for name in owners):
                raise StoreFull

    def _check_running(self, owner: str, n_bytes: int) -> None:
        """Raise StoreFull if what runs, which is not evicted, would take more than half of the store."""
        running = "SELECT coalesce(sum(size), 0) FROM stored WHERE owner = ? AND running"
        (held,) = self._db.execute(running, (owner,)).fetchone()
        if held + n_bytes > self._limit // 2:
            limits = f"may hold {self._limit // 2} bytes of the store; this one would make it {held + n_bytes}"
            raise StoreFull(f"running responses of this key {limits}. Try again when one has ended")

    def _over(self, owner: Owner) -> Sequence[str]:
        """Return the owners who may lose something, the first that can; nobody while the bounds hold.

        The owner with the largest part comes first. Owners with less than `owner` lose nothing for it.
        """
        if not self._uses[owner.name].within(owner):
            return [owner.name]
        by_size = sorted(self._uses, key=lambda name: -self._uses[name].n_bytes)
        return by_size[: by_size.index(owner.name) + 1] if self.total.n_bytes > self._limit else ()

    def _evict(self, owner: str, but: str) -> bool:
        """Remove what was used least recently. False: all of it runs."""
        row = self._db.execute(
            "SELECT id FROM stored WHERE owner = ? AND NOT running AND id != ? ORDER BY used, rowid LIMIT 1",
            (owner, but),
        ).fetchone()
        return row is not None and self._remove(owner, row[0])
