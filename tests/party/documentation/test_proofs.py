"""A proof is pinned to the files that it proves: a changed one fails here until somebody has read the page again."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import proofs
from dpswd.shared.published_mechanisms import ALL_MECHANISMS

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "docs" / "privacy"
MEASURED = {
    "accountant-crosscheck.md",
    "accountant-speed.md",
    "accountant.md",
    "audit-mechanisms.md",
    "audit.md",
    "for-your-officer.md",
    "in-words.md",
    "mechanisms.md",
    "reading-order.md",
}
"""Pages that list or measure, and prove nothing."""
TABLE = proofs.read_table()


@pytest.mark.parametrize("page", sorted(TABLE))
def test_a_proof_is_of_the_files_as_they_are(page):
    names = proofs.changed({page: TABLE[page]}).get(page)
    assert not names, (
        f"docs/privacy/{page} proves {', '.join(names)}, which changed since somebody held them against each other: "
        f"read the page again, mend it where it no longer holds, then `make proofs-reviewed PAGES={page}`"
    )


def test_every_page_proves_files_or_is_listed_as_proving_nothing():
    assert set(TABLE) | MEASURED == {page.name for page in PAGES.glob("*.md")}
    assert not set(TABLE) & MEASURED
    assert all(TABLE.values()), "a page without a file proves nothing"


def test_every_mechanism_and_all_that_prices_and_noises_is_proved_by_a_page():
    proved = {name for files in TABLE.values() for name in files}
    for mechanism in ALL_MECHANISMS.values():
        file = Path(inspect.getfile(type(mechanism))).resolve().relative_to(ROOT)
        assert str(file) in proved, f"no page proves {mechanism.name}"
    folders = ("shared/core/noise", "shared/accounting")
    texts = {"__init__.py", "bounds.py", "crosscheck.py", "beta_cells.py"}
    for file in (file for folder in folders for file in (ROOT / folder).glob("*.py") if file.name not in texts):
        assert str(file.relative_to(ROOT)) in proved, f"no page proves {file}"


def test_a_changed_file_is_named_and_a_review_settles_it(tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(f"# {name}\n")
    both = {"one.md": {"a.py": "", "b.py": ""}, "two.md": {"b.py": ""}}
    settled = proofs.reviewed(both, {"one.md", "two.md"}, tmp_path)
    assert proofs.changed(settled, tmp_path) == {}
    (tmp_path / "b.py").write_text("# other\n")
    assert proofs.changed(settled, tmp_path) == {"one.md": ["b.py"], "two.md": ["b.py"]}
    assert proofs.changed(proofs.reviewed(settled, {"one.md"}, tmp_path), tmp_path) == {"two.md": ["b.py"]}
    (tmp_path / "a.py").unlink()
    assert proofs.changed(settled, tmp_path)["one.md"] == ["a.py", "b.py"]


def test_the_table_is_written_as_it_is_read(tmp_path):
    table = tmp_path / "proofs.toml"
    table.write_text(proofs.as_text(TABLE), encoding="utf-8")
    assert proofs.read_table(table) == TABLE
    assert table.read_text() == proofs.TABLE.read_text()


def test_an_unknown_page_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "deploy.proofs", "--reviewed", "nothing.md"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "allowed are" in done.stderr
