"""A report of `noria check` in JUnit's XML, which CI systems read."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element, ElementTree, SubElement

from model.errors import OptionError
from service.commands.receipts.golden import Line
from service.receipts.compare import Difference

SUITE = "noria check"


class Result(NamedTuple):
    """The check of one line: what differs, or why there was no answer, and the seconds it took."""

    line: Line
    found: list[Difference]
    promised: bool
    error: str
    seconds: float

    @property
    def problem(self) -> str:
        """The first difference of the answer, with its likely cause; empty if it is the same."""
        return self.error or "; ".join(f"{item.field}: {item.message}" for item in self.found)


def write(path: Path, results: Sequence[Result]) -> None:
    """Write the result of each line: a failure for an answer that differs, an error for none. Raises OptionError."""
    counts = {
        "tests": str(len(results)),
        "failures": str(sum(bool(one.found) for one in results)),
        "errors": str(sum(bool(one.error) for one in results)),
        "time": f"{sum(one.seconds for one in results):.3f}",
    }
    root = Element("testsuites", counts)
    suite = SubElement(root, "testsuite", {"name": SUITE, **counts})
    for one in results:
        about = {"name": _allowed(one.line.custom_id), "classname": one.line.url, "time": f"{one.seconds:.3f}"}
        case = SubElement(suite, "testcase", about)
        if one.problem:
            SubElement(case, "error" if one.error else "failure", {"message": _allowed(one.problem)})
    try:
        ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise OptionError(f"--junit {path} cannot be written: {error.strerror}") from error


def _allowed(text: str) -> str:
    """The text without characters that XML does not have."""
    return "".join(char if char in "\t\n" or char.isprintable() else "?" for char in text)
