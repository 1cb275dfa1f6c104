"""Every block of code in the README and the docs: Python runs or says why not, every command and option exists."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import textwrap
from pathlib import Path

import click
import pytest

from dpswd.private_curator.cli.main import main as curator
from dpswd.public_client.cli.main import main as client

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS: dict[str, click.Group] = {"dpswd-curator": curator, "dpswd-client": client}
OTHERS = {"bash", "chmod", "cp", "df", "export", "ls", "tar"}
LANGUAGES = {"console", "python", "pycon", "json", "toml", "sql", "text"}
FENCE = re.compile(
    r"(?:<!-- (?P<mark>.+?) -->\n\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)\n *```", re.DOTALL
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(language: str) -> list[tuple[str, str, str]]:
    """(page, the comment before the block, the block) for every fenced block of a language."""
    return [
        (name_of(page), match["mark"] or "", textwrap.dedent(match["indent"] + match["text"]))
        for page in PAGES
        for match in FENCE.finditer(page.read_text())
        if match["language"] == language
    ]


def commands() -> list[tuple[str, str]]:
    """(page, command line) for every ``$`` line of a block, continuation lines joined."""
    lines = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        lines += [(name_of(page), line) for line in re.findall(r"^\s*\$ ([^#\n]*[^#\s])", text, re.MULTILINE)]
    return lines


def test_every_block_says_its_language():
    for page in PAGES:
        for match in FENCE.finditer(page.read_text()):
            assert match["language"] in LANGUAGES, f"{name_of(page)}: {match[0][:80]}"


@pytest.mark.parametrize(("page", "mark", "code"), blocks("json"), ids=lambda given: given[:30])
def test_json_is_json(page, mark, code):
    json.loads(code)


@pytest.mark.parametrize(("page", "mark", "code"), blocks("python"), ids=lambda given: given[:30])
def test_python_is_run_by_a_test_or_says_why_not(page, mark, code):
    compile(code, page, "exec")
    kind, _, said = mark.partition(" by ") if mark.startswith("run by ") else mark.partition(": ")
    assert kind in ("run", "fragment"), f"{page}: write <!-- run by TEST --> or <!-- fragment: REASON --> before it"
    assert said
    if kind == "run":
        assert Path(page).name in (ROOT / said).read_text(), f"{said} does not read {page}"


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda given: given[:60])
def test_a_documented_command_exists_with_its_options(page, line):
    program, *words = shlex.split(line)
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
    elif program == "python":
        assert words[0] == "-c" or importlib.util.find_spec(words[1]), line
    elif Path(program).name not in PROGRAMS:
        assert program in OTHERS, f"{page}: {line}"
    else:
        command: click.Command = PROGRAMS[Path(program).name]
        if words[0] in ("--as", "--credential"):  # the program's own options, with their values
            assert words[0] in {name for parameter in command.params for name in parameter.opts}
            words = words[2:]
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            name = words.pop(0)
            inner = command.get_command(click.Context(command), name)
            assert inner is not None, f"{page}: {program} has no command {name!r}"
            command = inner
        options = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h", "--version"}
        for word in words:
            if word.startswith("-"):
                assert word.split("=")[0] in options, f"{page}: {line!r}: there is no option {word}"
