"""Files that other users of the machine could change. Standard library only."""

import os
import stat
from pathlib import Path


def problem_of(*paths: Path) -> str | None:
    """Return why another user than this one and root may change one of these, and what to do; None if nobody may.

    A directory with the sticky bit passes, because others cannot rename or remove files in it. A missing path passes.
    For a link, both the link and its target must belong to this user or root.
    """
    found = (problem for path in paths if os.path.lexists(path) for problem in _problems(path))
    return next(found, None)


def _problems(path: Path) -> list[str]:
    me, link = os.geteuid(), path.lstat()
    status = path.stat() if path.exists() else link
    owners = [one.st_uid for one in (link, status) if one.st_uid not in (me, 0)]
    problems = [f"user {owner} owns {path}, this is user {me}; chown it, or choose another place" for owner in owners]
    shared = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not shared and not stat.S_ISLNK(status.st_mode):
        mode = f"mode {stat.S_IMODE(status.st_mode):04o} of {path} lets other users write to it"
        problems.append(f"{mode}; chmod go-w it, or choose another place")
    return problems
