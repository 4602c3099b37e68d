"""A report of `noria verify` in JUnit's XML, which CI systems read."""

import os
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement

from model.errors import OptionError
from service.commands.receipts.cases import Case

SUITE = "noria verify"


def check_place(path: Path) -> None:
    """Raise OptionError where no report can be written, before anything is computed."""
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise OptionError(
            f"{path} cannot be written: it is a directory, or its directory is not there or may not be written"
        )


def write(path: Path, cases: Sequence[Case]) -> None:
    """Write a failure for each answer that differs, and an error for one that was not checked. Raises OptionError."""
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(bool(one.found) and not one.error for one in cases)),
        "errors": str(sum(bool(one.error) for one in cases)),
        "time": f"{sum(one.seconds for one in cases):.3f}",
    }
    root = Element("testsuites", counts)
    suite = SubElement(root, "testsuite", {"name": SUITE, **counts})
    for one in cases:
        endpoint = one.receipts[0]["endpoint"] if one.receipts else ""
        about = {"name": _allowed(one.name or one.place), "classname": endpoint, "time": f"{one.seconds:.3f}"}
        case = SubElement(suite, "testcase", about)
        if one.problem:
            SubElement(case, "error" if one.error else "failure", {"message": _allowed(one.problem)})
    try:
        ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise OptionError(f"--junit {path} cannot be written: {error.strerror}") from error


def _allowed(text: str) -> str:
    """Return the text without characters that XML does not have."""
    return "".join(char if char in "\t\n" or char.isprintable() else "?" for char in text)
