"""Fields by which a request says what its answer must look like."""

from typing import Any, Literal

from pydantic import Field

from service.schema.fields import MAX_ITEMS, Body, Items, only, optional

Json = dict[str, Any]


class JsonSchema(Body):
    """OpenAI's wrapper."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$", description="A comment.")
    description: str | None = optional("A comment.")
    schema_: Json | None = optional("Required with type json_schema.", alias="schema")
    strict: bool | None = optional("The schema is enforced either way.")


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"] = Field(description="text, json_object or json_schema.")
    json_schema: JsonSchema | None = optional("With type json_schema.")


class StructuredOutputs(Body):
    """vLLM's: exactly one of them."""

    harmless = only(
        disable_fallback=(False,),
        disable_any_whitespace=(False,),
        disable_additional_properties=(False,),
        whitespace_pattern=(),
        structural_tag=(),
    )
    json_: Json | str | None = optional("A JSON schema, or one as a string.", alias="json")
    json_object: bool | None = optional("Any JSON object.")
    regex: str | None = optional("What the whole answer must match.")
    choice: Items[str] | None = optional("Texts, one of which is the answer.", max_length=MAX_ITEMS)
    grammar: str | None = optional("Lark, as llguidance takes it.")


class StructuredOutputBody(Body):
    """A body that may ask for the form of its answer, in one of these ways."""

    response_format: ResponseFormat | None = optional("`text`, `json_object`, or `json_schema` with its schema.")
    structured_outputs: StructuredOutputs | None = optional(
        "One of `json`, `json_object`, `regex`, `choice`, `grammar`."
    )
    guided_json: Json | str | None = optional("A JSON schema, or one as a string.")
    guided_regex: str | None = optional("What the whole answer must match.")
    guided_choice: Items[str] | None = optional("Texts, one of which is the answer.", max_length=MAX_ITEMS)
    guided_grammar: str | None = optional("Lark, as llguidance takes it.")
