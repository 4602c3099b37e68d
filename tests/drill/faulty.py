"""A server whose engine has faults on demand: `python -m tests.drill.faulty FLAGS` is `noria serve` with `create`.

Nobody sends the tokens below by chance. The engine's network fails while it computes a step with one of them:

    POISON       that position's hidden state is not a number
    ALLOCATE     an allocation fails
    RAISE + N    the Nth step from here on raises an error of its own, once
"""

from collections.abc import Callable
from typing import Any

POISON, ALLOCATE, RAISE = 40_001, 40_002, 40_010
LONGEST_WAIT = 9


class Faults:
    """Hooks around the network's forward pass. They see a step's tokens and its hidden states."""

    def __init__(self) -> None:
        self._steps_left = 0

    def before(self, module: Any, arguments: tuple[Any, ...]) -> None:
        import torch

        tokens = arguments[0].tokens
        wanted = tokens[(tokens > RAISE) & (tokens <= RAISE + LONGEST_WAIT)]
        if len(wanted) and not self._steps_left:
            self._steps_left = int(wanted[0]) - RAISE
        if self._steps_left:
            self._steps_left -= 1
            if not self._steps_left:
                raise RuntimeError("the drill breaks this step")
        if bool((tokens == ALLOCATE).any()):
            torch.empty(2**60)  # the allocator's own error

    def after(self, module: Any, arguments: tuple[Any, ...], hidden: Any) -> None:
        hidden[arguments[0].tokens == POISON] = float("nan")


def create(progress: Callable[[str, float], None], **options: Any) -> Any:
    """The runner of `model.loading.create`, with faults."""
    from benchmarks.engine import by_layer
    from model import loading
    from model.network.transformer import Transformer

    original, faults = Transformer.__init__, Faults()

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.register_forward_pre_hook(faults.before)
        self.register_forward_hook(faults.after)

    Transformer.__init__ = init  # type: ignore[method-assign]
    runner = loading.create(progress, **options)
    runner.executor = by_layer(runner)  # a step in one call passes by the hooks
    return runner


def main() -> None:
    """`noria serve` with engines that load `create` above."""
    import sys

    from service import cli
    from service.engine.supervision.process import EngineProcess

    original = EngineProcess.__init__

    def init(self: EngineProcess, runner: str, *arguments: Any) -> None:
        original(self, "tests.drill.faulty:create", *arguments)

    engine: Any = EngineProcess
    engine.__init__ = init
    sys.argv[1:1] = ["serve"]
    cli.main()


if __name__ == "__main__":
    main()
