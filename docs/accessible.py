"""What the theme leaves out for keyboards and screen readers; axe finds nothing on the site then."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

_LABEL = re.compile(r'(<nav class="md-nav" aria-label=")([^"]*)(")')


def on_page_content(html: str, **_: Any) -> str:
    """A wide table can be scrolled by keyboard; its empty corner is no heading."""
    return re.sub(r"<th( [^>]*)?></th>", r"<td\1></td>", html.replace("<table>", '<table tabindex="0">'))


def on_post_page(output: str, **_: Any) -> str:
    """The search and each list of contents have a name of their own."""
    output = output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    seen: Counter[str] = Counter()

    def named(found: re.Match[str]) -> str:
        name = found[2].strip().lower()
        seen[name] += 1
        count = seen[name]
        return found[0] if count == 1 else f"{found[1]}{found[2]}, {count}{found[3]}"

    return _LABEL.sub(named, output)


on_post_template = on_post_page
