"""Why a grammar cannot be enforced, in our words: llguidance's messages speak of its own parts and options."""

import json
import re
from collections.abc import Callable

TOO_MANY = (
    "it allows too many alternatives at one place (an object may have about 900 optional properties): make properties "
    "required, or split it"
)
QUOTED = re.compile(r"(?<!\w)'([^']*)'(?!\w)")
"""What the library quotes; an apostrophe is none."""
Words = str | Callable[[re.Match[str]], str]
RULES: tuple[tuple[re.Pattern[str], Words], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"^Unimplemented keys: (\[.*\])", lambda found: _keywords(found[1])),
        (r"^Unsatisfiable schema: anyOf is empty", "no value can satisfy it: a list of alternatives is empty"),
        (r"^Unsatisfiable schema: (.*)", lambda found: f"no value can satisfy it: {found[1]}"),
        (r"^oneOf constraints are not supported", "the schemas of oneOf overlap, or cannot be told apart: use anyOf"),
        (r"^min/maxProperties only", "minProperties and maxProperties need all of properties to be required"),
        (
            r"^patternProperty regexes /(.*)/ and /(.*)/ are not disjoint",
            lambda found: f"two patterns of patternProperties may match the same name: {found[1]} and {found[2]}",
        ),
        (r"^Resource '(.*)' is not present", lambda found: f"$ref to another document, {found[1]}, is not followed"),
        (r"^Invalid type: (.*)", lambda found: f"{json.dumps(found[1])} is no type of JSON Schema"),
        (r"^Expected positive integer for '(\w+)', got (.*)", r"\1 must be a whole number of at least 0, got \2"),
        (r"^regex parse error: .* error: (.*)", r"the regex is not supported: \1"),
        (r"^lookarounds not supported yet.* in regex /(.*)/", r"look-around and \\b are not supported in the regex \1"),
        (
            r"(Current row has \d+ items|Too many items|[Tt]oo many (lexer )?states|[Gg]rammar (is )?too (large|big))",
            TOO_MANY,
        ),
    )
)


def in_our_words(problem: str) -> str:
    """The problem of a grammar as a client is told; errors in the syntax of a Lark grammar stay as they are."""
    for pattern, words in RULES:
        if (found := pattern.search(problem)) is not None:
            return words(found) if callable(words) else found.expand(words)
    return QUOTED.sub(r'"\1"', problem)


def _keywords(listed: str) -> str:
    names = json.loads(listed)
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not supported"
