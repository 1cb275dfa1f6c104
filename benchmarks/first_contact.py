"""What a stranger meets first: how much there is to read, how many commands and options, how long to a first result.

    python -m benchmarks.first_contact                    # counts alone, in a second
    python -m benchmarks.first_contact --format json
    python -m benchmarks.first_contact --worst 20         # the longest pages, paragraphs and sentences, to shorten
    python -m benchmarks.first_contact --install          # each party's side in a new environment, then the demo

Words are counted in every page of docs/ and in README.md, code and tables included. The length of a page leaves tables
and code out; paragraphs and sentences are those of prose, and a formula or a number is no word of one.
The tests' `test_budgets.py` holds the figures. --install builds the wheel of this commit, installs it once for
each party with whatever index pip is set to (PyTorch's CPU build first), says megabytes and seconds, and how long a
first result takes with both sides on one machine: install, then `dpswd-client demo`. Else: those on file. Takes no
seeds: nothing is drawn.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from benchmarks import records
from deploy import release

STORED = Path(__file__).parent / "results" / "first-contact.json"
TORCH = "torch==2.13.0"
ROOT = Path(__file__).resolve().parents[1]
BEFORE_IT_WORKS = ("Install", "Tutorials", "How-to")
"""Of the kinds of pages in mkdocs.yml, what is read before it works, beside README.md and docs/README.md."""
_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1\s*$", re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][)\"*]))\s+")
_WORD = re.compile(r"`[^`]*`|[A-Za-z]{2,}")
"""A word of prose: of a formula or a number nobody reads aloud."""
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ")


@dataclass(frozen=True)
class Passage:
    """Words of one page that belong together.

    Attributes:
        page: relative to the repository.
        text: markdown.
    """

    page: str
    text: str

    @property
    def words(self) -> int:
        return sum(1 for token in re.sub(r"`[^`]*`", "`c`", self.text).split() if _WORD.search(token))


def pages() -> list[Path]:
    """README.md and every page of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def kinds() -> dict[str, set[str]]:
    """The pages of each part of the site's navigation, relative to docs/."""

    class Loader(yaml.SafeLoader):
        """mkdocs.yml names functions of its own, which do not matter here."""

    Loader.add_multi_constructor("", lambda *_: None)
    navigation = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)["nav"]
    return {name: set(_within(part)) for each in navigation for name, part in each.items()}


def _within(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from _within(each)


def read_before_it_works() -> set[Path]:
    """README.md, the site's first page, tutorials and how-to."""
    pages_of = kinds()
    pages = {ROOT / "docs" / name for kind in BEFORE_IT_WORKS for name in pages_of[kind]}
    return pages | {ROOT / "README.md", ROOT / "docs" / "README.md"}


def prose(text: str) -> str:
    """A page without code, tables, comments, figures and addresses of links."""
    text = _FENCE.sub("\n\n", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r" *(\||    |!?\[!\[|:::)", line) or _ITEM.match(line)]
    return re.sub(r"(!?\[[^\]]*\])\([^)]*\)", r"\1", "\n".join(lines))


def paragraphs(text: str) -> Iterator[str]:
    """Blocks of prose between empty lines; each item of a list is one."""
    block: list[str] = []
    for line in [*prose(text).splitlines(), ""]:
        begins = bool(_ITEM.match(line)) or line.startswith("#")
        if (not line.strip() or begins) and block:
            yield " ".join(block)
            block = []
        if line.strip() and not line.startswith("#"):
            block.append(_ITEM.sub("", line).strip())


def sentences(text: str) -> Iterator[str]:
    for paragraph in paragraphs(text):
        yield from _SENTENCE.split(paragraph)


def passages() -> dict[str, list[Passage]]:
    """Pages, paragraphs and sentences, the longest first."""
    by_kind: dict[str, list[Passage]] = {"page": [], "paragraph": [], "sentence": []}
    for path in pages():
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        by_kind["page"].append(Passage(name, prose(text)))
        by_kind["paragraph"] += [Passage(name, each) for each in paragraphs(text)]
        by_kind["sentence"] += [Passage(name, each) for each in sentences(text)]
    return {kind: sorted(each, key=lambda one: -one.words) for kind, each in by_kind.items()}


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The commands that do something, by their words."""
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None and not below.hidden:
            yield from leaves(below, (*path, name))


def counted() -> dict[str, Any]:
    """All figures but the time."""
    from dpswd.private_curator.cli.main import main as curator
    from dpswd.public_client.cli.main import main as client

    texts = {path: len(path.read_text(encoding="utf-8").split()) for path in pages()}
    longest = {kind: each[0] for kind, each in passages().items()}
    train = client.get_command(click.Context(client), "train")
    assert train is not None
    commands = {"dpswd-curator": [*leaves(curator)], "dpswd-client": [*leaves(client)]}
    return {
        "words": sum(texts.values()),
        "words_before_it_works": sum(texts[path] for path in read_before_it_works()),
        "longest_page": longest["page"].words,
        "longest_paragraph": longest["paragraph"].words,
        "longest_sentence": longest["sentence"].words,
        "commands": sum(map(len, commands.values())),
        "options": sum(isinstance(each, click.Option) and not each.hidden for each in train.params),
        "where": {kind: f"{each.page}: {each.text[:80]}" for kind, each in longest.items()},
        "commands_of": {program: [" ".join(each) for each in own] for program, own in commands.items()},
    }


def installed(wheel: Path, extras: str, folder: Path) -> dict[str, float]:
    """A new virtual environment for one party.

    Args:
        wheel: of the product.
        extras: "client", "curator" or both with a comma.
        folder: of the environment.

    Returns:
        megabytes on disk and seconds that it took.
    """
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    for asked in (TORCH, f"{wheel}[{extras}]"):  # PyTorch first, or its CUDA build comes along
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", asked], check=True)
    seconds = time.monotonic() - begun
    held = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    return {"megabytes": round(held / 1e6), "seconds": round(seconds)}


def first_result(wheel: Path, folder: Path) -> records.Row:
    """Both sides on one machine, as `installed`, and when a first model is adapted: the demo's end."""
    begun = time.monotonic()
    row = installed(wheel, "client,curator", folder)
    demo = [folder / "bin" / "dpswd-client", "demo", "--output", folder / "demo"]
    subprocess.run(demo, check=True, stdout=subprocess.DEVNULL)
    return row | {"seconds_to_first_result": round(time.monotonic() - begun)}


def install(rows: records.Rows) -> None:
    """Measures each party's install and a first result, of the wheel of this commit."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheel = release.rebuilt("HEAD", folder / "dist")
        rows.run(
            [
                ({"install": "client"}, lambda: installed(wheel, "client", folder / "client")),
                ({"install": "curator"}, lambda: installed(wheel, "curator", folder / "curator")),
                ({"install": "client,curator"}, lambda: first_result(wheel, folder / "both")),
            ]
        )


def on_file(path: Path) -> dict[str, dict[str, float]]:
    """What was measured with --install, by extras."""
    return {row["install"]: row for row in records.read(path)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.add_argument("--worst", type=int, default=0, help="print so many of the longest of each kind")
    parser.add_argument("--install", action="store_true", help="install each side now, and time a first result")
    records.options(parser, STORED)
    arguments = parser.parse_args()
    rows = records.Rows(STORED, arguments.results)
    if arguments.install:
        install(rows)
    for kind, each in passages().items() if arguments.worst else ():
        print(f"\nlongest of kind {kind}:")
        for one in each[: arguments.worst]:
            print(f"{one.words:6d}  {one.page}: {one.text[:90]!r}")
    measured = on_file(rows.path if arguments.install else arguments.results or STORED)
    both = measured.get("client,curator", {})
    figures = counted() | {"seconds_to_first_result": both.get("seconds_to_first_result"), "install": measured}
    if arguments.format == "json":
        print(json.dumps(figures, indent=1))
    else:
        print("\n".join(f"{name:22} {value}" for name, value in figures.items() if not isinstance(value, dict)))


if __name__ == "__main__":
    main()
