"""Formats of strings, against JSON-Schema-Test-Suite's optional tests and against Python."""

import json
from datetime import MAXYEAR, date
from pathlib import Path
from typing import Any

import pytest

from model.errors import ParameterError
from service.errors.errors import InvalidRequest
from service.structured.json_schema import FORMATS
from tests.service.structured.accepts import accepts, accepts_any, matcher_of, takes

SUITE = json.loads(Path(__file__).with_name("format_suite.json").read_text())["tests"]
TEXT = {"type": "string"}
ALLOWED = {
    "hostname": {  # the A-labels of RFC 5891 need tables of Unicode
        *("xn--X", "xn--07jt112bpxg.xn--9t4b11yi5a", "xn--hello-txk", "xn--hello-zed", "xn--hello-6bf", "xn--chb89f"),
        *("xn--07jceefgh4c", "xn--al-0ea", "xn--l-fda", "xn--la-0ea", "xn--l-gda", "xn--S-jib3p", "xn--wva3j"),
        *("xn--A-2hc5h", "xn--5db1e", "xn--A-2hc8h", "xn--5db3e", "xn--defabc-k64e", "xn--vek", "xn--ngb6iyr"),
        *("xn--11b2er09f", "xn--02b508i", "XN--aa---o47jg78q"),
    },
}
"""Wrong texts that a grammar allows. docs/structured-output.md says so."""
REFUSED = {
    "date-time": {"1998-12-31T23:59:60Z", "1998-12-31T15:59:60.123-08:00"},  # Python and pydantic refuse second 60
    "time": {
        *("23:59:60Z", "23:59:60+00:00", "01:29:60+01:30", "23:29:60+23:30", "15:59:60-08:00", "00:29:60-23:30"),
    },
    "email": {
        *('"joe bloggs"@example.com', '"joe..bloggs"@example.com', '"joe@bloggs"@example.com'),
        "joe.bloggs@[IPv6:::1]",
    },
    "ipv6": {
        *("1::d6:192.168.0.1", "1:2::192.168.0.1", "::ffff:192.168.0.1"),
        "1000:1000:1000:1000:1000:1000:255.255.255.255",
    },
    "iri": {
        *("http://[2001:0db8:85a3:0000:0000:8a2e:0370:7334]", "http://[2001:db8::1]", "http://[V1.fe]"),
        "http://ƒøø.ßår/?q=\U000f0000",
    },
    "json-pointer": {"/foo\x00bar\n\tbaz"},
}
"""Right texts that a grammar does not allow."""


@pytest.mark.parametrize("name", FORMATS)
def test_the_suite_agrees_but_for_what_is_listed(name: str) -> None:
    matcher = matcher_of({**TEXT, "format": name})
    taken = {text for text, _, _ in SUITE[name] if accepts_any(matcher, '"', text, '"')}
    valid = {text for text, is_valid, _ in SUITE[name] if is_valid}
    assert taken - valid == ALLOWED.get(name, set())
    assert valid - taken == REFUSED.get(name, set())


def is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(("name", "after"), [("date", ""), ("date-time", "T12:00:59Z")])
def test_every_last_day_of_february_is_pythons(name: str, after: str) -> None:
    matcher = matcher_of({**TEXT, "format": name})
    for year in range(MAXYEAR + 1):
        for day in ("02-28", "02-29") if year % 50 else ("02-28", "02-29", "02-30", "04-31", "12-31", "13-01", "01-00"):
            assert accepts(matcher, f'"{year:04}-{day}{after}"') == is_date(f"{year:04}-{day}"), (year, day)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"format": "date"}, ["2024-02-29", None, 1], ["2023-02-29"]),
        ({**TEXT, "format": "date", "pattern": "^2"}, ["2024-02-29"], ["1996-02-29", "2023-02-29"]),
        ({**TEXT, "format": "date", "allOf": [{"pattern": "^2"}]}, ["2024-02-29"], ["1996-02-29", "2023-02-29"]),
        ({"type": ["string", "null"], "format": "date-time"}, [None, "2024-02-29T00:00:00Z"], ["2024-02-29T00:00:60Z"]),
        ({**TEXT, "format": "time"}, ["23:59:59.25+23:59"], ["23:59:60Z", "23:59:60+00:00", "23:59:59." + "0" * 33]),
        ({**TEXT, "format": "hostname"}, ["a." * 126 + "a"], ["a." * 126 + "aa", "a." * 127]),
        ({**TEXT, "format": "hostname", "maxLength": 3}, ["a.b"], ["a.bc"]),
    ],
)
def test_what_a_format_says_joins_the_other_keywords(schema: Any, good: Any, bad: Any) -> None:
    within = {"type": "object", "properties": {"a": schema}}
    for value in good:
        assert takes(within, {"a": value})
    for value in bad:
        assert not takes(within, {"a": value})
    assert not takes(within, {"a": good[0], "b": 1})


@pytest.mark.parametrize("others", [None, 3, "x", {}])
def test_a_fault_beside_a_format_is_the_clients(others: Any) -> None:
    with pytest.raises((InvalidRequest, ParameterError)):
        matcher_of({"format": "date", "allOf": others})
