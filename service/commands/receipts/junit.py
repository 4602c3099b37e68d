"""A report of `noria check` in JUnit's XML, which CI systems read."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement

from model.errors import OptionError
from service.commands.receipts.golden import Line

SUITE = "noria check"


def write(path: Path, results: Sequence[tuple[Line, str, bool, float]]) -> None:
    """Write the result of each line: what is wrong (empty: nothing), whether it had no answer, and its seconds.

    Raises OptionError.
    """
    errors = sum(failed for _, _, failed, _ in results)
    counts = {
        "tests": str(len(results)),
        "failures": str(sum(bool(problem) for _, problem, _, _ in results) - errors),
        "errors": str(errors),
        "time": f"{sum(seconds for *_, seconds in results):.3f}",
    }
    root = Element("testsuites", counts)
    suite = SubElement(root, "testsuite", {"name": SUITE, **counts})
    for line, problem, failed, seconds in results:
        about = {"name": _allowed(line.custom_id), "classname": line.url, "time": f"{seconds:.3f}"}
        case = SubElement(suite, "testcase", about)
        if problem:
            SubElement(case, "error" if failed else "failure", {"message": _allowed(problem)})
    try:
        ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise OptionError(f"--junit {path} cannot be written: {error.strerror}") from error


def _allowed(text: str) -> str:
    """The text without characters that XML does not have."""
    return "".join(char if char in "\t\n" or char.isprintable() else "?" for char in text)
