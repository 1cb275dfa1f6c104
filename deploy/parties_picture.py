"""docs/figures/parties.svg, the two parties and what passes between them: `python -m deploy.parties_picture`."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "parties.svg"
WIDTH, HEIGHT, BOX = 880, 300, 280
TEAM = ("ML team: public client", "labelled public records", "a model and its training", "receipts of every charge")
HOSPITAL = (
    "Hospital: private curator",
    "records, which never leave",
    "a signed ledger, a budget",
    "the operator and a console",
)
ARROWS = (  # height, whether it goes to the hospital, what passes
    (95, True, "the model as a list of known operations"),
    (160, True, "a question, with its price"),
    (225, False, "noised numbers, once they are charged"),
)


def picture() -> str:
    """The figure as SVG, in colours that can be read on light and on dark pages."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"',
        ' aria-label="The ML team sends a model and questions; the hospital answers with noised numbers"',
        ' font-family="sans-serif" font-size="15">',
        '<defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">',
        '<path d="M0,0 L9,4 L0,8 z" fill="#334155"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#f8fafc"/>',
    ]
    for left, colour, (head, *lines) in ((20, "#1d4ed8", TEAM), (WIDTH - BOX + 20, "#0f766e", HOSPITAL)):
        parts.append(
            f'<rect x="{left}" y="40" width="{BOX - 40}" height="220" rx="8" fill="#ffffff" '
            f'stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(f'<text x="{left + 16}" y="80" font-weight="bold" fill="{colour}">{escape(head)}</text>')
        for number, line in enumerate(lines):
            parts.append(f'<text x="{left + 16}" y="{125 + 42 * number}" fill="#1e293b">{escape(line)}</text>')
    left, right = BOX - 12, WIDTH - BOX + 12
    for height, there, said in ARROWS:
        begin, end = (left, right) if there else (right, left)
        parts.append(
            f'<line x1="{begin}" y1="{height}" x2="{end}" y2="{height}" stroke="#334155" stroke-width="2" '
            'marker-end="url(#tip)"/>'
        )
        parts.append(
            f'<text x="{WIDTH // 2}" y="{height - 10}" text-anchor="middle" fill="#1e293b">{escape(said)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
