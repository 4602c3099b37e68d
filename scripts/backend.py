"""Builds wheels (PEP 517, see pyproject.toml): setuptools' backend, after the kernels are compiled in their place."""

import sys
import sysconfig
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

from model.kernels.cpu import build


def build_wheel(
    directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """For this platform. Without a compiler the wheel has no kernels, and says so: PyTorch serves there."""
    try:
        build.build(build.library())
    except (RuntimeError, OSError) as error:
        print(f"noria: the CPU kernels are not compiled: {error}", file=sys.stderr)
    settings = dict(config_settings or {})
    options = settings.get("--build-option", [])
    settings["--build-option"] = [
        "--plat-name",
        sysconfig.get_platform(),
        *([options] if isinstance(options, str) else options),
    ]
    return build_meta.build_wheel(directory, settings, metadata_directory)
