"""Installs `noop` in every process of a server that loads a model. Python imports this module at its start."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

LOADS_A_MODEL = "model.warming"


class BeforeLoading(MetaPathFinder):
    """Installs `noop` when the last module that a load needs is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == LOADS_A_MODEL:
            sys.meta_path.remove(self)
            from tests.gpu.simulated import noop

            noop.install()


sys.meta_path.insert(0, BeforeLoading())
