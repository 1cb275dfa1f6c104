"""Do the tests of the core notice a change of its code? Its branch coverage, and random mutants of it.

    python -m benchmarks.mutants cover [--results FILE]            # which tests run which line; about 20 minutes
    python -m benchmarks.mutants run [--sample 600] [--seeds 0] [--only shared/core/privacy] [--processes 2]
    python -m benchmarks.mutants summary [--format json]           # of both

The core is what stands in shared/core and private_curator/core, generated code aside. `cover` runs the tests of both
folders that start no process, with coverage.py, one context a test. `run` draws mutants at random, a seed each time:
one operator of Cosmic Ray (`pip install --require-hashes -r deploy/mutants.lock`) at one place of one file, in a copy
of the tree, and runs the tests that reach the line, the fastest first, until one fails or half a minute of tests has
passed: a mutant that none of them notices counts as a survivor. What changes nothing by form is not drawn: annotations,
docstrings, and whether an argument may be given by its place. A survivor is killed by a new test, or stands in
benchmarks/mutants.toml with the reason why it is no fault; both are counted apart.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import gc
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks import records

ROOT = Path(__file__).resolve().parents[1]
CORE = ("shared/core", "private_curator/core")
TESTS = (
    *(
        f"tests/unit/shared/{part}"
        for part in (
            "kernels",
            "ledger",
            "mechanisms",
            "privacy",
            "protocol",
            "steps",
            "test_core_corners.py",
            "test_core_values.py",
            "test_errors.py",
        )
    ),
    "tests/party/shared",
    *(f"tests/{tier}/private_curator/{part}" for tier in ("unit", "party") for part in ("ledger", "steps")),
    "tests/party/private_curator/keys/test_places.py",
    "tests/unit/public_client/methods/test_recalibrate.py",
)
LOOKING = "tests/unit/shared/test_core_values.py"
WITHOUT = "not exhaustive and not statistical"
RESULTS = Path(__file__).parent / "results" / "mutants.jsonl"
COVERED = "covered.json"
NO_FAULT = Path(__file__).with_name("mutants.toml")
_STAGES_S = (2.0, 30.0)  # of tests, by the time that they took unchanged; what the first finds costs no second
_PATIENCE = 5.0  # times as long as unchanged, and a quarter of a minute, until a mutant counts as endless
_PARTS = (
    "benchmarks",
    "deploy",
    "docs",
    "dpswd",
    "examples",
    "private_curator",
    "proto",
    "public_client",
    "shared",
    "tests",
)
_PRELOADED = (
    "torch", "torch.func", "scipy.stats", "scipy.optimize", "scipy.signal", "sklearn.datasets", "grpc",
    "google.protobuf.message", "sqlite3", "cryptography.x509", "autodp.rdp_acct", "prometheus_client", "mpmath", "yaml",
    "pytest", "pytest_timeout", "hypothesis.extra.numpy",
)  # fmt: skip
_PLUGINS = ("-p", "pytest_timeout", "--assert", "plain")  # others, and the writing of assertions anew, only take time


def core_files() -> list[str]:
    """Of the core, relative to the repository."""
    files = [file for folder in CORE for file in (ROOT / folder).rglob("*.py") if "_pb2" not in file.name]
    return sorted(str(file.relative_to(ROOT)) for file in files)


# Coverage


@dataclass(frozen=True)
class Covered:
    """What the tests reach.

    Attributes:
        tests: by file and line, the tests that run it, by number.
        names: of the tests.
        seconds: that each takes.
        missing: by file, lines and branches that none reaches.
        share: of statements and branches that are reached.
    """

    tests: Mapping[str, Mapping[int, Sequence[int]]]
    names: Sequence[str]
    seconds: Sequence[float]
    missing: Mapping[str, Sequence[str]]
    share: float

    @classmethod
    def read(cls, path: Path) -> Covered:
        """From a file that `cover` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        lines = {file: {int(line): tests for line, tests in own.items()} for file, own in content.pop("tests").items()}
        return cls(lines, **content)

    def reaching(self, file: str, line: int) -> list[int]:
        """Tests that run a line; of a line that runs at import, those that run any of the file, or look at all files.

        The fastest come first.
        """
        own = self.tests.get(file, {})
        tests_there = own.get(line)
        if not tests_there:
            looking = {test for test, name in enumerate(self.names) if name.startswith(LOOKING)}
            tests_there = looking | {test for tests in own.values() for test in tests}
        return sorted(tests_there, key=lambda test: self.seconds[test])


class _Contexts:
    """A plugin of pytest: one context for each test function, how long it takes, and which do not pass unchanged."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:  # noqa: ARG002 - pytest's names
        self.coverage.switch_context(nodeid.partition("[")[0])

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.partition("[")[0]
        self.seconds[name] += report.duration
        if report.failed:
            self.failed.add(name)


def cover(path: Path, tests: Sequence[str] = ()) -> None:
    """Runs the tests of the core, and writes what they reach; some of them alone add to what is there."""
    import pytest
    from coverage import Coverage

    path.parent.mkdir(parents=True, exist_ok=True)
    measured = Coverage(
        data_file=str(path.with_suffix(".coverage")), branch=True, source=[str(ROOT / each) for each in CORE],
        omit=["*_pb2*"], config_file=False,
    )  # fmt: skip
    before: dict[str, float] = {}
    if tests and path.exists():
        measured.load()
        there = Covered.read(path)
        before = dict(zip(there.names, there.seconds, strict=True))
    else:
        measured.erase()
    contexts = _Contexts(measured)
    measured.start()
    status = pytest.main(["-q", "-m", WITHOUT, "-p", "no:cacheprovider", *(tests or TESTS)], plugins=[contexts])
    measured.stop()
    measured.save()
    if status > 1:
        raise SystemExit(f"the tests cannot be run (status {int(status)}): nothing can be said of mutants")
    for name in contexts.failed:  # golden bits, say, on another processor
        print(f"does not pass unchanged, and judges no mutant: {name}")
    seconds = {name: took for name, took in (before | contexts.seconds).items() if name not in contexts.failed}
    numbers = {name: number for number, name in enumerate(sorted(seconds))}
    reaching, missing, counted = {}, {}, Counter[str]()
    data = measured.get_data()
    for file in core_files():
        by_line = data.contexts_by_lineno(str(ROOT / file))
        reached = {line: [numbers[name] for name in own if name in numbers] for line, own in by_line.items()}
        reaching[file] = {line: own for line, own in reached.items() if own}
        analysis = measured._analyze(str(ROOT / file))
        counted.update(
            all=analysis.numbers.n_statements + analysis.numbers.n_branches,
            reached=analysis.numbers.n_executed + analysis.numbers.n_executed_branches,
        )
        branches = analysis.missing_branch_arcs()
        lost = [str(line) for line in sorted(analysis.missing)]
        lost += [f"{line} to {end}" for line, ends in sorted(branches.items()) for end in ends if str(line) not in lost]
        if lost:
            missing[file] = lost
    content = {"tests": reaching, "names": sorted(numbers), "seconds": [round(seconds[name], 3) for name in numbers]}
    content |= {"missing": missing, "share": counted["reached"] / counted["all"]}
    path.write_text(json.dumps(content), encoding="utf-8")
    print(f"{100 * content['share']:.2f}% of statements and branches; written to {path}")


# Mutants


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        file: of the core.
        line: of the change.
        operator: Cosmic Ray's name.
        occurrence: which of its places.
        before: the line as it is.
        after: as it becomes.
        code: of the whole file.
    """

    file: str
    line: int
    operator: str
    occurrence: int
    before: str
    after: str
    code: str

    @property
    def settings(self) -> records.Row:
        """What tells it from others, whatever stands above it in the file."""
        return {"file": self.file, "operator": self.operator, "before": self.before, "after": self.after}


@dataclass(frozen=True)
class Place:
    """Where an operator of Cosmic Ray can change a file: its name, and which of its places it is."""

    file: str
    operator: str
    occurrence: int

    def mutant(self) -> Mutant | None:
        """The change; None where only annotations or docstrings differ."""
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        code = (ROOT / self.file).read_text(encoding="utf-8")
        mutated = mutate_code(code, get_operator(self.operator)(), self.occurrence)
        try:
            if mutated is None or _computed(mutated) == _computed(code):
                return None
        except SyntaxError:
            return None
        old, new = ([line.strip() for line in text.splitlines()] for text in (code, mutated))
        first = next(place for place, (own, other) in enumerate(zip(old, new, strict=False)) if own != other)
        place = next(place for place in range(first, len(old)) if old[place])  # a decorator goes with its blank lines
        return Mutant(self.file, place + 1, self.operator, self.occurrence, old[place], new[first], mutated)


def places_of(file: str) -> Iterator[Place]:
    """Every place of a file."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast((ROOT / file).read_text(encoding="utf-8"))))
    for name in sorted(operator_names()):
        if not (kind := get_operator(name)).arguments():
            count = sum(1 for node in nodes for _ in kind().mutation_positions(node))
            yield from (Place(file, name, occurrence) for occurrence in range(count))


def drawn(places: Sequence[Place], count: int, seed: int) -> list[Mutant]:
    """So many mutants at random, without repeats."""
    order = random.Random(seed).sample(places, len(places))
    return list(itertools.islice((mutant for place in order if (mutant := place.mutant()) is not None), count))


def _computed(code: str) -> str:
    """The program without what computes nothing: annotations, docstrings, blocks for type checkers, `*` and `/`."""

    class Bare(ast.NodeTransformer):
        def visit_arg(self, node: ast.arg) -> ast.arg:
            node.annotation = None
            return node

        def visit_arguments(self, node: ast.arguments) -> ast.arguments:
            self.generic_visit(node)
            names = [*node.posonlyargs, *node.args, *node.kwonlyargs]
            defaults = [*node.defaults, *(each for each in node.kw_defaults if each)]
            return ast.arguments([], names, node.vararg, [], [], node.kwarg, defaults)

        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
            self.generic_visit(node)
            node.annotation = ast.Constant(None)
            return node

        def visit_If(self, node: ast.If) -> ast.AST | None:
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                return None
            return self.generic_visit(node)

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            self.generic_visit(node)
            node.returns = None
            return node

        def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
            return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    return ast.dump(Bare().visit(ast.parse(code)))


def copied_tree() -> Path:
    """A copy of the tree, compiled, for mutants one after the other."""
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    for part in _PARTS:
        shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (each for each in ROOT.iterdir() if each.is_file()):
        shutil.copy2(file, folder)
    for part in ("shared", "private_curator", "public_client", "tests"):
        compileall.compile_dir(folder / part, quiet=2)
    return folder


@contextlib.contextmanager
def mutated(folder: Path, mutant: Mutant) -> Iterator[None]:
    """The tree in a folder with one change."""
    file = folder / mutant.file
    unchanged = file.read_text(encoding="utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()
    file.write_text(mutant.code, encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(unchanged, encoding="utf-8")


class TestRunner:
    """A process that forks for each question, so that libraries are loaded once.

    Args:
        folder: where tests are run.
        path: where what they test is imported from.
    """

    __test__ = False  # it runs tests, and is none

    def __init__(self, folder: Path, *, path: Path) -> None:
        self.folder = folder
        environment = {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        self._server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.mutants", "serve"], cwd=folder, env=os.environ | environment,
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def verdict(self, tests: Sequence[str], *, seconds: float) -> str:
        """ "killed" where one of the tests fails, "endless" after so many seconds, "survived" else."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps({"tests": list(tests), "seconds": seconds}), file=self._server.stdin, flush=True)
        return str(json.loads(self._server.stdout.readline())["verdict"])

    def stop(self) -> None:
        """Ends the process."""
        self._server.kill()
        self._server.communicate()


def serve() -> None:
    """Inside of a copy: forks for each line of input a process that runs the tests it names."""
    for name in _PRELOADED:
        importlib.import_module(name)
    import pytest

    gc.collect(), gc.freeze()
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1), os.dup2(silent, 2)
            status = 2
            try:
                status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *_PLUGINS, "-m", "", *asked["tests"]])
            finally:
                os._exit(int(status))
        print(json.dumps({"verdict": _ended(child, asked["seconds"])}), file=answers, flush=True)


def _ended(child: int, seconds: float) -> str:
    until, status = time.monotonic() + seconds, None
    while status is None and time.monotonic() < until:
        done, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if done else None
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
        return "endless"
    return "survived" if status == 0 else "killed"


def judge(mutant: Mutant, covered: Covered, runners: SimpleQueue[TestRunner]) -> records.Row:
    """Whether the tests notice a mutant."""
    tests = covered.reaching(mutant.file, mutant.line)
    verdict, begun = "not reached", 0
    runner = runners.get()
    try:
        with mutated(runner.folder, mutant):
            for enough in _STAGES_S:
                spent = itertools.accumulate(covered.seconds[test] for test in tests)
                upto = max(begun + (enough == _STAGES_S[0]), sum(1 for each in spent if each <= enough))
                if tests[begun:upto]:
                    names, seconds = (
                        [part[test] for test in tests[begun:upto]] for part in (covered.names, covered.seconds)
                    )
                    verdict, begun = runner.verdict(names, seconds=15.0 + _PATIENCE * sum(seconds)), upto
                if verdict != "survived":
                    break
        return {"verdict": verdict, "line": mutant.line, "tests": begun}
    finally:
        runners.put(runner)


def run(arguments: argparse.Namespace) -> None:
    """Draws mutants and judges them."""
    covered = Covered.read(records.MEASURED / COVERED)
    files = [file for file in core_files() if not arguments.only or file.startswith(tuple(arguments.only))]
    places = [place for file in files for place in places_of(file)]
    print(f"{len(places)} places of {len(files)} files")
    runners: SimpleQueue[TestRunner] = SimpleQueue()
    made = [TestRunner(folder, path=folder) for folder in (copied_tree() for _ in range(arguments.processes))]
    for runner in made:
        runners.put(runner)
    rows = records.Rows(RESULTS, arguments.results)
    try:
        with ThreadPoolExecutor(arguments.processes) as pool:
            for seed in arguments.seeds:
                held = records.read(rows.path)
                mutants = drawn(places, arguments.sample, seed)
                mutants = [each for each in mutants if not records.on_file(each.settings | {"seed": seed}, held)]
                # All are begun at once and told in order, so that several copies work side by side.
                jobs = [(mutant, pool.submit(judge, mutant, covered, runners)) for mutant in mutants]
                rows.run((mutant.settings | {"seed": seed}, job.result) for mutant, job in jobs)
    finally:
        for runner in made:
            runner.stop()
            shutil.rmtree(runner.folder)


def no_faults() -> list[dict[str, str]]:
    """Survivors that change nothing, each with its reason."""
    listed: list[dict[str, str]] = tomllib.loads(NO_FAULT.read_text(encoding="utf-8")).get("mutant", [])
    return listed


def summary(rows: Iterable[records.Row], covered: Covered | None) -> records.Row:
    """Figures: the share of mutants that are noticed, by folder and in all, and what is left."""
    listed = no_faults()
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    left = []
    for row in rows:
        excused = row["verdict"] in ("survived", "not reached") and records.on_file(
            {name: row[name] for name in ("file", "before", "after")}, listed
        )
        verdict = "no fault" if excused else {"endless": "killed"}.get(row["verdict"], row["verdict"])
        for place in ("all", str(Path(row["file"]).parent)):
            counts[place][verdict] += 1
        if verdict in ("survived", "not reached"):
            left.append({name: row.get(name) for name in ("file", "line", "before", "after", "verdict", "tests")})
    figures: records.Row = {
        place: {**count, "share killed": round((count["killed"] + count["no fault"]) / count.total(), 4)}
        for place, count in sorted(counts.items())
    }
    if covered is not None:
        figures |= {"branch coverage": round(covered.share, 5), "not covered": covered.missing}
    return figures | {"survivors": left}


def main() -> None:
    """Measures or reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("cover", "run", "summary", "serve"))
    parser.add_argument("--sample", type=int, default=600, help="mutants of a seed")
    parser.add_argument("--only", nargs="+", default=(), help="files that begin so")
    parser.add_argument("--tests", nargs="+", default=(), help="cover: these alone, beside what is there")
    parser.add_argument("--processes", type=int, default=2, help="that run tests side by side")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    records.options(parser, RESULTS, seeds=(0,))
    arguments = parser.parse_args()
    if arguments.action == "serve":
        serve()
    elif arguments.action == "cover":
        cover(arguments.results or records.MEASURED / COVERED, arguments.tests)
    elif arguments.action == "run":
        run(arguments)
    else:
        path = records.MEASURED / COVERED
        figures = summary(records.read(arguments.results or RESULTS), Covered.read(path) if path.exists() else None)
        print(json.dumps(figures, indent=1) if arguments.format == "json" else _text(figures))


def _text(figures: records.Row) -> str:
    lines = []
    for place, count in figures.items():
        if isinstance(count, dict) and "share killed" in count:
            others = ", ".join(f"{number} {verdict}" for verdict, number in count.items() if verdict != "share killed")
            lines.append(f"{place:36} {100 * count['share killed']:5.1f}%  ({others})")
    for each in figures["survivors"]:
        lines += [
            f"{each['file']}:{each['line']} {each['verdict']} {each['tests']} tests",
            f"  - {each['before']}",
            f"  + {each['after']}",
        ]
    if "branch coverage" in figures:
        lines.append(f"branch coverage {100 * figures['branch coverage']:.2f}%")
        lines += [f"  {file}: {', '.join(missing)}" for file, missing in figures["not covered"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
