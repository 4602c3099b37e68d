"""What a stream says, however it is cut into events."""

from collections.abc import Iterable, Iterator
from typing import Any

JOINED = frozenset(("text", "content", "delta", "partial_json", "arguments"))
"""Keys whose strings follow one another in the events of a stream."""
VOLATILE = frozenset(("id", "item_id", "created", "created_at", "completed_at", "sequence_number", "timings"))


def leaves(path: tuple[Any, ...], value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The values of an event by their places: keys, and the index of a choice. A list without objects is one value."""
    if isinstance(value, dict):
        for key in value.keys() - VOLATILE:
            yield from leaves((*path, value.get("index"), key), value[key])
    elif isinstance(value, list) and value and isinstance(value[0], dict) and path[-1] != "top_logprobs":
        for item in value:
            yield from leaves(path, item)
    elif value is not None:
        yield path, value


def gathered(events: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], Any]:
    """What a stream says, however it is cut into events: texts and lists joined, the last of everything else."""
    found: dict[tuple[Any, ...], Any] = {}
    for event in events:
        for path, value in leaves((event.get("type"),), event):
            if path[-1] == "logprob":
                found[path] = [*found.get(path, []), value]
            elif isinstance(value, list) or path[-1] in JOINED:
                found[path] = found.get(path, value[:0]) + value
            else:
                found[path] = value
    return found
