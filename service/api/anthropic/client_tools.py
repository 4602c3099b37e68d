"""Tools of Anthropic that clients run. Their schemas are published, and requests leave them out."""

from types import MappingProxyType
from typing import Literal

from service.schema.fields import Json
from service.schema.tools import Function

ClientType = Literal[
    "bash_20241022", "bash_20250124", "memory_20250818", "text_editor_20250429", "text_editor_20250728"
]


def _text(description: str) -> Json:
    return {"type": "string", "description": description}


def _function(name: str, description: str, required: list[str], **properties: Json) -> Function:
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Function.model_construct(name=name, description=description, parameters=parameters, strict=None)


def _command(*names: str) -> Json:
    return {"type": "string", "enum": ["view", "create", "str_replace", "insert", *names], "description": "What to do."}


EDITS = MappingProxyType(
    {
        "path": _text("The path of the file or directory."),
        "file_text": _text("create: the content of the file."),
        "old_str": _text("str_replace: the text to replace, exactly as it is in the file."),
        "new_str": _text("str_replace: the text that replaces it."),
        "insert_line": {"type": "integer", "description": "insert: the line after which the text goes; 0 is the top."},
        "insert_text": _text("insert: the text."),
        "view_range": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "view: the first and the last line, counted from 1; -1 is the end of the file.",
        },
    }
)
BASH = _function(
    "bash",
    "Runs a command in a bash session that lasts from call to call.",
    [],
    command=_text("The command. Required unless restart is true."),
    restart={"type": "boolean", "description": "true: begin a new session."},
)
EDITOR = _function(
    "str_replace_based_edit_tool",
    "Views, creates and edits text files, and lists directories.",
    ["command", "path"],
    command=_command(),
    **EDITS,
)
MEMORY = _function(
    "memory",
    "Reads and writes files under /memories, which last from one conversation to the next: view them before a task.",
    ["command"],
    command=_command("delete", "rename"),
    **EDITS,
    old_path=_text("rename: the present path."),
    new_path=_text("rename: the new path."),
)
CLIENT_TOOLS = MappingProxyType[ClientType, Function](
    {
        "bash_20241022": BASH,
        "bash_20250124": BASH,
        "memory_20250818": MEMORY,
        "text_editor_20250429": EDITOR,
        "text_editor_20250728": EDITOR,
    }
)
