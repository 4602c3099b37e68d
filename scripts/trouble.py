"""Write the second part of docs/trouble.md from service/recording/rules.txt: `python scripts/trouble.py`."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from service.recording.explain import LINES, Rule  # noqa: E402

PAGE = ROOT / "docs/trouble.md"
BEGIN = "## What `noria explain` says\n"
ABOUT = """
`noria explain [URL | FILE]` prints the first row below that holds: what is wrong, the figures that say so, and the
remedy. `/health` has the sentence as `trouble`, and the wheel on the page shows it. Rows are in the order in which they
are tried. An incident is told for a minute. [Three in the morning](operations.md#three-in-the-morning) says how. The
rows are in `service/recording/rules.txt`, and `python scripts/trouble.py` writes this part of the page.
"""


def anchor(title: str) -> str:
    """The name that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def rendered(rule: Rule) -> str:
    """A row as a section: the symptom is its name, then come cause, condition and remedy."""
    sentence = re.sub(r"\{(\w+)[^}]*\}", lambda found: found[1].upper(), rule.sentence)
    where = f"[{rule.section}](operations.md#{anchor(rule.section)})"
    return f"### {rule.name}\n\n{sentence}\n\n**When** `{rule.when}`.\n**Remedy.** {rule.remedy} More: {where}.\n"


def table() -> str:
    """All rows, under the comments of the table as headings in bold."""
    parts = [BEGIN, ABOUT]
    for line in LINES[2:]:
        if line.startswith("# "):
            parts.append(f"\n**{line.removeprefix('# ')}**\n")
        elif line:
            parts.append("\n" + rendered(Rule(*line.split(" | "))))
    return "".join(parts)


def page(text: str) -> str:
    """The page with its second part as the table says it."""
    return text.partition(BEGIN)[0].rstrip("\n") + "\n\n" + table()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
