"""Why a grammar cannot be enforced, in our words: llguidance's messages speak of its own parts and options."""

import json
import re
from collections.abc import Callable

TOO_MANY = (
    "it allows too many alternatives at one place (an object may have at least 500 optional properties, more if they "
    "are simple): make properties required, or split it"
)
QUOTED = re.compile(r"(?<!\w)'([^']*)'(?!\w)")
"""What the library quotes; an apostrophe is none."""
Words = str | Callable[[re.Match[str]], str]
RULES: tuple[tuple[re.Pattern[str], Words], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"^Unimplemented keys: (\[.*\])", lambda found: _keywords(found[1])),
        (r"^Unsatisfiable schema: anyOf is empty", "no value can satisfy it: a list of alternatives is empty"),
        (r"^Unsatisfiable schema: incompatible types", "no value can satisfy it: its parts ask for different types"),
        (
            r"^Unsatisfiable schema: range .* multiple of (.*)",
            r"no value can satisfy it: no multiple of \1 is in range",
        ),
        (r"^Unsatisfiable schema: Constant (.*) doesn't match", r"no value can satisfy it: \1 does not match"),
        (r"^Unsatisfiable schema: (.*)", lambda found: f"no value can satisfy it: {found[1]}"),
        (r"^oneOf constraints are not supported", "the schemas of oneOf overlap, or cannot be told apart: use anyOf"),
        (r"^min/maxProperties only", "minProperties and maxProperties need all of properties to be required"),
        (
            r"^patternProperty regexes /(.*)/ and /(.*)/ are not disjoint",
            lambda found: f"two patterns of patternProperties may match the same name: {found[1]} and {found[2]}",
        ),
        (r"^Resource '(.*)' is not present", lambda found: f"$ref to another document, {found[1]}, is not followed"),
        (r"^Pointer '(.*)' does not exist", r"$ref points to #\1, which does not exist"),
        (r"^Invalid URI reference '(.*)':", lambda found: f"{json.dumps(found[1])} is no valid $ref"),
        (r"NoExtensionBias", "no answer can satisfy it: it refers to itself without end"),
        (r"^Failed to generate regex for (?:integer|float) range", "its minimum or maximum is too large"),
        (r"^Value for '(\w+)' has too many digits", r"\1 has too many digits"),
        (r"^invalid multiple of", "multipleOf must be greater than 0"),
        (r"^schema must be an object or boolean", "a schema must be an object, true or false"),
        (r"^Expected f64 for '(\w+)', got (.*)", r"\1 must be a number, got \2"),
        (r"^Expected (\w+) for '(\w+)' item, got (.*)", r"each item of \2 must be of type \1, got \3"),
        (r"^Expected (\w+) for '(\w+)', got (.*)", r"\2 must be of type \1, got \3"),
        (r"^Invalid type: (.*)", lambda found: f"{json.dumps(found[1])} is no type of JSON Schema"),
        (r"^Expected positive integer for '(\w+)', got (.*)", r"\1 must be a whole number of at least 0, got \2"),
        (r"regex parse error: .*? error: (.*?)(?: \d+ \| .*)?$", r"the regex is not supported: \1"),
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
