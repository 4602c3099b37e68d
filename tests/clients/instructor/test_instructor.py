"""instructor against a live server: every way in which it requests an object from OpenAI's API."""

from typing import Any, Literal

import instructor
import openai
import pytest
from asking import BASE, MODEL, user
from instructor import Mode
from pydantic import BaseModel, Field

ASK: dict[str, Any] = {
    "model": MODEL,
    "messages": [user("Anna is 31 years old and lives in Rome.")],
    "max_tokens": 120,
    "temperature": 0,
    "max_retries": 0,
}


class Person(BaseModel):
    """The person in the text."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    mood: Literal["good", "bad"]


def client(mode: Mode) -> instructor.Instructor:
    return instructor.from_openai(openai.OpenAI(base_url=BASE, api_key="none", max_retries=0), mode=mode)


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA])
def test_an_object(mode: Mode) -> None:
    person, completion = client(mode).chat.completions.create_with_completion(response_model=Person, **ASK)
    assert isinstance(person, Person)
    assert completion.usage.completion_tokens > 1


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.JSON_SCHEMA])
def test_an_object_grows_while_it_is_streamed(mode: Mode) -> None:
    parts = list(client(mode).chat.completions.create_partial(response_model=Person, **ASK))
    assert len(parts) > 3
    assert Person.model_validate(parts[-1].model_dump())


@pytest.mark.parametrize("mode", [Mode.JSON, Mode.MD_JSON])
def test_modes_that_only_ask_for_json_are_not_refused(mode: Mode) -> None:
    """In these modes only the model decides whether the object is valid."""
    try:
        assert isinstance(client(mode).chat.completions.create(response_model=Person, **ASK), Person)
    except (instructor.core.InstructorRetryException, instructor.core.IncompleteOutputException) as error:
        assert error.last_completion.choices[0].message.content  # noqa: PT017


def test_an_invalid_answer_is_requested_again() -> None:
    """The answer and the error go back as messages. The same answer comes again until no attempt is left."""

    class Never(Person):
        def model_post_init(self, context: Any) -> None:
            raise ValueError("say it better")

    with pytest.raises(instructor.core.InstructorRetryException, match="say it better") as error:
        client(Mode.TOOLS).chat.completions.create(response_model=Never, **ASK | {"max_retries": 1})
    assert error.value.n_attempts == 2
