"""docs/errors.md says what the table of errors says."""

from __future__ import annotations

import re
from pathlib import Path

from dpswd.shared.protocol.status import REASONS

PAGE = Path(__file__).resolve().parents[4] / "docs" / "errors.md"


def test_the_page_has_every_reason_with_its_status_and_exception():
    rows = re.findall(r"^\| \[`(\w+)`\]\(errors/\1\.md\) \| (\w+) \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [(row.reason, row.code.name, row.error.__name__) for row in REASONS]
