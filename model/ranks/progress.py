"""How far loading is: as far as the last of the ranks."""

from model.checkpoint.files import Progress

WEIGHTS = "loading weights"


class LeastProgress:
    """Reports rank 0's stages, and of the weights the least fraction of all ranks."""

    def __init__(self, report: Progress, n_ranks: int) -> None:
        self._report = report
        self._done = [0.0] * n_ranks

    def note(self, rank: int, stage: str, fraction: float) -> None:
        """Any thread may call this."""
        if stage == WEIGHTS:
            self._done[rank] = fraction
            self._report(stage, min(self._done))
        elif rank == 0:
            self._report(stage, fraction)
