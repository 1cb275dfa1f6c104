"""Which files each page of docs/privacy proves, by digest: ``docs/privacy/proofs.toml``.

    python -m deploy.proofs            # which proofs to look at again
    python -m deploy.proofs --reviewed [PAGE ...]   # somebody looked at them: writes the digests anew

A digest says that somebody held page and file against each other, and nothing of whether they were right.
"""

from __future__ import annotations

import argparse
import hashlib
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "privacy" / "proofs.toml"
_DIGITS = 16
_HEAD = """# What each page of docs/privacy proves: files, and the first digits of their SHA-256 when page and file were
# last held against each other. After a change read the page again, then `make proofs-reviewed PAGES=bracket.md`.
"""

Proofs = Mapping[str, Mapping[str, str]]
"""Digests of files, by page."""


def digest_of(file: Path) -> str:
    """The first digits of a file's SHA-256; of one that is not there, none."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:_DIGITS] if file.is_file() else ""


def read_table(table: Path = TABLE) -> Proofs:
    """The table as it stands."""
    return tomllib.loads(table.read_text(encoding="utf-8"))


def changed(proofs: Proofs, root: Path = ROOT) -> dict[str, list[str]]:
    """Files that are not as they were when their proof was read, by page."""
    changes = {
        page: [name for name, digest in files.items() if digest_of(root / name) != digest]
        for page, files in proofs.items()
    }
    return {page: names for page, names in changes.items() if names}


def reviewed(proofs: Proofs, pages: set[str], root: Path = ROOT) -> dict[str, dict[str, str]]:
    """The table with today's digests of these pages' files."""
    return {
        page: {name: digest_of(root / name) if page in pages else digest for name, digest in files.items()}
        for page, files in proofs.items()
    }


def as_text(proofs: Proofs) -> str:
    """The table's file."""
    tables = (
        "\n".join([f'["{page}"]', *(f'"{name}" = "{digest}"' for name, digest in sorted(files.items()))])
        for page, files in sorted(proofs.items())
    )
    return "\n".join([_HEAD, "\n\n".join(tables)]) + "\n"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m deploy.proofs")
    parser.add_argument("--reviewed", action="store_true", help="write the digests of these pages' files, or of all")
    parser.add_argument("pages", nargs="*", help="names in docs/privacy, such as bracket.md")
    arguments, proofs = parser.parse_args(), read_table()
    if unknown := set(arguments.pages) - set(proofs):
        parser.error(f"no proofs are listed for {', '.join(sorted(unknown))}; allowed are {', '.join(sorted(proofs))}")
    for page, names in changed(proofs).items():
        print(f"docs/privacy/{page} proves what has changed: {', '.join(names)}")
    if arguments.reviewed:
        TABLE.write_text(as_text(reviewed(proofs, set(arguments.pages) or set(proofs))), encoding="utf-8")


if __name__ == "__main__":
    main()
