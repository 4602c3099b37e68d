"""What the tests of Python clients ask for, and of which server."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

MODEL = "smollm2-135m-instruct"
SERVER = os.environ["NORIA_URL"]
BASE = f"{SERVER}/v1"
HEARING, HEARING_BASE = "hearing", f"{os.environ['NORIA_HEARING_URL']}/v1"
"""The model that hears, and its server. Its weights are random: its words mean nothing."""
RECORDING = Path(os.environ["NORIA_RECORDING"])
COUNT = "Count from one to ten in words."
QUESTION = "What is the weather in Paris?"
STORY = "Write a very long story."
Aborted = Callable[[], AbstractContextManager[None]]
"""The fixture `is_aborted`."""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Weather(BaseModel):
    """The weather in a city."""

    city: str = Field(max_length=20)
    days: int = Field(ge=1, le=9)
