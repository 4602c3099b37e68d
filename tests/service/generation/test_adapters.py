"""The state of an adapter's files."""

import os
from pathlib import Path

from service.generation.adapters import files_state


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
