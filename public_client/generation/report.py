"""One page about a generator, in one HTML file without a network: samples, marginals, price, receipts."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpswd.public_client.generation.export import origin
from dpswd.public_client.generation.generator import Generator
from dpswd.public_client.generation.pictures import is_image, sheet
from dpswd.shared.files import write_public

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:left}"
    "svg{vertical-align:middle}code{overflow-wrap:anywhere}.far{color:#a33}"
)
_WIDTH, _HEIGHT = 240, 16  # pixels of a marginal's picture
_BAND = 1.96
"""Deviations of the noise on either side: 95 in 100 such bands hold what would be released without noise."""
_ROWS = 10  # of records that are no images


def report_page(generator: Generator, *, seed: int = 0) -> str:
    """The page, as HTML."""
    facts = generator.facts
    parts = [
        f"<h1>A generator of {html.escape(str(facts.get('data_set', 'records')))}</h1>",
        (
            "<p>Everything on this page was drawn from the generator or released by the hospital with noise. No record "
            "enters it.</p>"
        ),
        _price(facts),
        "<h2>Samples</h2>",
        _samples(generator, seed),
        _marginals(facts.get("marginals", [])),
        "<h2>Not to be used for</h2><ul>",
        *(f"<li>{html.escape(text)}</li>" for text in facts.get("not_for", ())),
        "</ul>",
    ]
    head = f"<meta charset='utf-8'><title>Generator</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def write_report(generator: Generator, path: Path, *, seed: int = 0) -> None:
    """Writes `report_page` to a file, whole or not at all."""
    write_public(path, report_page(generator, seed=seed).encode("utf-8"))


def _price(facts: Mapping[str, Any]) -> str:
    rows = origin(facts)
    if not rows:
        return "<h2>Price</h2><p>The file states none: treat the rows as private.</p>"
    table = "".join(f"<tr><th>{name}</th><td><code>{html.escape(text)}</code></td></tr>" for name, text in rows.items())
    return f"<h2>Price</h2><table>{table}</table>"


def _samples(generator: Generator, seed: int) -> str:
    if is_image(generator.record_shape):
        data = base64.b64encode(sheet(generator, seed=seed)).decode("ascii")
        return f"<p>A row for each class.</p><img alt='drawn records' src='data:image/png;base64,{data}'>"
    records, labels = generator.sample(_ROWS, seed)
    rows = [
        f"<tr><td>{int(label)}</td><td>{', '.join(f'{value:.3g}' for value in record.flatten().tolist())}</td></tr>"
        for record, label in zip(records, labels, strict=True)
    ]
    return f"<table><tr><th>class</th><th>values</th></tr>{''.join(rows)}</table>"


def _marginals(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    body = []
    for row in rows:
        drawn = row["drawn"]
        far = drawn is None or abs(drawn - row["released"]) > _BAND * row["deviation"]
        text = "none" if drawn is None else f"{drawn:.4f}"
        body.append(
            f"<tr><td>{row['class']}</td><td>{html.escape(row['what'])}</td>"
            f"<td>{row['released']:.4f} &plusmn; {_BAND * row['deviation']:.4f}</td>"
            f"<td class='{'far' if far else ''}'>{text}</td><td>{_picture(row)}</td></tr>"
        )
    head = "<tr><th>class</th><th>figure</th><th>released, 95% noise band</th><th>drawn</th><th></th></tr>"
    return (
        "<h2>What was released, and what is drawn</h2><p>The band is that of the noise alone. Red: the generator's "
        f"draw lies outside of it, where it was fitted less well than the noise allows.</p><table>{head}{''.join(body)}"
        "</table>"
    )


def _picture(row: dict[str, Any]) -> str:
    """The band in grey, the release as a line, the draw as a dot."""
    drawn = row["released"] if row["drawn"] is None else row["drawn"]
    reach = max(2.0 * _BAND * row["deviation"], 1.2 * abs(drawn - row["released"]), 1e-9)

    def at(value: float) -> float:
        return _WIDTH / 2 * (1.0 + (value - float(row["released"])) / float(reach))

    band, middle = _WIDTH * _BAND * row["deviation"] / reach, _WIDTH / 2
    return (
        f"<svg width='{_WIDTH}' height='{_HEIGHT}'><rect x='{middle - band / 2:.1f}' y='3' width='{band:.1f}' "
        f"height='10' fill='#ccc'/><line x1='{middle}' x2='{middle}' y1='1' y2='15' stroke='#555'/>"
        f"<circle cx='{at(drawn):.1f}' cy='8' r='4' fill='#247'/></svg>"
    )
