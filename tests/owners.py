"""Files of another user, for tests that run as root and for those that do not."""

import os
from pathlib import Path

import pytest

OTHER = 54321


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file belong to another user: root gives it away; anybody else takes the part of that user."""
    if os.geteuid() == 0:
        os.chown(path, OTHER, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
