"""`tekken.json` of each version, written from the vocabulary that mistral-common ships."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.model.tokenizers.vocabularies import DATA

VERSIONS = ("v3", "v7", "v11", "v13", "v15")
SMALL = 1256
"""Tokens of a small vocabulary, besides special ones: 256 bytes and 1,000 merges."""
N_SPECIAL = 1000

_V3 = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    "[SUFFIX]",
)
_V7 = (*_V3, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]")
_V11 = (*_V7, *(f"<SPECIAL_{rank}>" for rank in range(20, 32)), "[ARGS]", "[CALL_ID]")
_V13 = (*_V11, "[THINK]", "[/THINK]")
_V15 = (*_V13, "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]")
SPECIAL = {"v3": _V3, "v7": _V7, "v11": _V11, "v13": _V13, "v15": _V15}
"""The special tokens by rank. [ARGS] to [/MODEL_SETTINGS] have those of published files: 32 to 37."""

REASONING = {"type": "enum", "values": ["none", "high"], "accepts_none": True, "default": "none"}
"""The reasoning efforts that a v15 file allows."""
SCHEMAS = {"type": "json_schema", "accepts_none": False, "default": None}
"""The schemas of answers that a v15 file takes."""


@cache
def _shipped() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / "tekken_240911.json").read_text())
    return content


def tekken_content(
    version: str,
    *,
    size: int | None = SMALL,
    special: Sequence[str | dict[str, Any]] | None = None,
    n_special: int = N_SPECIAL,
    reasoning: dict[str, Any] | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """The content of a `tekken.json`.

    `size` is the number of tokens besides special ones (None: all 130,072). `special` lists names by rank, or whole
    entries; None are those of the version. v15 has the settings `reasoning`, by default `REASONING`. `parts` replace
    the content's others.
    """
    shipped = _shipped()
    listed = SPECIAL[version] if special is None else special
    entries = [
        {"rank": rank, "token_str": entry, "is_control": True} if isinstance(entry, str) else entry
        for rank, entry in enumerate(listed)
    ]
    size = 131072 - N_SPECIAL if size is None else size
    config = {
        **shipped["config"],
        "version": version,
        "num_vocab_tokens": size,
        "default_vocab_size": size + n_special,
        "default_num_special_tokens": n_special,
    }
    settings = {"model_settings_builder": {"reasoning_effort": reasoning or REASONING}} if version == "v15" else {}
    return {"config": config, "vocab": shipped["vocab"][:size], "special_tokens": entries, **settings, **parts}


def write_tekken(directory: Path, version: str, **options: Any) -> Path:
    """Write `tekken.json` into a directory; the options are those of `tekken_content`."""
    path = directory / "tekken.json"
    path.write_text(json.dumps(tekken_content(version, **options)))
    return path
