"""A public method says what it does, or its base says it: nothing is said twice, and nothing is left unsaid."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WITH_BASES = (
    "public_client/generation", "public_client/methods", "public_client/published_methods", "public_client/replay",
    "shared/published_mechanisms",
)  # fmt: skip
"""As pyproject.toml has them."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def classes_of(source: str) -> list[ast.ClassDef]:
    return list(_classes_in(ast.parse(source))) if "class " in source else []


def _classes_in(node: ast.AST) -> Iterator[ast.ClassDef]:
    """Wherever a statement can stand: no expression has one in it, and most of a tree is expressions."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, part, ()):
            if isinstance(each, ast.ClassDef):
                yield each
            yield from _classes_in(each)


def base_names(owner: ast.ClassDef) -> set[str]:
    """The last words of a class's bases, without what they are generic in."""
    plain = (base.value if isinstance(base, ast.Subscript) else base for base in owner.bases)
    return {base.attr if isinstance(base, ast.Attribute) else base.id for base in plain}


def unsaid(classes: list[ast.ClassDef], everywhere: list[ast.ClassDef]) -> list[str]:
    """Public methods of public classes without a docstring of their own or of a base, which may stand anywhere."""
    by_name: dict[str, list[ast.ClassDef]] = {}
    for one in everywhere:
        by_name.setdefault(one.name, []).append(one)

    def documented(owner: ast.ClassDef, name: str, seen: frozenset[str]) -> bool:
        for base in base_names(owner) - seen:
            for one in by_name.get(base, ()):
                own = [each for each in one.body if isinstance(each, Function) and each.name == name]
                if any(map(ast.get_docstring, own)) or documented(one, name, seen | {base}):
                    return True
        return False

    return [
        f"{owner.name}.{each.name}"
        for owner in classes
        for each in owner.body
        if isinstance(each, Function) and not (each.name.startswith("_") or owner.name.startswith("_"))
        if not ast.get_docstring(each) and not documented(owner, each.name, frozenset({owner.name}))
    ]


def test_every_public_method_has_a_docstring_or_its_base_has():
    """Where ruff does not ask for a docstring of each."""
    files = [file for side in ("public_client", "private_curator", "shared") for file in (ROOT / side).rglob("*.py")]
    classes = {file: classes_of(file.read_text()) for file in files if "_pb2" not in file.name}
    everywhere = [owner for owners in classes.values() for owner in owners]
    for place in WITH_BASES:
        own = [owner for file, owners in classes.items() if file.is_relative_to(ROOT / place) for owner in owners]
        assert own
        assert not unsaid(own, everywhere), place


def test_a_method_without_either_would_be_detected():
    source = """
class A:
    def draw(self):
        '''What it does.'''
class B(A[int]):
    def draw(self): ...
    def other(self): ...
    def _own(self): ...
class C(B):
    def draw(self): ...
"""
    assert unsaid(classes_of(source), classes_of(source)) == ["B.other"]


def test_classes_are_seen_wherever_they_stand():
    source = """
if a:
    class A: ...
else:
    try:
        class B:
            class C: ...
    except E:
        class D: ...
    finally:
        class F: ...
def f():
    match a:
        case 1:
            class G: ...
"""
    assert sorted(one.name for one in classes_of(source)) == ["A", "B", "C", "D", "F", "G"]
