"""A server on stage with its canary and its probe, and how a row is judged on it."""

import time

from tests.drill import explained
from tests.drill.canary import Asked, Canary
from tests.drill.probe import Probe, Sample
from tests.drill.rest import Rest, peak_memory, wait_for_rest
from tests.drill.row import MIB, Broken, Promise, Result, Row, observed
from tests.drill.target import Target

GIVE_UP = 2.5
"""Times the promised seconds until the drill stops waiting for a right answer."""


class Stage:
    """One server for many rows; `alone` are the canary's right answers. A row calls `mark` when its fault is done."""

    def __init__(self, target: Target, alone: list[str]) -> None:
        self.target = target
        self.canary = Canary(target.url, target.headers, alone=alone)
        if not alone:
            self.canary.learn()
        self.probe = Probe(target.port)
        self.log: list[Asked] = []
        self._marked = 0.0
        self.said: explained.Said | None = None  # by a row that asks while its fault lasts
        self.start = Rest.of(target)

    def mark(self) -> None:
        """The fault is over now: from here on the server may take `serves` seconds."""
        self._marked = time.monotonic()

    @property
    def since_mark(self) -> float:
        return time.monotonic() - self._marked

    def close(self) -> None:
        self.probe.close()
        self.target.close()

    def judge(self, row: Row) -> Result:
        """Apply a row and compare what happens with its promise."""
        begun, at, self.said = time.monotonic(), time.time(), None
        before = Rest.of(self.target)
        with peak_memory(self.target.pid) as peak:
            own, again = self._act(row, begun)
            if not own.possible:
                return own
            said = self.said or (explained.ask(self.target, row.cause, at) if row.cause else None)
            problems = own.problems + again.problems + canary_problems(self.log, row.promise)
            problems += [f"after it: {text}" for text in canary_problems(self.canary.once(), Promise())]
        if peak.growth > row.promise.memory:
            problems.append(f"the service grew by {peak.growth // MIB} MiB")
        live, slow = live_problems(self.probe.since(begun), row.promise)
        problems += slow + wait_for_rest(self.target, before, self.start)
        answers = f"{len(self.log)} answers{failures(self.log)}"
        return Result(row, "; ".join(filter(None, [own.seen, again.seen, answers])), problems, live=live, said=said)

    def _act(self, row: Row, begun: float) -> tuple[Result, Result]:
        """The results of the action and of the wait for a right answer after it."""
        with self.canary.asking(row.askers) as self.log:
            own = observed(row, lambda: row.action(self))
            if self._marked < begun:
                self.mark()
            return own, observed(row, lambda: self._served_again(row.promise) if own.possible else "")

    def _served_again(self, promise: Promise) -> str:
        """Wait for a right answer to a request that began after the mark. Raises Broken if it is late."""
        bound = promise.answers if promise.serves is None else promise.serves
        while self.since_mark < GIVE_UP * bound:
            for asked in list(self.log):
                if asked.right and asked.answer.begun >= self._marked:
                    seconds = asked.answer.ended - self._marked
                    if seconds > bound:
                        raise Broken(f"served again after {seconds:.1f} s")
                    return f"served again after {seconds:.1f} s" if promise.serves else ""
            time.sleep(0.02)
        raise Broken(f"did not serve again in {GIVE_UP * bound:g} s{failures(self.log)}")


def canary_problems(log: list[Asked], promise: Promise) -> list[str]:
    """What a promise does not allow: wrong answers, refusals, and for an attack failures and slow answers."""
    problems = []
    if wrong := [asked for asked in log if asked.wrong]:
        problems.append(f"{len(wrong)} wrong answers, such as {wrong[0].answer.text[:80]!r}")
    statuses = {asked.answer.status for asked in log} - {200} - promise.refusals
    if blamed := sorted(status for status in statuses if 400 <= status < 500):
        problems.append(f"good requests got {', '.join(map(str, blamed))}")
    if promise.serves is None:
        if any(status == 0 or status >= 500 for status in statuses):
            problems.append("good requests failed" + failures(log))
        slowest = max((asked.answer.seconds for asked in log), default=0.0)
        if slowest > promise.answers:
            problems.append(f"an answer took {slowest:.1f} s")
    return problems


def failures(log: list[Asked]) -> str:
    """The statuses other than 200, with their numbers."""
    statuses = [asked.answer.status for asked in log if asked.answer.status != 200]
    parts = [f"{statuses.count(status)} x {status or 'lost'}" for status in sorted(set(statuses))]
    return f" ({', '.join(parts)})" if parts else ""


def live_problems(samples: list[Sample], promise: Promise) -> tuple[float | None, list[str]]:
    """The slowest answer of `/live`, and what the promise does not allow."""
    if promise.live is None or not samples:
        return None, []
    slowest = max(sample.seconds for sample in samples)
    problems = [f"`/live` took {1000 * slowest:.0f} ms"] if slowest > promise.live else []
    if bad := sum(sample.status != 200 for sample in samples):
        problems.append(f"`/live` was not answered {bad} times")
    return slowest, problems
