"""Forms of answers that the server has never seen, and what it makes of them."""

import json
import uuid
from typing import Any

from tests.drill.canary import CHAT, TALK, Answer, Question, ask
from tests.drill.row import check
from tests.drill.target import Target


def form(schema: dict[str, Any], **options: Any) -> Question:
    """A chat request with this JSON schema."""
    wanted = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": True}}
    return Question(CHAT, TALK | {"temperature": 0, "max_tokens": 40, "response_format": wanted} | options)


def new_form() -> tuple[Question, str]:
    """A form that no server has seen, and the only text that it allows."""
    word = uuid.uuid4().hex[:8]
    return form({"enum": [word]}), json.dumps(word)


def ask_new_form(target: Target) -> Answer:
    """The answer to a new form. Raises Broken for a wrong answer, and for one that blames the client."""
    question, expected = new_form()
    answer = ask(target.url, question, headers=target.headers)
    check(answer.status != 200 or json.dumps(expected)[1:-1] in answer.text, f"a new form got {answer.text[:80]}")
    check(not 400 <= answer.status < 500, f"a good new form got {answer.status} {answer.text[:160]}")
    return answer


def serves_new_form(target: Target, within: float) -> str:
    """Check that a new form is answered in time."""
    answer = ask_new_form(target)
    check(answer.status == 200, f"a good new form got {answer.status or 'no answer'} {answer.text[:160]}")
    check(answer.seconds <= within, f"a new form took {answer.seconds:.1f} s")
    return f"a new form took {answer.seconds:.1f} s"
