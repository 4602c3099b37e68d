"""The import law: service -> model and never back, torch stays out of the service, the engine stands alone."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE_MAY_USE = {"model.batch", "model.sampling_params", "model.config", "model.errors"}
ENGINE_MAY_USE |= {"model.machine", "model.machine.child", "model.machine.frames"}  # standard library only
MODEL_MAY_NEED = {"torch", "numpy", "safetensors", "sentencepiece", "tokenizers"}
TRITON = [path for path in (ROOT / "model/kernels/cuda").glob("*.py") if path.stem != "__init__"]
"""Kernels, which are imported where they are launched."""


def sources(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"no source in {folder}"
    return found


def imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    """Names of imported modules; with `top_level` only those that importing the file brings in."""
    tree = ast.parse(path.read_text())
    nodes = list(_eager(tree)) if top_level else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def _eager(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _eager(child)


@pytest.mark.parametrize("path", sources("model"), ids=str)
def test_model_never_imports_the_service(path: Path) -> None:
    assert not [name for name in imports(path) if name.split(".")[0] == "service"]


@pytest.mark.parametrize("path", sources("model"), ids=str)
def test_model_needs_five_packages_at_most(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path, top_level=True)}
    kernels = {"triton"} if path in TRITON else set()
    assert tops <= MODEL_MAY_NEED | kernels | {"model"} | set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", sources("service/engine"), ids=str)
def test_engine_uses_the_standard_library_and_the_seam(path: Path) -> None:
    for name in imports(path):
        inside = name.startswith("service.engine") or name in ENGINE_MAY_USE
        assert inside or name.split(".")[0] in sys.stdlib_module_names, name


SHARED = {"__init__", "base", "cache", "choice", "compiled", "floats", "inputs", "rope", "schemes"}
"""Files of `attention/` and `linear/` that are no backend and no scheme."""


@pytest.mark.parametrize("folder", ["attention", "linear"])
def test_backends_never_import_each_other(folder: str) -> None:
    for path in sources(f"model/{folder}"):
        if path.stem in SHARED:
            continue
        for name in imports(path):
            inside = name.startswith(f"model.{folder}.")
            assert not inside or name.rpartition(".")[2] in SHARED, f"{path}: {name}"


def run(code: str) -> None:
    """Run code in a fresh interpreter that starts in the repository."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_service_does_not_import_torch() -> None:
    run("import sys, service.app, service.cli; assert 'torch' not in sys.modules")


def test_the_engine_runs_on_the_standard_library_alone() -> None:
    names = [f"service.engine.{path.stem}" for path in sources("service/engine") if not path.stem.startswith("__")]
    # -S: no site-packages, so anything beyond the standard library fails to import.
    code = f"import importlib; [importlib.import_module(name) for name in {names!r}]"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_model_imports_without_optional_readers() -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources("model")
        if path.stem != "__init__" and path not in TRITON
    ]
    blocked = [
        "gguf",
        "jinja2",
        "llguidance",
        "mistral_common",
        "huggingface_hub",
        "fastapi",
        "pydantic",
        "transformers",
        "triton",
    ]
    run(
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"
        f"[importlib.import_module(name) for name in {names!r}]"
    )
