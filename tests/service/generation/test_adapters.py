"""The state of an adapter's files, and names that are in use."""

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from service.engine.client import EngineClient
from service.errors.errors import AdapterExists
from service.generation.adapters import Adapter, Adapters, files_state
from tests.waiting import PATIENCE


class SlowClient:
    """The client of an engine that reads an adapter when it may."""

    def __init__(self) -> None:
        self.may_read = asyncio.Event()
        self.adapters: Any = None

    async def load_adapter(self, number: int, path: str) -> None:
        await self.may_read.wait()


def test_of_two_loads_of_one_name_at_a_time_the_second_is_refused(tmp_path: Path) -> None:
    async def load_twice() -> None:
        client = SlowClient()
        adapters = Adapters(cast(EngineClient, client), ())
        first = asyncio.create_task(adapters.load("law", tmp_path))
        await asyncio.sleep(0)  # it has begun
        with pytest.raises(AdapterExists):
            await adapters.load("law", tmp_path)
        client.may_read.set()
        assert (await first).name == "law"
        with pytest.raises(AdapterExists):
            await adapters.load("law", tmp_path)

    asyncio.run(asyncio.wait_for(load_twice(), PATIENCE))


def test_the_state_of_files_changes_with_each_of_them(tmp_path: Path) -> None:
    states = [files_state(tmp_path / "nothing"), files_state(tmp_path)]
    file = tmp_path / "adapter_model.safetensors"
    for text in ("a", "bb"):
        file.write_text(text)
        states.append(files_state(tmp_path))
    assert files_state(tmp_path) == states[-1]
    os.utime(file, ns=(1, 1))
    states.append(files_state(tmp_path))
    file.rename(tmp_path / "other")
    states.append(files_state(tmp_path))
    states.append(files_state(tmp_path / "other"))
    assert len(set(states)) == len(states) - 1, "a directory with one file has the state of the file"
    assert states[0] == ""


def test_copies_of_an_adapter_have_one_content(tmp_path: Path) -> None:
    """Replicas have copies, and go on with each other's streams by fingerprints with it."""
    found = []
    for number, text in enumerate(("a", "a", "b")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_text(text)
        os.utime(folder / "adapter_model.safetensors", ns=(number, number))
        found.append(Adapter("law", 1, folder).seen())
    assert found[0].content == found[1].content != found[2].content
    assert found[0].files != found[1].files
