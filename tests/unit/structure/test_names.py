"""A value is named by what it is and a function by what it does: a bare participle says neither."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("shared", "private_curator", "public_client", "deploy", "benchmarks", "tests")
BANNED = {"told", "known", "kept", "found", "wanted", "honest", "flattered", "twins"}


def defined(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each name that the code makes; names of others, that it reads, are theirs."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield node.lineno, name


def says_nothing(name: str) -> bool:
    return any(word.lower() in BANNED for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))


def names_of(path: Path) -> set[tuple[int, str]]:
    text = path.read_text()  # parsed if one of the words is in it
    return {(0, path.stem), *(defined(ast.parse(text)) if re.search("|".join(BANNED), text, re.IGNORECASE) else ())}


@functools.cache
def violations() -> list[str]:
    """The places of all such names in our code, generated code aside, a module's own name on line 0."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "_pb2" not in path.name]
    assert len(paths) > 800
    return [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted(paths)
        for line, name in sorted(names_of(path))
        if says_nothing(name)
    ]


def test_no_name_is_a_bare_participle():
    listed = "\n".join(violations())
    assert not listed, f"name a value by what it is, a function by what it does, not {sorted(BANNED)}:\n{listed}"


@pytest.mark.parametrize(
    "code",
    [
        "def was_told(): 0", "async def told(): 0", "class ToldOnce: 0", "lambda kept: 0", "def f(*, kept=1): 0",
        "def f(*known, **wanted): 0", "x.kept_rows = 1", "self.found: int = 0", "_KNOWN = 1", "for twins in x: 0",
        "(found := 1)", "[0 for found in x]", "import a as known", "with x as (y, kept): 0",
        "try: 0\nexcept E as found: 0", "match x:\n case [*kept]: 0", "match x:\n case {**kept}: 0",
        "match x:\n case 1 as honest: 0",
    ],
)  # fmt: skip
def test_each_way_to_make_a_name_is_seen(code):
    assert any(says_nothing(name) for _, name in defined(ast.parse(code)))


def test_longer_words_and_the_names_of_others_are_free():
    code = "unknown = message.wanted\nfoundation = f(known=1)\nNotFoundation = 1\nHTTPKeeper = kept"
    assert not [name for _, name in defined(ast.parse(code)) if says_nothing(name)]
