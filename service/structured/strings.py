"""Rules for strings in JSON schemas: patterns and formats, written as llguidance reads them right."""

import re
from collections.abc import Mapping

from service.schema.fields import Json

TOKEN = re.compile(
    r"""
    (?P<unit> \x1F | \\(?: x1F | u001F | U0{6}1F | [xu]\{0*1F\} ) )
  | (?P<flag> \(\? [a-z-]{0,9} x )
  | (?P<property> \\p (?: \{[^}]{0,64}\} | . ) )
  | \\.
  | \[ (?P<negated> \^? ) (?P<body> \]? (?: \\.? | [^]\\] )* ) (?P<end> \]? )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
"""A part of a pattern that has to be read as a whole. A class without an end goes up to the end of the pattern."""
ITEM = re.compile(
    r"(?P<first>@)(?:-(?P<last>@))?".replace("@", r"\\(?:[xu]\{[^}]{0,9}\}|x..|u....|.)|[^\\]"), re.DOTALL
)
"""A character or a range in a class."""
SETS = "[]&~-"
"""Characters of a class that llguidance would read as operations on sets."""

FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
DAY = f"(?:0*[1-9][0-9]*-(?:..-(?:[013].|2[0-8])|(?:0[13-9]|1.)-29)|(?:..{FOURTH}|{FOURTH}00)-02-29)"
SECOND = r":[0-5].(?:\.[0-9]{1,32})?(?:[zZ]|[+-]..:..)"
OCTET = "%[0-9A-Fa-f]{2}"


def _reference(beyond: str, *, scheme: bool) -> str:
    """Return the pattern of RFC 3986, or of RFC 3987 with characters `beyond` ASCII: with a scheme, or without too."""
    word = rf"(?:[A-Za-z0-9._~!$&'()*+,;={beyond}-]|{OCTET})"
    path = f"(?:{word}|[:@/])*"
    rooted = rf"//(?:(?:{word}|:)*@)?{word}*(?::[0-9]*)?(?:/{path})?|/(?:(?:{word}|[:@]){path})?"
    after = rf"(?:\?(?:{word}|[:@/?])*)?(?:#(?:{word}|[:@/?])*)?"
    absolute = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{rooted}|(?:(?:{word}|[:@]){path})?)"
    relative = f"{rooted}|(?:(?:{word}|@)+(?:/{path})?)?"
    return f"^(?:{absolute}){after}$" if scheme else f"^(?:{absolute}|{relative}){after}$"


def _expression() -> str:
    """Return a pattern of regular expressions: those with groups in groups of groups, and `{n,m}`, are left out."""
    escape = r"\\[dDwWsStnrfv/.*+?()|\[\]{}^$\\-]"
    several = r"(?:[*+?]\??|\{[0-9]{1,3},?\})?"
    klass = rf"\[\^?(?:0-9|a-z|A-Z|[^\\\[\]^\x00-\x1f-]|{escape})+\]"
    part = rf"(?:[^\\()\[\]{{}}*+?|^$\x00-\x1f]|{escape}|{klass}){several}|[\^$]|\\[bB]"
    for _ in range(2):
        part = rf"(?:{part}|\((?:\?:)?(?:{part}|\|)*\){several})"
    return rf"^(?:{part}|\|)*$"


BEYOND = r"\x{A0}-\x{D7FF}\x{F900}-\x{FDCF}\x{FDF0}-\x{FFEF}\x{10000}-\x{1FFFD}\x{20000}-\x{2FFFD}"
VARIABLE = rf"(?:[A-Za-z0-9_]|{OCTET})+(?:\.[A-Za-z0-9_]+)*(?:\*|:[1-9][0-9]{{0,3}})?"
PATTERNS: Mapping[str, str] = {
    "uri-reference": _reference("", scheme=False),
    "iri": _reference(BEYOND, scheme=True),
    "iri-reference": _reference(BEYOND, scheme=False),
    "uri-template": rf"^(?:[^\x00-\x20\x22%<>\\^`{{|}}\x7f]|{OCTET}|\{{[+#./;?&]?{VARIABLE}(?:,{VARIABLE})*\}})*$",
    "json-pointer": "^(?:/(?:[^~/\\x00-\\x1f]|~[01])*)*$",
    "relative-json-pointer": "^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/\\x00-\\x1f]|~[01])*)*)$",
    "regex": _expression(),
}
"""Formats that llguidance does not know."""
BESIDE: Mapping[object, Json] = {
    "date": {"pattern": f"^{DAY}$"},
    "time": {"pattern": f"{SECOND}$"},
    "date-time": {"pattern": f"^{DAY}[tT].*{SECOND}$"},
    "hostname": {"maxLength": 253},
}
"""Formats that llguidance reads too widely -> the rules that must hold too. Python has no year 0 and no second 60."""


def formatted(schema: Json) -> Json:
    """Add the rules of a format that llguidance does not enforce."""
    name, others = str(schema.get("format")), schema.get("allOf", [])
    beside = {"pattern": PATTERNS[name]} if name in PATTERNS else BESIDE.get(name)
    if not beside or not isinstance(others, list):
        return schema
    changed = {key: value for key, value in schema.items() if key != "format" or name not in PATTERNS}
    return changed | {"allOf": [*others, beside]}


def patterned(schema: Json) -> Json:
    """Return the schema with patterns that llguidance reads right. Raises ValueError if there are none."""
    changed = dict(schema)
    if isinstance(pattern := schema.get("pattern"), str):
        changed["pattern"] = narrowed(pattern)
    if isinstance(names := schema.get("patternProperties"), dict):
        changed["patternProperties"] = {narrowed(name): part for name, part in names.items()}
        if len(changed["patternProperties"]) < len(names):
            raise ValueError("patternProperties has one pattern twice")
    return changed


def narrowed(pattern: str) -> str:
    """Return the pattern with classes that do not match U+001F. Raises ValueError where it is meant outside of a class.

    llguidance writes a class with all control characters as all escapes of JSON, with those of the quote and the
    backslash. It joins the classes of an alternation into one. Where each class leaves out U+001F, no union has all
    control characters.
    """
    return TOKEN.sub(_narrowed, pattern)


def _narrowed(token: re.Match[str]) -> str:
    if token["unit"] or token["flag"]:
        raise ValueError(f"pattern has {'the flag x' if token['flag'] else 'U+001F'}, which is not supported")
    if token["property"]:
        return rf"[{token[0]}&&[^\x1f]]"
    if not token["end"]:
        return token[0]
    return rf"[[{token['negated']}{ITEM.sub(_item, token['body'])}]&&[^\x1f]]"


def _item(item: re.Match[str]) -> str:
    first, last = (part and ("\\" + part if part in SETS else part) for part in (item["first"], item["last"]))
    return first if last is None else f"{first}-{last}"
