"""What `noria explain` says of a row's server, and whether it names the true cause."""

import time
from typing import Any, NamedTuple

from service.recording.explain import explain
from tests.drill.target import Target

SECONDS = 10.0
"""The time in which the first sentence must name the cause."""
BEFORE = 1.1
"""Seconds before a row whose samples count: the values from which counts rise."""
MOMENTS = ("descriptors_left", "pids_left", "stood_still", "jump")
"""Facts of the moment, which the sample before a row does not lend to it."""
NOTHING = "nothing"
"""The cause of a row that harms nothing: any other sentence would be a false cause."""


class Said(NamedTuple):
    """The sentence, the name of its rule, and whether that is the row's cause."""

    sentence: str
    rule: str
    right: bool


def ask(target: Target, cause: str, begun: float) -> Said:
    """Ask until the cause is named, for `SECONDS` at most. `begun` is when the row began.

    Incidents of rows before it are cut away: a drill has one every few seconds, and a sentence lasts a minute.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        found = explain(since(target.server.http.get("/v1/engine/record").json(), begun))
        said = Said(found.sentence, found.rule.name or NOTHING, (found.rule.name or NOTHING) == cause)
        if said.right or cause == NOTHING or time.monotonic() > deadline:
            return said
        time.sleep(0.5)


def since(record: dict[str, Any], begun: float) -> dict[str, Any]:
    """The part of a record since a row began. The clock of the server may have jumped: its own seconds count."""
    now = record["time"] - (time.time() - begun)
    events = [event for event in record["events"] if event["time"] >= now]
    samples = [sample for sample in record["samples"] if sample["time"] >= now - BEFORE]
    cut = [{name: it[name] for name in it if it["time"] >= now or name not in MOMENTS} for it in samples]
    return {**record, "events": events, "samples": cut}
