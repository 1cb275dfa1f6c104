"""Prints docs/reference/settings.md (`make settings-page`)."""

from __future__ import annotations

from pathlib import Path

from dpswd.private_curator.settings.tree import CuratorSettings
from dpswd.public_client.settings import ClientSettings
from dpswd.shared.configuration import markdown

INTRODUCTION = Path(__file__).with_name("settings_page.md")
CURATOR_MARK, CLIENT_MARK = "<!-- curator -->\n", "<!-- client -->\n"


def page() -> str:
    """The whole page, from its introduction and both parties' trees."""
    text = INTRODUCTION.read_text(encoding="utf-8")
    for mark, tree in ((CURATOR_MARK, CuratorSettings), (CLIENT_MARK, ClientSettings)):
        text = text.replace(mark, markdown(tree).rstrip() + "\n")
    return text


if __name__ == "__main__":
    print(page(), end="")
