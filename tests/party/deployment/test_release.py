"""A release: its wheel follows from its commit, byte for byte, and its changes can be read in a minute."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from deploy import bom, release

ROOT = Path(__file__).resolve().parents[3]
MOST_LINES = 60
SIDES = ("private_curator", "public_client", "shared")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository of two commits of a small project that is laid out as this one; the first is tagged."""
    root = tmp_path_factory.mktemp("repository")
    (root / "dpswd").mkdir()
    (root / "dpswd" / "__init__.py").write_text("")
    (root / "shared").mkdir()
    (root / "shared" / "__init__.py").write_text('"""What both share."""\n')
    (root / "dpswd" / "shared").symlink_to("../shared")
    text = (ROOT / "pyproject.toml").read_text()
    (root / "pyproject.toml").write_text(text)
    for lock in bom.LOCKS:
        (root / lock).parent.mkdir(parents=True, exist_ok=True)
        (root / lock).write_text(f"x==1 \\\n    --hash=sha256:{'0' * 64}\n")
    (root / "dpswd" / bom.LIST.name).write_text(bom.listed(root))
    (root / "README.md").write_text("dpswd\n")
    (root / "LICENSE").write_text("Apache 2.0\n")
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-01-01\n- All of it.\n")
    command = ["git", "-C", str(root), "-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "One"], ["tag", "v0.1.0"]):
        subprocess.run([*command, *words], check=True, capture_output=True)
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n")
    for words in (["commit", "--quiet", "-am", "Two"], ["tag", "v0.1.0.post1"]):
        subprocess.run([*command, *words], check=True, capture_output=True)
    return root


@pytest.mark.long
def test_the_wheel_of_this_commit_is_equal_byte_for_byte_in_two_builds(tmp_path):
    wheel = release.rebuilt("HEAD", tmp_path / "dist")  # which compares two
    # A third, elsewhere, from files with other times and modes.
    sources = tmp_path / "elsewhere" / "sources"
    release.unpack(release.archive("HEAD"), sources)
    for file in sources.rglob("*.py"):
        os.utime(file, (1, 1))
        file.chmod(0o600)
    shutil.rmtree(sources / "tests")
    seconds = int(subprocess.check_output(["git", "show", "-s", "--format=%ct", "HEAD"], cwd=ROOT))
    assert release.differences(wheel, release.build(sources, tmp_path / "other", seconds)) == []
    with zipfile.ZipFile(wheel) as held:
        names = set(held.namelist())
    assert {"dpswd/dependencies.cdx.json", *(f"dpswd/{side}/__init__.py" for side in SIDES)} <= names
    assert len(names) > 400


def test_a_changed_file_of_a_wheel_is_named(repository, tmp_path, capsys):
    good = release.rebuilt("v0.1.0", tmp_path / "dist", repository)
    changed = tmp_path / "changed.whl"
    with zipfile.ZipFile(good) as held, zipfile.ZipFile(changed, "w") as made:
        for item in held.infolist():
            text = held.read(item) + (b"import os\n" if item.filename == "dpswd/shared/__init__.py" else b"")
            made.writestr(item, text)
    assert release.differences(good, changed) == ["dpswd/shared/__init__.py"]
    assert release.main(["compare", "v0.1.0", str(changed)], repository) == 1
    assert "differs: dpswd/shared/__init__.py" in capsys.readouterr().out
    later = tmp_path / "later.whl"
    with zipfile.ZipFile(good) as held, zipfile.ZipFile(later, "w") as made:
        for item in held.infolist():
            made.writestr(item.filename, held.read(item))
    assert release.differences(good, later) == ["order, times or modes of the files"]


def test_the_command_builds_compares_and_refuses(repository, tmp_path, capsys):
    assert release.main(["build", "v0.1.0", "--output", str(tmp_path)], repository) == 0
    wheel = capsys.readouterr().out.strip()
    assert release.main(["compare", "v0.1.0", wheel], repository) == 0
    assert "every byte is the commit's" in capsys.readouterr().out
    capsys.readouterr()
    assert release.main(["build", "v0.1.0.post1"], repository) == 1
    assert "is not v0.1.0" in capsys.readouterr().err
    assert release.main(["build", "v9"], repository) == 1
    assert "v9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tag", "words"), [("v0.2.0", "is not v0.1.0"), ("v0.1.0", "no section")], ids=["version", "changelog"]
)
def test_a_tag_that_is_not_the_version_or_has_no_changes_or_another_list_is_refused(repository, tmp_path, tag, words):
    release.unpack(release.archive("v0.1.0.post1", repository), tmp_path)
    with pytest.raises(release.ReleaseRefused, match=words):
        release.hold_tag(tag, tmp_path)
    release.unpack(release.archive("v0.1.0", repository), tmp_path / "tagged")
    release.hold_tag("v0.1.0", tmp_path / "tagged")
    (tmp_path / "tagged" / bom.LOCKS[0]).write_text(f"x==1 \\\n    --hash=sha256:{'1' * 64}\n")
    with pytest.raises(release.ReleaseRefused, match="is not what the locks say"):
        release.hold_tag("v0.1.0", tmp_path / "tagged")


def test_what_is_no_archive_is_refused_in_the_words_of_tar(tmp_path):
    with pytest.raises(release.ReleaseRefused, match="tar: "):
        release.unpack(b"a page of a registry", tmp_path)


def test_each_release_takes_few_lines():
    sections = release.sections((ROOT / "CHANGELOG.md").read_text())
    assert "Unreleased" in sections
    long = {version: len(lines) for version, lines in sections.items() if len(lines) >= MOST_LINES}
    assert not long, f"a release is told in fewer than {MOST_LINES} lines: {long}"
    assert max(map(len, (ROOT / "CHANGELOG.md").read_text().splitlines())) <= 160, "a line is a line"


def test_the_page_of_a_release_names_commands_that_are_there():
    page = (ROOT / "RELEASE.md").read_text()
    assert len(page.splitlines()) < MOST_LINES
    for words in ("deploy.release build", "deploy.release compare", "make test-exhaustive", "[Unreleased]"):
        assert words in page
