"""Finds what is wrong in a record: the first row of rules.txt that holds gives the sentence, figures and remedy."""

import time
from collections.abc import Iterator
from itertools import pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

WINDOW, LASTING = 60, 3
"""Seconds before the end of a record in which a cause is looked for, and samples for which a state must last."""
N_FIGURES = 3
TOGETHER = 10.0
"""Seconds within which incidents have one cause: the first row that holds has it."""
Facts = dict[str, Any]


class Rule(NamedTuple):
    """A row of the table. `when` has clauses: a verb, a fact or a kind of event, and a value; "and" binds before "or".

    Incidents: "event KIND text n": there were n events with this text in their reason; "rose FACT": a count grew; "most
    FACT n", "least FACT n": a value was above, or below n. States: "grew FACT n": a count grew by more than n, or than
    the count n, or a part of it (n/5); "now FACT n": the latest value is above n; "is FACT value": it lasts. Without n
    it is 0, of events 1.
    """

    name: str
    when: str
    sentence: str
    remedy: str
    section: str
    figures: str


LINES = (Path(__file__).parent / "rules.txt").read_text(encoding="utf-8").splitlines()
RULES = tuple(Rule(*line.split(" | ")) for line in LINES if line and line[0] != "#")
NOTHING = Rule("", "", "Nothing is wrong.", "Nothing is to be done.", "Twelve questions at night", "")


class View(NamedTuple):
    """A part of a record: samples with the facts of the server and of one of its models, and the events of both."""

    samples: list[Facts]
    events: list[Facts]

    def incident(self, when: str) -> Facts | None:
        """Return the latest event or sample that makes a condition true, {} for a state; None if it is not true."""
        for part in when.split(" or "):
            found = [self._clause(*clause.split()) for clause in part.split(" and ")]
            if None not in found:
                return max(filter(None, found), key=itemgetter("time"), default={})
        return None

    def _clause(self, verb: str, name: str, *rest: str) -> Facts | None:
        if verb == "event":
            words, n = (rest[:-1], int(rest[-1])) if rest and rest[-1].isdigit() else (rest, 1)
            found = [it for it in self.events if it["kind"] == name and " ".join(words) in it["reason"]]
            return found[-1] if len(found) >= n else None
        if verb == "is":
            latest = [str(item.get(name)) for item in self.samples[-LASTING:]]
            return {} if latest == [*rest] * LASTING else None
        other, _, part = " ".join(rest).partition("/")
        bound = self._rise(other) / float(part or 1) if other.isidentifier() else float(other or 0)
        if verb in ("most", "least"):
            sign = 1 if verb == "most" else -1
            beyond = (it for it in reversed(self.samples) if name in it and sign * it[name] > sign * bound)
            return next(beyond, None)
        if verb == "now":
            return {} if (self.samples[-1].get(name) or 0) > bound else None
        if self._rise(name) <= bound:
            return None
        return self.changed(name) if verb == "rose" else {}

    def _rise(self, name: str) -> float:
        return (self.samples[-1].get(name) or 0) - (self.samples[0].get(name) or 0)

    def changed(self, name: str) -> Facts:
        """Return the sample in which a fact changed last; the first one if it never did."""
        pairs = pairwise(reversed(self.samples))
        return next((new for new, old in pairs if new.get(name) != old.get(name)), self.samples[0])

    def figures(self, incident: Facts, names: str) -> Iterator[str]:
        """Yield a line for the event, and for each fact: its value, and when it changed."""
        if "kind" in incident:
            yield f"{_clock(incident['time'])}  {incident['kind']}: {incident['reason']}"
        for name in names.split():
            before = self.samples[0].get(name)
            yield f"{_clock(self.changed(name)['time'])}  {name}: {self.samples[-1].get(name)}, {before} at first"


class Explanation(NamedTuple):
    """The rule that holds, its sentence, and the figures. If nothing is wrong now, the rule has no name."""

    rule: Rule
    sentence: str
    figures: tuple[str, ...]


def explain(record: Facts) -> Explanation:
    """Say what is wrong at the end of a record; if nothing is, what was wrong before."""
    now = record["time"]
    if (found := _found(record, now - WINDOW, now)) is not None:
        return found
    if (before := _found(record, 0.0, now - WINDOW)) is not None:
        sentence = f"Nothing is wrong now. Some minutes ago: {before.sentence}"
        return before._replace(rule=before.rule._replace(name=""), sentence=sentence)
    return Explanation(NOTHING, NOTHING.sentence, ())


def _found(record: Facts, since: float, until: float) -> Explanation | None:
    """Return the first row that holds. What is over for longer than the latest incident is not what is wrong."""
    samples, events = ([it for it in record[name] if since <= it["time"] <= until] for name in ("samples", "events"))
    found, views = [], []
    for model in samples[-1]["models"] if samples else ():
        flat = [{**item, **item["refused"], **item["models"].get(model, {}), "model": model} for item in samples]
        views.append(View(flat, [event for event in events if event.get("model", model) == model]))
    for rule, view in product(RULES, views):
        if (incident := view.incident(rule.when)) is not None:
            figures = tuple(view.figures(incident, rule.figures))[:N_FIGURES]
            told = Explanation(rule, rule.sentence.format_map(view.samples[-1] | incident), figures)
            found.append((incident.get("time", until), told))
    latest = max((at for at, _ in found if at < until), default=0.0)
    return next((told for at, told in found if at >= latest - TOGETHER), None)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
