"""The client of docs/clients.md that goes on with a stream at any replica, as the page has it."""

import re
from functools import cache
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parents[2] / "docs/clients.md"


@cache
def client() -> ModuleType:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 60
    module = ModuleType("resuming")
    exec(compile(code, str(PAGE), "exec"), vars(module))
    return module
