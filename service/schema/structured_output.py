"""Request fields for structured output."""

from types import MappingProxyType
from typing import Literal

from pydantic import Field

from service.schema.fields import MAX_ITEMS, Body, Items, Json, only, optional, synonym


class JsonSchema(Body):
    """The wrapper that OpenAI puts around a schema."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$", description="The name of the schema. It has no effect.")
    description: str | None = optional("A description of the schema. It has no effect.")
    schema_: Json | None = optional("The JSON schema. Required with type json_schema.", alias="schema")
    strict: bool | None = optional("It has no effect: the schema is always enforced.")


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"] = Field(description="text, json_object or json_schema.")
    json_schema: JsonSchema | None = optional("The schema. Required with type json_schema.")
    schema_: Json | None = optional("The schema, as in llama.cpp. Only with type json_object.", alias="schema")


class StructuredOutputs(Body):
    """vLLM's field for structured output. Exactly one of its fields must be given."""

    harmless = only(
        disable_fallback=(False,),
        disable_any_whitespace=(False,),
        disable_additional_properties=(False,),
        whitespace_pattern=(),
        structural_tag=(),
    )
    json_: Json | str | None = optional("A JSON schema of the answer, as an object or as a string.", alias="json")
    json_object: bool | None = optional("true: the answer is any JSON object.")
    regex: str | None = optional("A regular expression that the whole answer must match.")
    choice: Items[str] | None = optional("A list of texts. The answer is one of them.", max_length=MAX_ITEMS)
    grammar: str | None = optional("A grammar of the answer, in llguidance's variant of Lark.")


class StructuredOutputBody(Body):
    """The fields for structured output. A request may use one of them."""

    synonyms = MappingProxyType({"json_schema": "guided_json"})
    response_format: ResponseFormat | None = optional("`text`, `json_object`, or `json_schema` with a schema.")
    structured_outputs: StructuredOutputs | None = optional(
        "The format of the answer: one of `json`, `json_object`, `regex`, `choice`, `grammar`."
    )
    guided_json: Json | str | None = optional("A JSON schema of the answer, as an object or as a string.")
    json_schema: Json | str | None = synonym("guided_json", "llama.cpp's")
    guided_regex: str | None = optional("A regular expression that the whole answer must match.")
    guided_choice: Items[str] | None = optional("A list of texts. The answer is one of them.", max_length=MAX_ITEMS)
    guided_grammar: str | None = optional("A grammar of the answer, in llguidance's variant of Lark.")
