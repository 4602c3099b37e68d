"""The parent's side of the process that compiles and follows grammars (`model/grammar/process.py`)."""

from typing import Any

from model.machine.helper import ONE_ARENA, First, HelperProcess


class GrammarProcess(HelperProcess):
    """A ready process. One thread may use `ask` while another follows sequences; any thread may call the others.

    The first frame is a `Vocabulary`, or an archive of a model's files and the width of the logits.
    """

    def __init__(self, first: First, *, follows: bool = False) -> None:
        """Start it and wait until it is ready. Raises CannotStart."""
        self._follows = follows
        self._compiling = False
        super().__init__(
            "model.grammar.process",
            "follows grammars" if follows else "tries grammars",
            first,
            n_links=2 if follows else 1,
            environment={} if follows else ONE_ARENA,
            own_session=not follows,
        )

    def ask(self, grammar: str) -> str:
        """Return the fault of a grammar, "" if there is none. Raises ProcessLost."""
        self._compiling = True
        problem: str = self.exchange(grammar)[0]
        self._compiling = False
        return problem

    def follow(self, step: list[Any]) -> None:
        """Request the masks of a step. Raises ProcessLost."""
        with self.watched():
            self.links[1].send(step)

    def masks(self) -> tuple[Any, bytes]:
        """Return the next answer to `follow`. Raises ProcessLost."""
        with self.watched():
            return self.links[1].receive()

    def may_blame(self) -> bool:
        """Return whether a sequence may be to blame: not while a grammar, which may be the cause, is compiled."""
        return not (self._follows and self._compiling)
