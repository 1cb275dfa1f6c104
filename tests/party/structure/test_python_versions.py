"""Python 3.11 to 3.13, as pyproject.toml says: syntax of the oldest, nothing that a later one has dropped."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("benchmarks", "deploy", "dpswd", "private_curator", "public_client", "shared", "tests")
VERSIONS = sorted(
    tuple(map(int, match.groups()))
    for line in PROJECT["classifiers"]
    if (match := re.fullmatch(r"Programming Language :: Python :: (\d+)\.(\d+)", line))
)


def files() -> list[Path]:
    return [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]


def test_what_is_declared_fits_together():
    assert VERSIONS == [(3, 11), (3, 12), (3, 13)]
    assert PROJECT["requires-python"] == ">=3.11"
    assert sys.version_info[:2] in VERSIONS


def test_what_is_locked_installs_on_the_oldest_ones_first_release():
    """Debian 12 has 3.11.2: a package that asks for 3.11.5 ends both commands of the README there."""
    locked = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    asked = {name: "".join(metadata(name).get_all("Requires-Python", [])) for name in locked if name != "torch"}
    first = f"{VERSIONS[0][0]}.{VERSIONS[0][1]}.0"
    assert len(asked) > 100
    assert {name: text for name, text in asked.items() if first not in SpecifierSet(text)} == {}


def test_every_file_is_written_in_the_oldest_ones_syntax():
    """Whichever version runs this: f-strings with nested quotes and type parameters are of 3.12.

    Where the oldest one itself runs it, the test below compiles every file by it.
    """
    for file in files() if sys.version_info[:2] > VERSIONS[0] else ():
        ast.parse(file.read_text(), filename=str(file), feature_version=VERSIONS[0])
    with pytest.raises(SyntaxError):
        ast.parse("type X = int\ndef f[T](x: T) -> T: ...", feature_version=VERSIONS[0])


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: ".".join(map(str, version)))
def test_every_file_compiles_and_what_it_imports_of_python_is_there(version):
    """By that interpreter itself, warnings of what will go being errors; skipped where there is none."""
    python = sys.executable if version == sys.version_info[:2] else shutil.which(f"python{version[0]}.{version[1]}")
    if python is None or subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip(f"no Python {version[0]}.{version[1]} here")
    code = (
        "import re, sys\n"
        "names = set()\n"
        "for file in sys.stdin.read().splitlines():\n"
        "    text = open(file, encoding='utf-8').read()\n"
        "    compile(text, file, 'exec')\n"
        "    names |= set(re.findall(r'^ *from ([a-z_][\\w.]*) import ', text, re.MULTILINE))\n"
        "    for line in re.findall(r'^ *import ([a-z_][^#\\n]*)', text, re.MULTILINE):\n"
        "        names |= {name.split()[0] for name in line.split(',') if name.strip()}\n"
        "for name in sorted(names):\n"
        "    if name.partition('.')[0] in KNOWN: __import__(name)\n"
    ).replace("KNOWN", repr(set(sys.stdlib_module_names)))
    done = subprocess.run(
        [python, "-W", "error", "-c", code],
        input="\n".join(map(str, files())),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
