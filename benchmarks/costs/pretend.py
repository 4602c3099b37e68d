"""A server whose steps take exactly as long as a file of costs says: `noria serve` with a runner that sleeps.

What the simulator then predicts wrongly is its own error, not that of the costs or of a busy machine. `NORIA_PRETEND`
names the file. Each answer repeats the last token of its prompt.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from model import loading
from model.batch import SliceOutput, StepBatch, StepOutput
from model.step.runner import ModelRunner
from service.commands.simulate.costs import Costs, read
from service.commands.simulate.replica import features

FILE = "NORIA_PRETEND"


def create(progress: Callable[[str, float], None], **options: Any) -> ModelRunner:
    """The runner of the model, without its computations."""
    runner = loading.create(progress, **options)
    runner.launch = partial(_launch, read(Path(os.environ[FILE])))  # type: ignore[method-assign]
    return runner


def _launch(costs: Costs, batch: StepBatch) -> Callable[[], StepOutput]:
    end = time.monotonic() + costs.seconds(*features(batch, costs.engine.pools))

    def wait() -> StepOutput:
        time.sleep(max(0.0, end - time.monotonic()))
        tokens = ((item.tokens[item.n_prompt - 1],) * len(item.samples) for item in batch.slices)
        return StepOutput(tuple(map(SliceOutput, tokens)))

    return wait


if __name__ == "__main__":
    from service.cli import main
    from service.engine.supervision import process

    process.NETWORK = "benchmarks.costs.pretend"
    main()
