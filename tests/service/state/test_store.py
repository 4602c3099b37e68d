"""The file of --responses-store is for its user alone."""

from pathlib import Path

import pytest

from model.errors import OptionError
from service.settings import Settings
from service.state.store import opened
from tests.owners import give_away


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_a_file_that_others_may_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, how: str
) -> None:
    place = tmp_path / f"responses.db{suffix}"
    place.touch(0o600)
    if how == "owner":
        give_away(place, monkeypatch)
    else:
        place.chmod(0o666)
    words = f"owns {place}, " if how == "owner" else f"mode 0666 of {place} lets other users write to it; chmod go-w it"
    with pytest.raises(OptionError, match=f"--responses-store: .*{words}") as refusal:
        opened(Settings(responses_store=str(tmp_path / "responses.db")))
    assert "\n" not in str(refusal.value)
