"""Looks for known vulnerabilities of the pinned packages: `python scripts/audit.py [PIP_AUDIT]`, for example in check.

Exit code 1 if there is one. Where the index or its advisories do not answer, it says that nothing was audited.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FLAGS = ("--format=json", "--no-deps", "--disable-pip", "--progress-spinner=off", "--timeout=5")
LIMIT_SECONDS = 300


def main() -> int:
    command = sys.argv[1:] or [str(Path(sys.executable).with_name("pip-audit"))]
    try:
        packages = dependencies([*command, *FLAGS, f"--requirement={ROOT / 'constraints.txt'}"])
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"audit: skipped: {error}")
        return 0
    audited = [package for package in packages if "vulns" in package]
    if not audited:
        print(f"audit: skipped: no advisories for any of {len(packages)} packages")
        return 0
    for package in audited:
        for found in package["vulns"]:
            mended = ", ".join(found["fix_versions"]) or "no version"
            print(f"audit: {package['name']} {package['version']} has {found['id']}, mended in {mended}")
    print(f"audit: advisories for {len(audited)} of {len(packages)} packages were read")
    return int(any(package["vulns"] for package in audited))


def dependencies(command: list[str]) -> list[dict[str, Any]]:
    """The packages in the report. Raises ValueError, with the last line of the log, if there is no report."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or ["no report"]
        raise ValueError(f"pip-audit ends with exit code {done.returncode}: {last[0][:200]}") from None
    return found


if __name__ == "__main__":
    sys.exit(main())
