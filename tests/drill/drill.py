"""Runs the rows of the drill one after the other, and those that wait for deadlines beside them."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.drill.rest import Rest, wait_for_rest
from tests.drill.row import UNEXPECTED, Broken, LoneRow, NotPossible, Result, Row, observed
from tests.drill.stage import Stage
from tests.drill.target import SETUPS, Target

Rows = list[Row | LoneRow]


class Drill:
    """One run. `tell` gets each result as it comes.

    A broken promise costs a fresh server: what is left of one fault must not break the promises of the next row.
    """

    def __init__(self, tell: Callable[[Result], None]) -> None:
        self._tell = tell
        self._setup = ""
        self._stage: Stage | None = None
        self._alone: dict[str, list[str]] = {}  # by the model of a setup
        self._aside: list[Result] = []
        self._thread: threading.Thread | None = None

    def run(self, rows: Rows) -> list[Result]:
        """The results of rows, those of the server "aside" excepted: `begin_aside` runs them."""
        return [self._run(row) for row in rows if not is_aside(row)]

    def begin_aside(self, rows: Rows) -> None:
        """Begin with the rows that wait for long deadlines, all at once, on a server of their own."""
        chosen = [row for row in rows if isinstance(row, Row) and is_aside(row)]
        self._thread = threading.Thread(target=self._run_aside, args=(chosen,), daemon=True)
        self._thread.start()

    def end_aside(self) -> list[Result]:
        """Wait for those rows."""
        if self._thread is not None:
            self._thread.join()
        for result in self._aside:
            self._tell(result)
        return self._aside

    def learn(self) -> None:
        """Start the first server and let its canary learn what it answers alone. Raises Broken."""
        self._enter("main")

    def leave_stage(self) -> None:
        if self._stage is not None:
            self._stage.close()
        self._stage = None

    def _run(self, row: Row | LoneRow) -> Result:
        if isinstance(row, LoneRow):
            self.leave_stage()  # two servers would share the cores
            result = observed(row, row.action)
        else:
            result = self._judge(row)
        self._tell(result)
        return result

    def _judge(self, row: Row) -> Result:
        try:
            stage = self._enter(row.setup)
        except NotPossible as error:
            return Result(row, str(error), possible=False)
        except (Broken, *UNEXPECTED) as error:
            return Result(row, "", [str(error)])
        result = stage.judge(row)
        if result.verdict == "broken":
            self.leave_stage()
        return result

    def _enter(self, setup: str) -> Stage:
        if self._stage is None or setup != self._setup or not self._stage.target.alive():
            self.leave_stage()
            self._stage, self._setup = staged(setup, self._alone.get(SETUPS[setup].model, [])), setup
            self._alone[SETUPS[setup].model] = self._stage.canary.alone
        return self._stage

    def _run_aside(self, rows: list[Row]) -> None:
        try:
            stage = staged("aside", self._alone[SETUPS["aside"].model])
        except (Broken, *UNEXPECTED) as error:
            self._aside = [Result(row, "", [str(error)]) for row in rows]
            return
        before, begun = Rest.of(stage.target), time.monotonic()
        with ThreadPoolExecutor(max(1, len(rows))) as pool:
            self._aside = list(pool.map(lambda row: observed(row, lambda: row.action(stage)), rows))
        if rows:
            unrest = wait_for_rest(stage.target, before, stage.start)
            live = max((sample.seconds for sample in stage.probe.since(begun)), default=None)
            last = self._aside.pop()
            self._aside.append(Result(last.row, last.seen, last.problems + unrest, last.possible, live))
        stage.close()


def is_aside(row: Row | LoneRow) -> bool:
    return isinstance(row, Row) and row.setup == "aside"


def staged(setup: str, alone: list[str]) -> Stage:
    """A stage on a fresh server. Raises Broken if it does not start, NotPossible if this machine cannot run it."""
    target = Target(setup)
    try:
        target.start()
        return Stage(target, alone)
    except BaseException:
        target.close()
        raise
