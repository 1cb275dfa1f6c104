"""The wheel of a release: made twice from the commit alone, and compared with one that somebody was given.

    python -m deploy.release build REVISION --output dist   # writes the wheel, once two builds of it are equal
    python -m deploy.release compare REVISION WHEEL         # rebuilds it; names what differs

A build reads nothing but the commit's files and the build back end, which requirements.lock pins; times in the wheel
are the commit's own. RELEASE.md says who runs this, and when.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

from deploy import bom

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = "CHANGELOG.md"


class ReleaseRefused(Exception):
    """A release that is not what it says."""


def _git(root: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - the words are this file's
    if done.returncode:
        raise ReleaseRefused(done.stderr.decode(errors="replace").strip())
    return done.stdout


def archive(revision: str, root: Path = ROOT) -> bytes:
    """A commit's files as git keeps them (tar): nothing of the work tree, ignored or not."""
    return _git(root, "archive", "--format=tar", f"{revision}^{{commit}}")


def unpack(archived: bytes, folder: Path) -> None:
    """Lays an archive's files out by GNU tar, which refuses what would leave the folder (`tarfile` from 3.11.4 on).

    Raises:
        ReleaseRefused: it is no archive; tar's words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = ["tar", "--extract", "--no-same-permissions", "--no-same-owner", "--directory", str(folder)]
    done = subprocess.run(command, input=archived, check=False, capture_output=True)  # noqa: S603 - as above
    if done.returncode:
        raise ReleaseRefused(done.stderr.decode(errors="replace"))


def build(sources: Path, output: Path, seconds: int) -> Path:
    """Builds the wheel of a folder of sources.

    Args:
        sources: an archive's files.
        output: where the wheel is written.
        seconds: since 1970: the time of every file in it.

    Raises:
        ReleaseRefused: the build back end failed; its words.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds)}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(output)]
    done = subprocess.run(  # noqa: S603 - the words are this file's
        command, cwd=sources, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise ReleaseRefused(done.stderr)
    (wheel,) = output.glob("*.whl")
    return wheel


def differences(one: Path, other: Path) -> list[str]:
    """What is not the same in two wheels: names of files, or the archive itself; none where every byte is equal."""
    if one.read_bytes() == other.read_bytes():
        return []
    with zipfile.ZipFile(one) as left, zipfile.ZipFile(other) as right:
        names = sorted({*left.namelist(), *right.namelist()})
        held = [{name: wheel.read(name) for name in wheel.namelist()} for wheel in (left, right)]
    return [name for name in names if held[0].get(name) != held[1].get(name)] or ["order, times or modes of the files"]


def rebuilt(revision: str, output: Path, root: Path = ROOT) -> Path:
    """The wheel of a commit, made twice in two folders.

    Raises:
        ReleaseRefused: the two differ.
    """
    archived = archive(revision, root)
    seconds = int(_git(root, "show", "--no-patch", "--format=%ct", f"{revision}^{{commit}}"))
    with tempfile.TemporaryDirectory() as folder:
        wheels = []
        for name in ("first", "second"):
            sources = Path(folder) / name
            unpack(archived, sources)
            wheels.append(build(sources, sources / "dist", seconds))
        if differing := differences(*wheels):
            raise ReleaseRefused(f"two builds of {revision} differ in {', '.join(differing)}")
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheels[0], output))


def hold_tag(tag: str, sources: Path) -> None:
    """That a tag, pyproject.toml and the changelog name one version, and that the list of dependencies is the locks'.

    Raises:
        ReleaseRefused: they do not.
    """
    version = tomllib.loads((sources / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if tag != f"v{version}":
        raise ReleaseRefused(f"the tag {tag} is not v{version}, the version in pyproject.toml")
    if version not in sections((sources / CHANGELOG).read_text(encoding="utf-8")):
        raise ReleaseRefused(f"{CHANGELOG} has no section [{version}]: write one from [Unreleased]")
    path = bom.LIST.relative_to(ROOT)
    if (sources / path).read_text(encoding="utf-8") != bom.listed(sources):
        raise ReleaseRefused(f"{path} is not what the locks say: run `make bom`")


def sections(changelog: str) -> dict[str, list[str]]:
    """The lines of each release's section, by version."""
    parts = re.split(r"^## \[([^\]]+)\].*$", changelog, flags=re.MULTILINE)
    return {name: text.strip().splitlines() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Builds or compares; 1 where something is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("build", help="write the wheel of a commit, once two builds are equal")
    made.add_argument("revision", help="a tag (held to version and changelog) or any commit")
    made.add_argument("--output", type=Path, default=Path("dist"))
    compared = commands.add_parser("compare", help="rebuild a wheel from its commit and name what differs")
    compared.add_argument("revision")
    compared.add_argument("wheel", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        if re.fullmatch(r"v\d.*", chosen.revision):
            with tempfile.TemporaryDirectory() as folder:
                unpack(archive(chosen.revision, root), Path(folder))
                hold_tag(chosen.revision, Path(folder))
        if chosen.command == "build":
            print(rebuilt(chosen.revision, chosen.output, root))
            return 0
        with tempfile.TemporaryDirectory() as folder:
            differing = differences(rebuilt(chosen.revision, Path(folder), root), chosen.wheel)
    except ReleaseRefused as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print("\n".join(f"differs: {name}" for name in differing) or f"{chosen.wheel.name}: every byte is the commit's")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
