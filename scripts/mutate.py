"""Changes the product in one place at a time, and says which changes no test notices: `python scripts/mutate.py`.

First `python scripts/mutate.py --measure tests/engine tests/model/checkpoint` finds which test runs which line. That
needs the package `coverage`. A mutation changes one node of a syntax tree, in a copy of the repository. A forked child,
which already holds all modules but ours, runs up to 40 tests that run the changed line: those nearest to it, fast ones
first. The folder `--work` keeps the map, the copy and `results.jsonl`. What has a result there does not run again.
"""

import argparse
import ast
import copy
import gc
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = tuple(f"service/engine/scheduling/{name}.py" for name in ("pages", "prefix", "stored"))
ROOMS = {
    "pages": (*PAGES, "service/engine/prefixes", "model/attention/cache.py"),
    "scheduler": ("service/engine/scheduling",),
    "structured": ("service/structured",),
    "generation": ("service/generation",),
    "kernels": ("model/kernels/cpu",),
    "checkpoint": ("model/checkpoint",),
}
"""Where mutations are made. A file belongs to the first room that has it."""
OURS = {"model", "service", "tests", "benchmarks", "deploy", "scripts"}
TESTS, CHOSEN_SECONDS, SECONDS, QUICK_SECONDS, BYTES = 40, 15.0, 60.0, 6.0, 12 << 30
"""Limits: of the tests of a mutant, of what they take by the map, of what they take, of tests that go on after one
failed, and of a mutant's memory. With more tests the times are longer."""
EQUAL = (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE)
PAIRS = (*EQUAL, (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.BitAnd, ast.BitOr))
SWAPPED: dict[type, type] = {ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift}
SWAPPED |= {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
DROPPED = (ast.Raise, ast.Break, ast.Continue, ast.Delete, ast.AugAssign)
CONDITIONS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


class Mutation(NamedTuple):
    """One change of a file: its bytes from `start` to `stop` become `after`. See `sites` for `statement`."""

    room: str
    path: str
    start: int
    stop: int
    lines: range
    statement: range
    after: str
    key: str


def with_fields(node: ast.AST, **fields: Any) -> str:
    """The text of a node in which some fields have other values."""
    new = copy.copy(node)
    vars(new).update(fields)
    return ast.unparse(new)


def operators(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield each place at a node where an operator, a condition or a called function may change, and the new text."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                yield node, f"({with_fields(node, ops=[*ops[:i], SWAPPED[type(op)](), *ops[i + 1 :]])})"
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in SWAPPED:
            yield node, f"({with_fields(node, op=SWAPPED[type(op)]())})"
        case ast.AugAssign(op=op) if type(op) in SWAPPED:
            yield node, with_fields(node, op=SWAPPED[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield node, with_fields(node, func=ast.Name(id=NAMES[name]))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if isinstance(test, CONDITIONS):
            yield test, f"(not {ast.unparse(test)})"


def values(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield each place at a node where a value may change or a statement may go, and the new text."""
    match node:
        case ast.Constant(value=bool(value)):
            yield node, f"({not value})"
        case ast.Constant(value=int(value) | float(value)):
            yield from ((node, f"({value + 1})"), (node, f"({value - 1})"))
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            truth = isinstance(value, ast.Compare | ast.BoolOp) or ast.unparse(value).startswith("not ")
            yield node, f"return not ({ast.unparse(value)})" if truth else "return None"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Expr(value=ast.Call() | ast.Await()):
            yield node, "pass"
        case ast.stmt() if isinstance(node, DROPPED):
            yield node, "pass"


def sites(node: ast.AST, statement: range = range(0), called: bool = False) -> Iterator[tuple[ast.AST, str, range]]:
    """Yield the changes at a node and in it. Texts, logs and types stay.

    The third value has the lines of the statement, none where it runs when the module is imported.
    """
    inside = [(child, called) for child in ast.iter_child_nodes(node)]
    match node:
        case ast.FunctionDef(name="__repr__" | "__str__") | ast.JoinedStr() | ast.Assert():
            return
        case ast.Call(func=ast.Name(id="isinstance" | "cast")) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return
        case ast.FunctionDef(args=args, body=body) | ast.AsyncFunctionDef(args=args, body=body):
            defaults = [*args.defaults, *filter(None, args.kw_defaults)]
            inside = [*((child, False) for child in defaults), *((child, True) for child in body)]
        case ast.ClassDef(body=body):
            inside = [(child, False) for child in body]  # not what decorates it, such as frozen=True
        case ast.AnnAssign(value=value):
            inside = [(value, called)] if value else []
        case ast.Call(func=ast.Name(id="zip"), args=args):
            inside = [(child, called) for child in args]  # not strict=True, which finds errors of other code
    if isinstance(node, ast.stmt) and called:
        first = next((child.lineno for child in getattr(node, "body", [])), node.end_lineno + 1)
        statement = range(node.lineno, max(first, node.lineno + 1))
    yield from ((place, after, statement) for place, after in (*operators(node), *values(node)))
    for child, runs in inside:
        yield from sites(child, statement if runs else range(0), runs)


def mutations(room: str) -> list[list[Mutation]]:
    """Return the mutations of a room, a list for each node that may change."""
    taken = {path for other in list(ROOMS)[: list(ROOMS).index(room)] for path in ROOMS[other]}
    files = [file for place in ROOMS[room] for file in sorted([ROOT / place, *(ROOT / place).rglob("*.py")])]
    found: dict[tuple[str, int, int], list[Mutation]] = defaultdict(list)
    for file in files:
        path = str(file.relative_to(ROOT))
        if file.suffix != ".py" or path in taken or file.name == "build.py":
            continue
        data = file.read_bytes()
        starts = [0]
        for text in data.splitlines(keepends=True):
            starts.append(starts[-1] + len(text))
        for node, after, statement in sites(ast.parse(data)):
            start = starts[node.lineno - 1] + node.col_offset
            stop = starts[node.end_lineno - 1] + node.end_col_offset
            key = f"{path}:{node.lineno}:{node.col_offset}: {' '.join(data[start:stop].decode().split())} -> {after}"
            lines = range(node.lineno, node.end_lineno + 1)
            found[path, start, stop].append(Mutation(room, path, start, stop, lines, statement, after, key))
    return list(found.values())


def drawn(number: int, seed: int) -> list[Mutation]:
    """Draw the same number of mutations in each room, from nodes with equal chances."""
    chance = random.Random(seed)
    return [chance.choice(node) for room in ROOMS for node in chance.sample(mutations(room), number // len(ROOMS))]


class Watch:
    """A plug-in of pytest: it orders the tests, and writes a line before and after each of them."""

    def __init__(self, report: Path, names: list[str], begin: Callable[[str], Any] = str) -> None:
        self.report, self.begin = report.open("w", buffering=1), begin
        self.places = {name: place for place, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.places:
            items[:] = [item for item in items if item.nodeid in self.places]
            items.sort(key=lambda item: self.places[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.failed, self.started = False, time.monotonic()
        print(json.dumps([nodeid, None, None]), file=self.report)
        self.begin(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed |= report.failed

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        print(json.dumps([nodeid, self.failed, time.monotonic() - self.started]), file=self.report)


class Bench:
    """The copy of the repository in which tests run, and the map from lines to tests."""

    def __init__(self, work: Path) -> None:
        self.work, self.tree, self.report, self.file = (work / n for n in ("", "tree", "report", "map.json"))
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        for name in [*filter(None, names), *(str(path.relative_to(ROOT)) for path in ROOT.glob("model/*/*/*.so"))]:
            source, target = ROOT / name, self.tree / name
            if source.is_file() and not (target.exists() and target.read_bytes() == source.read_bytes()):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        kept = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.seconds: dict[str, float] = kept.get("seconds", {})
        self.lines: dict[str, dict[str, list[int]]] = kept.get("lines", {})  # places in `seconds` from 1, 0: at import
        self.modules: list[str] = kept.get("modules", [])

    def forked(self, act: Callable[[], int], enough: Callable[[float], bool]) -> int | None:
        """Run `act` in a child, and return its exit code, or None if it was `enough` after so many seconds."""
        child = os.fork()
        if not child:
            os.setsid()
            os.chdir(self.tree)
            sys.path[0] = str(self.tree)  # it was the folder of this file
            with (self.work / "log").open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
            os._exit(act())
        begun, code = time.monotonic(), None
        while code is None and (time.monotonic() - begun < QUICK_SECONDS or not enough(time.monotonic() - begun)):
            done, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if code is None:
            os.waitpid(child, 0)
        return code

    def tested(self, paths: list[str], watch: Watch, *options: str) -> int:
        """Run tests in this process, a child."""
        import pytest

        quiet = ["-p", "no:cacheprovider", "--tb=line", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        return pytest.main([*paths, *quiet, f"--basetemp={self.work / 'tmp'}", *options], plugins=[watch])

    def reported(self) -> list[tuple[str, bool | None, float]]:
        """Return the last line about each test: its name, whether it failed (None: it did not end), its seconds."""
        whole = [line for line in self.report.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [*{line[0]: line for line in map(json.loads, whole)}.values()]

    def measure(self, paths: list[str]) -> None:
        """Put the tests of these paths that pass into the map: the seconds they take, and the lines they run."""
        print("exit code", self.forked(lambda: self._measured(paths), lambda seconds: False))

    def _measured(self, paths: list[str]) -> int:
        import coverage

        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False  # mutants read it
        cover = coverage.Coverage(data_file=None, config_file=False, include=[f"{self.tree}/{top}/*" for top in OURS])
        cover.start()
        code = self.tested(paths, Watch(self.report, [], cover.switch_context))
        cover.stop()
        measured = self.reported()
        self.seconds |= {name: seconds for name, failed, seconds in measured if failed is False}
        places = {name: place for place, name in enumerate(["", *self.seconds])}
        for file in cover.get_data().measured_files():
            own = self.lines.setdefault(str(Path(file).relative_to(self.tree)), {})
            for line, names in cover.get_data().contexts_by_lineno(file).items():
                own[str(line)] = sorted({*own.get(str(line), ()), *(places[name] for name in names if name in places)})
        modules = [name for name in sys.modules if name.split(".")[0] not in OURS]
        files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in modules}
        self.modules = list(dict.fromkeys([*self.modules, *(n for n in modules if "site-packages" in files[n])]))
        self.file.write_text(json.dumps({"seconds": self.seconds, "lines": self.lines, "modules": self.modules}))
        return code

    def covering(self, mutation: Mutation) -> list[str]:
        """Return the tests that run a mutation's line: one of each function first, the nearest first, then fast ones.

        A line that runs at an import is covered by all tests that run any line of its file.
        """
        lines, stem = self.lines.get(mutation.path, {}), Path(mutation.path).stem
        found = {test for line in mutation.lines for test in lines.get(str(line), ())}
        found = found or {test for line in mutation.statement for test in lines.get(str(line), ())}
        if not mutation.statement or found == {0}:
            found = {test for tests in lines.values() for test in tests}

        names, seen = list(self.seconds), Counter[str]()

        def distance(name: str) -> tuple[int, int, float]:
            file, function = Path(name.split("::")[0]), name.split("[")[0]
            near = 0 if stem in file.stem else 1 if file.parent.name in Path(mutation.path).parts else 2
            seen[function] += 1
            return seen[function], near, self.seconds[name]

        fast = sorted((names[test - 1] for test in found - {0}), key=self.seconds.__getitem__)
        return sorted(fast, key=distance)

    def chosen(self, covering: list[str], limit: int) -> list[str]:
        """Return the first of those tests, as many as are allowed, in the order in which they run: file by file."""
        files: dict[str, list[tuple[float, str]]] = defaultdict(list)
        total = 0.0
        for name in covering[:limit]:
            if files and total + self.seconds[name] > CHOSEN_SECONDS * limit / TESTS:
                continue
            total += self.seconds[name]
            files[name.split("::")[0]].append((self.seconds[name], name))
        return [
            name for own in sorted(files.values(), key=lambda own: sum(s for s, _ in own)) for _, name in sorted(own)
        ]

    def tried(self, mutation: Mutation, limit: int) -> dict[str, Any]:
        """Run the tests on a mutation. They all run if they are fast, else they end after the first that fails."""
        covering, target = self.covering(mutation), self.tree / mutation.path
        result = {"room": mutation.room, "key": mutation.key, "covering": len(covering), "ran": [], "failed": []}
        if not (names := self.chosen(covering, limit)):
            return result | {"result": "not covered"}
        data = (ROOT / mutation.path).read_bytes()
        target.write_bytes(data[: mutation.start] + mutation.after.encode() + data[mutation.stop :])
        os.utime(target, (0, random.randrange(1 << 30)))  # Python takes no byte-code of another version for this one
        begun = time.monotonic()
        try:
            options = ["-x"] if sum(map(self.seconds.__getitem__, names)) > QUICK_SECONDS else []
            code = self.run(names, *options, enough=lambda seconds: seconds > SECONDS * limit / TESTS or self.failed())
        finally:
            shutil.copy2(ROOT / mutation.path, target)
        ran = [name for name, *_ in self.reported()]
        failed = [name for name, bad, _ in self.reported() if bad is not False]
        what = "killed" if code not in (0, 5, None) or self.failed() else "survived" if code in (0, 5) else "timeout"
        return result | {"result": what, "ran": ran, "failed": failed, "seconds": round(time.monotonic() - begun, 1)}

    def failed(self) -> bool:
        """Return whether a test has ended and failed."""
        return any(bad for _, bad, _ in self.reported())

    def run(self, names: list[str], *options: str, enough: Callable[[float], bool]) -> int | None:
        """Run these tests in a child. See `forked`."""
        self.report.write_text("")
        files = list(dict.fromkeys(name.split("::")[0] for name in names))
        options = ("--hypothesis-profile=mutants", *options)
        return self.forked(lambda: self.tested(files, Watch(self.report, names), *options), enough)


def prepare(modules: list[str]) -> None:
    """Import what the tests need of other packages, in the environment that `tests/conftest.py` makes."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ["PYTHONDONTWRITEBYTECODE"], sys.dont_write_bytecode = "1", True
    for name in ["torch", "pytest", "hypothesis", *modules]:
        with suppress(Exception):
            importlib.import_module(name)
    from hypothesis import Phase, settings

    settings.register_profile("mutants", derandomize=True, phases=(Phase.explicit, Phase.generate))
    gc.collect()
    gc.freeze()


def summary(results: list[dict[str, Any]]) -> str:
    """Return the counts by room, the mutations that no test noticed, and how many tests never failed."""
    kinds = ("killed", "timeout", "survived", "not covered")
    rows = ["| room | mutants | " + " | ".join(kinds) + " |", "|---|---|" + "---|" * len(kinds)]
    for room in [*ROOMS, "all"]:
        own = Counter(result["result"] for result in results if room in (result["room"], "all"))
        rows.append(f"| {room} | {own.total()} | " + " | ".join(str(own[kind]) for kind in kinds) + " |")
    left = [result for result in results if result["result"] in kinds[2:]]
    return "\n".join([*rows, "", *(f"{item['result']}: {item['key']} ({item['covering']} tests)" for item in left)])


def idle(results: list[dict[str, Any]]) -> list[str]:
    """Return the tests that ran on at least ten mutations and failed at none."""
    ran = Counter(name for result in results for name in result["ran"])
    failed = {name for result in results for name in result["failed"]}
    return [f"{count} {name}" for name, count in ran.most_common() if count >= 10 and name not in failed]


def main() -> None:
    parser = argparse.ArgumentParser(description="Changes the product in one place at a time, and runs the tests.")
    parser.add_argument("--work", type=Path, default=ROOT / "build/mutants", help="the folder for results")
    parser.add_argument("--measure", nargs="+", metavar="PATH", help="only find out which lines these tests run")
    parser.add_argument("--number", type=int, default=300, help="of mutations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", type=int, default=TESTS, help="at most, for a mutation")
    parser.add_argument("--only", nargs="+", help="run again what has one of these texts in its place or its result")
    options = parser.parse_args()
    bench, file = Bench(options.work), options.work / "results.jsonl"
    prepare(bench.modules)
    if options.measure:
        return bench.measure(options.measure)
    known = {item["key"]: item for item in map(json.loads, file.read_text().splitlines())} if file.exists() else {}
    for place, mutation in enumerate(mutants := drawn(options.number, options.seed), 1):
        before = known.get(mutation.key, {}).get("result", "")
        if any(text in f"{before} {mutation.key}" for text in options.only) if options.only else not before:
            known[mutation.key] = result = bench.tried(mutation, options.tests)
            with file.open("a") as results:
                print(json.dumps(result), file=results)
            print(f"{place:4} {result['result']:11} {result.get('seconds', 0):5} s  {mutation.key}", flush=True)
    done = [known[mutation.key] for mutation in mutants if mutation.key in known]
    print(summary(done))
    (options.work / "idle.txt").write_text("\n".join(idle(done)))
    bench.run(sorted({name for result in done for name in result["failed"]}), enough=lambda seconds: False)
    print("fail also without a mutation:", [name for name, failed, _ in bench.reported() if failed is not False])
    return None


if __name__ == "__main__":
    main()
