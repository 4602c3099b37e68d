"""The rules of the source tree: which room may import which, how large a room is, and what tests may share.

Imports run one way, from a room to those above it in `ROOMS`. The service imports the model and never back, torch stays
out of the service, the engine stands alone.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.uninstalled import uninstalled

ROOT = Path(__file__).parents[1]
ENGINE_MAY_USE = {"model.batch", "model.sampling_params", "model.token_counts", "model.config.model", "model.errors"}
ENGINE_MAY_USE |= {"model.media", "model.ranges", "model.version", "model.config.vision", "model.config.latent"}
ENGINE_MAY_USE |= {"service.logs"}  # the format of the log, standard library only
ENGINE_MAY_USE |= {f"model.machine.{name}" for name in ("child", "forking", "frames", "owners", "records")}
MODEL_MAY_NEED = {"torch", "numpy", "safetensors", "sentencepiece", "tokenizers"}
TRITON = [path for path in (ROOT / "model/kernels/cuda").rglob("*.py") if path.stem != "__init__"]
"""Kernels, which are imported where they are launched."""
DECODERS = {"images": {"PIL"}, "audio": {"soundfile", "soxr"}}
"""What the processes that decode files need."""
DECODING = {ROOT / f"model/{room}/{name}.py": DECODERS[room] for room in DECODERS for name in ("decode", "process")}


MODEL_ROOMS = """
    errors; version; sampling_params; media; token_counts; batch; ranges; config; sharding
    machine; images, audio; kernels; checkpoint; linear; attention
    options; decide; memory
    tokenizers; chat; grammar
    network; step; selftest; setup; prefixes; drafts; warming; loading; preloaded, ranks
"""
SERVICE_ROOMS = """
    model_settings; settings; logs
    engine; errors; helpers; http; access
    schema; generation; receipts; media; images, audio; structured; observe; state; hosting; recording; start
    api; page; app; commands; cli; __main__
"""
API_ROOMS = """
    lanes, run, places; state; call, reasoning; media, queries, resuming; prompt, answering; routes, text; forms
    openai, anthropic, audio, responses, embeddings, tokens, operations, lora, document; stored, ollama, render
"""
ROOMS = {"model": MODEL_ROOMS, "service": SERVICE_ROOMS, "service.api": API_ROOMS}
"""Folders and files in the order of imports: each may import those before it, but none beside it (after a comma)."""


def sources(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"no source in {folder}"
    return found


def order(package: str) -> dict[str, int]:
    """The place of each room of a package in the order of imports."""
    places = [part.split(",") for line in ROOMS[package].split("\n") for part in line.split(";") if part.strip()]
    return {name.strip(): place for place, names in enumerate(places) for name in names}


def imported(path: Path, nodes: Iterable[ast.AST] = ()) -> Iterator[str]:
    """Full names of what a file imports, anywhere in it or in `nodes`; `from package import name` may name a module."""
    for node in nodes or ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def upward(package: str, path: Path) -> list[str]:
    """Imports of a file that run up or sideways within a package. A room that is in no table is an error."""
    prefix, rooms = f"{package}.", order(package)
    own = path.relative_to(ROOT / package.replace(".", "/")).with_suffix("").parts[0]
    assert own in rooms or own == "__init__", f"{path}: add this room to ROOMS"
    found = []
    for name in imported(path):
        other = name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else own
        if other in rooms and other != own and rooms[other] >= rooms.get(own, -1):
            found.append(f"{path.relative_to(ROOT)} imports {name}")
    return found


def _eager(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _eager(child)


def test_imports_run_one_way() -> None:
    for package in ROOMS:
        paths = sources(package.replace(".", "/"))
        assert not [line for path in paths for line in upward(package, path)]


def test_every_room_is_there() -> None:
    for package in ROOMS:
        folder = ROOT / package.replace(".", "/")
        names = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
        assert names - {"__init__"} == order(package).keys()


def test_a_package_says_what_it_is_for() -> None:
    rooms = [path for path in sources("model") + sources("service") if path.stem == "__init__"]
    assert not [room for room in rooms if not ast.get_docstring(ast.parse(room.read_text()))], "what is it for?"


def test_no_test_imports_from_another() -> None:
    names = {name: path for path in sources("tests") for name in imported(path)}
    assert not [path for name, path in names.items() if name.startswith("tests.") and ".test_" in name]


def mirror(room: Path) -> Path:
    """The folder of tests that mirrors a room: the engine's tests stand beside the service's."""
    parts = room.relative_to(ROOT).parts
    return ROOT.joinpath("tests", *(parts[1:] if parts[:2] == ("service", "engine") else parts))


def test_every_room_has_tests() -> None:
    folders = [path for package in ("model", "service") for path in (ROOT / package).iterdir()]
    rooms = [path for path in folders if (path / "__init__.py").is_file()]
    assert not [room for room in rooms if not list(mirror(room).glob("test_*.py"))]


def test_the_model_needs_five_packages_at_most_and_never_the_service() -> None:
    for path in sources("model"):
        tops = {name.split(".")[0] for name in imported(path, _eager(ast.parse(path.read_text())))}
        others = {"triton"} if path in TRITON else DECODING.get(path, set())
        assert tops <= MODEL_MAY_NEED | others | {"model"} | set(sys.stdlib_module_names), path
        assert "service" not in {name.split(".")[0] for name in imported(path)}, path


def test_engine_uses_the_standard_library_and_the_seam() -> None:
    for path in sources("service/engine"):
        for name in imported(path):
            inside = name.startswith("service.engine") or {name, name.rpartition(".")[0]} & ENGINE_MAY_USE
            assert inside or name.split(".")[0] in sys.stdlib_module_names, f"{path}: {name}"


SHARED = {"__init__", "base", "cache", "compiled", "floats", "inputs", "rope", "schemes", "selection", "tiles"}
"""Files of `attention/` and `linear/` that are no backend and no scheme."""


def test_backends_never_import_each_other() -> None:
    for path in sources("model/attention") + sources("model/linear"):
        room = f"model.{path.parent.name}."
        for name in imported(path) if path.stem not in SHARED else ():
            assert not name.startswith(room) or name.split(".")[2] in SHARED, f"{path}: {name}"


def run(code: str, *flags: str) -> None:
    """Run code in a fresh interpreter that starts in the repository."""
    done = subprocess.run([sys.executable, *flags, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_service_does_not_import_torch() -> None:
    run("import sys, service.app, service.cli; assert 'torch' not in sys.modules")


def test_the_engine_runs_on_the_standard_library_alone() -> None:
    files = [path.relative_to(ROOT) for path in sources("service/engine") if not path.stem.startswith("__")]
    names = [".".join(path.with_suffix("").parts) for path in files]
    # -S: no site-packages, so anything beyond the standard library fails to import.
    run(f"import importlib; [importlib.import_module(name) for name in {names!r}]", "-S")


def test_the_model_imports_without_optional_readers() -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources("model")
        if path.stem != "__init__" and path not in [*TRITON, *DECODING]
    ]
    blocked = [
        "PIL",
        "soundfile",
        "soxr",
        "gguf",
        "jinja2",
        "llguidance",
        "mistral_common",
        "tiktoken",
        "huggingface_hub",
        "fastapi",
    ]
    blocked += ["pydantic", "transformers", "triton"]
    run(f"{uninstalled(*blocked)}import importlib\n[importlib.import_module(name) for name in {names!r}]")


PRODUCT = ("model", "service", "deploy", "benchmarks")
DEFENCE = re.compile(r"# (Private|Wording): .+")
"""A comment on the line of a trick, or above it: which public way was tried."""
OURS = {*PRODUCT, "tests", "scripts", *sys.stdlib_module_names}
OF_TUPLES = {"_replace", "_asdict", "_fields", "_make"}


def tricks(nodes: Sequence[ast.AST], own: set[str]) -> Iterator[int]:
    """Lines that use `sys.modules`, set an attribute of another package, or use a private name that is not in `own`."""
    theirs = {name for node in nodes for name in foreign_names(node)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            private = any(is_private(part) for name in names for part in name.split("."))
            if "sys.modules" in (f"{names[-1]}.{name}" for name in names) or (private and foreign_names(node)):
                yield node.lineno
        elif isinstance(node, ast.Attribute):
            base = dotted(node.value)
            private = is_private(node.attr) and node.attr not in own and base not in sys.stdlib_module_names
            assigned = base.split(".")[0] in theirs and not isinstance(node.ctx, ast.Load)
            if (base, node.attr) == ("sys", "modules") or private or assigned:
                yield node.lineno


def dotted(node: ast.AST) -> str:
    """The names of an expression, with () for a call and [] for an index."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}"
        case ast.Call(func=value):
            return f"{dotted(value)}()"
        case ast.Subscript(value=value):
            return f"{dotted(value)}[]"
    return ""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def foreign_names(node: ast.AST) -> set[str]:
    """The names that an import of another package, not of the standard library, binds."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return set()
    packages = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    if packages[0].split(".")[0] in OURS:
        return set()
    return {(alias.asname or alias.name).split(".")[0] for alias in node.names}


def defined(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Names of functions and classes, and those that are assigned, as variables or on self."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node.value) == "self":
            yield node.attr


def test_other_libraries_are_used_by_their_public_doors() -> None:
    """An entry of ours in `sys.modules` left out a part of PyTorch, and no engine started on processors with AMX."""
    texts = {path: path.read_text() for folder in PRODUCT for path in sources(folder)}
    nodes = {path: list(ast.walk(ast.parse(text))) for path, text in texts.items()}
    own = OF_TUPLES.union(*map(defined, nodes.values()))
    found = []
    for path, text in texts.items():
        lines = ["", *text.splitlines()]
        for number in tricks(nodes[path], own):
            if not any(DEFENCE.search(line) for line in lines[number - 1 : number + 1]):
                found.append(f"{path.relative_to(ROOT)}:{number}: {lines[number].strip()}")
    assert not found, "\n".join(found)
