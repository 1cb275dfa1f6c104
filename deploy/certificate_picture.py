"""docs/figures/certificate.svg, what a certificate says: `python -m deploy.certificate_picture`."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "certificate.svg"
WIDTH, ROW, TOP = 880, 30, 96
EDGE = 'stroke="#1d4ed8" stroke-width="2"'
LABEL = "A model's certificate: what it says of the file, and that anyone can derive the file again"
ROWS = {  # by key of the certificate: what stands there, in words
    "model": "digest of the file's bytes",
    "team_model": "digests of the network that it began with, weights and graph",
    "source": "digest of the public records",
    "software": "versions, lock file, processor; whether training repeats bit for bit",
    "evidence": "digest of the hospital's replies and receipts, each signed by its ledger",
    "hospital": "the data set, and the ledger's public key",
    "privacy": "epsilon and delta in all, unit, neighbours, composition",
    "releases": "every mechanism with its noise and epsilon",
    "audited": "what canaries prove of each, and inference from the file, or \u201cnot audited\u201d",
    "gain": "accuracy at this hospital with its error and price, or \u201cnot measured\u201d",
    "conditions": "what the recipient must not do",
    "derivable": "from what the file can be derived again",
    "signed": "by the team\u2019s key that the hospital certified, over each line\u2019s digest",
}


def picture() -> str:
    """The figure as SVG, in colours that can be read on light and on dark pages."""
    height = TOP + ROW * len(ROWS) + 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"',
        f' aria-label="{escape(LABEL)}"',
        ' font-family="sans-serif" font-size="15">',
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#f8fafc"/>',
        f'<rect x="20" y="20" width="{WIDTH - 40}" height="{height - 40}" rx="8" fill="#ffffff" {EDGE}/>',
        '<text x="40" y="60" font-weight="bold" fill="#1d4ed8">adapted.certificate.json</text>',
    ]
    for number, (key, said) in enumerate(ROWS.items()):
        y = TOP + ROW * number
        parts.append(f'<text x="40" y="{y}" font-family="monospace" fill="#0f766e">{key}</text>')
        parts.append(f'<text x="180" y="{y}" fill="#1e293b">{escape(said)}</text>')
    end = TOP + ROW * len(ROWS)
    parts.append(f'<line x1="40" y1="{end - 12}" x2="{WIDTH - 40}" y2="{end - 12}" stroke="#334155"/>')
    parts.append(
        f'<text x="40" y="{end + 20}" fill="#1e293b">dpswd-client check: signatures, ledger and budget hold, '
        "and the model is derived again, bit for bit.</text>"
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
