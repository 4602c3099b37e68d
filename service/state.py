"""What the endpoints share, on `app.state.noria`."""

from dataclasses import dataclass

from service.engine.client import EngineClient
from service.metrics import Metrics
from service.reception import Reception
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class State:
    settings: Settings
    client: EngineClient
    metrics: Metrics
    reception: Reception
