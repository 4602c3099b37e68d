"""Forms that are hard to compile or to follow."""

import time
from functools import partial
from typing import Any

from tests.drill.canary import Question, ask
from tests.drill.forms import form, serves_new_form
from tests.drill.row import Promise, Row, check
from tests.drill.stage import Stage

FORM_SECONDS = 25.0


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def doubling(n: int) -> dict[str, Any]:
    """Each definition holds the one before it twice."""
    twice = {f"d{k}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{k - 1}"}] * 2} for k in range(1, n)}
    return {"$defs": {"d0": {"type": "string"}} | twice, "$ref": f"#/$defs/d{n - 1}"}


def pattern(text: str) -> dict[str, Any]:
    return {"type": "string", "pattern": text}


FORMS: dict[str, Question] = {
    "definitions that double 40 times": form(doubling(40)),
    "200 objects in each other": form(nested(200)),
    "20,000 properties": form({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}}),
    "an enum of 20,000 words": form({"enum": [f"word {n} {n * n}" for n in range(20_000)]}),
    "a reference to itself": form({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    "a string of up to a million characters": form({"type": "string", "maxLength": 10**6, "minLength": 10**6}),
    "an array of 10**9 items": form({"type": "array", "items": {"type": "integer"}, "minItems": 10**9}),
    "the pattern (a|aa)+b": form(pattern("^((a|aa)+)+b$")),
    "the pattern with 14 optional parts of 200": form(pattern("^" + "(a{0,200})" * 14 + "$")),
    "the pattern (.*a){40}": form(pattern("^(.*a){40}$")),
    "the pattern [a-z]{1,100000}": form(pattern("^([a-z]{1,1000}){1,100000}$")),
    "200 alternatives that begin alike": form({"anyOf": [pattern(f"^(ab|a|b)*{n}$") for n in range(200)]}),
}


def send(name: str, stage: Stage) -> str:
    """Ask for a hostile form, then for a good one."""
    begun = time.monotonic()
    answer = ask(stage.target.url, FORMS[name])
    check(answer.status in (200, 400), f"answered with {answer.status or 'no answer'} {answer.text[:120]}")
    seconds = time.monotonic() - begun
    check(seconds <= FORM_SECONDS, f"it took {seconds:.1f} s")
    return f"answered with {answer.status} in {seconds:.1f} s; {serves_new_form(stage.target, FORM_SECONDS)}"


OWN = f"200 or 400 within {FORM_SECONDS:g} s, as for a good new form"
ROWS: tuple[Row, ...] = tuple(
    Row(f"form: {name}", Promise(OWN, answers=FORM_SECONDS), partial(send, name)) for name in FORMS
)
