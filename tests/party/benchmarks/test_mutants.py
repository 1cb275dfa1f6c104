"""Which changes of the core count as mutants, which tests are run on them, and what is said of the outcome."""

from __future__ import annotations

import json

import pytest

from benchmarks import mutants
from benchmarks.mutants import Covered

CODE = '''"""A page."""

from __future__ import annotations


def half(count: int | None, *, by: int = 2) -> float:
    """Half of it."""
    if count is None:
        return 0.0
    return count / by
'''


def test_annotations_and_docstrings_compute_nothing_and_the_rest_does():
    own = mutants._computed(CODE)
    assert mutants._computed(CODE.replace("int | None", "int & None").replace("Half of it", "Twice")) == own
    for before, after in (("is None", "is not None"), ("/ by", "* by"), ("= 2", "= 3"), ("return 0.0", "return 1.0")):
        assert mutants._computed(CODE.replace(before, after)) != own


def test_the_fastest_tests_that_reach_a_line_come_first():
    covered = Covered({"a.py": {3: [0, 2], 4: [1]}}, ["slow", "medium", "fast"], [3.0, 2.0, 1.0], {}, 1.0)
    assert covered.reaching("a.py", 3) == [2, 0]
    assert covered.reaching("a.py", 1) == [2, 1, 0], "what runs at import is reached by every test of the file"
    assert covered.reaching("b.py", 1) == []


def test_what_was_covered_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "covered.json"
    content = {"tests": {"a.py": {"3": [0]}}, "names": ["t"], "seconds": [1.0], "missing": {}, "share": 0.5}
    path.write_text(json.dumps(content))
    assert Covered.read(path) == Covered({"a.py": {3: [0]}}, ["t"], [1.0], {}, 0.5)


def test_endless_counts_as_killed_and_what_is_listed_as_no_fault(monkeypatch):
    rows = [
        {"file": "x/a.py", "before": before, "after": "pass", "line": 1, "verdict": verdict, "tests": 1}
        for before, verdict in (("one", "killed"), ("two", "endless"), ("three", "survived"), ("four", "not reached"))
    ]
    listed = [{"file": "x/a.py", "before": "three", "after": "pass", "reason": "the same sum"}]
    monkeypatch.setattr(mutants, "no_faults", lambda: listed)
    figures = mutants.summary(rows, None)
    assert figures["x"] == {"killed": 2, "no fault": 1, "not reached": 1, "share killed": 0.75}
    assert [each["before"] for each in figures["survivors"]] == ["four"]


def test_what_is_listed_as_no_fault_stands_in_the_code_and_has_a_reason():
    for listed in mutants.no_faults():
        assert listed.keys() == {"file", "before", "after", "reason"}
        assert len(listed["reason"].split()) >= 4
        lines = [line.strip() for line in (mutants.ROOT / listed["file"]).read_text(encoding="utf-8").splitlines()]
        assert listed["before"] in lines, f"{listed['file']} has no line {listed['before']!r} any more"


def test_a_place_changes_one_thing(monkeypatch, tmp_path):
    pytest.importorskip("cosmic_ray", reason="pip install --require-hashes -r deploy/mutants.lock")
    (tmp_path / "a.py").write_text(CODE)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    places = list(mutants.places_of("a.py"))
    made = mutants.drawn(places, 10_000, seed=3)
    assert {(each.line, each.before) for each in made} >= {(10, "return count / by"), (8, "if count is None:")}
    assert len({each.code for each in made}) == len(made) < len(places)
    assert [each.code for each in mutants.drawn(places, 5, seed=3)] == [each.code for each in made[:5]]


def test_a_mutant_that_no_test_notices_survives_and_another_does_not(tmp_path):
    """In a process of its own that forks, as in a copy of the tree."""
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert True\n\n\ndef test_other():\n    assert False\n")
    runner = mutants.TestRunner(tmp_path, path=mutants.ROOT)
    try:
        assert runner.verdict([f"{tmp_path}/test_it.py::test_it"], seconds=60.0) == "survived"
        assert runner.verdict([f"{tmp_path}/test_it.py"], seconds=60.0) == "killed"
        assert runner.verdict([f"{tmp_path}/test_it.py::test_it"], seconds=0.0) == "endless"
    finally:
        runner.stop()


def test_a_change_is_taken_back_and_leaves_no_old_bytecode(tmp_path):
    file, cache = tmp_path / "a.py", tmp_path / "__pycache__"
    file.write_text(CODE)
    cache.mkdir()
    (cache / "a.cpython-311.pyc").write_bytes(b"of before")
    with mutants.mutated(tmp_path, mutants.Mutant("a.py", 1, "op", 0, "before", "after", "changed = 1\n")):
        assert file.read_text() == "changed = 1\n"
        assert not list(cache.iterdir())
    assert file.read_text() == CODE
