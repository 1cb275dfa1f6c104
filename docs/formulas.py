"""A hook of the site: the pages on privacy write formulas as plain text, the site gives them scripts and Greek letters.

So the pages read well in an editor and in a browser, and no script is loaded to show them. A paragraph that is indented
as code is a formula of its own; its number stands at the end of a line. Backquoted words, headings and the targets of
links are left alone.
"""

from __future__ import annotations

import html
import re

LETTERS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eps": "ε", "theta": "θ", "kappa": "κ",
    "lambda": "λ", "mu": "μ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "Phi": "Φ", "Psi": "Ψ",
    "sqrt": "√",
}  # fmt: skip
SIGNS = LETTERS | {"sum": "∑", "int": "∫", "<=": "≤", ">=": "≥", "!=": "≠", "->": "→"}
# "sum" and "int" are words where no range stands below them.
_SIGN = re.compile(rf"(?<![A-Za-z])(?:(?:sum|int)(?=_)|(?:{'|'.join(LETTERS)})(?![A-Za-z]))|[<>!]=|->")
_KEPT = re.compile(r"(`[^`]*`|^#.*$|\]\([^)]*\))", re.MULTILINE)
_SCRIPT = re.compile(r"[+−-]?\w{1,5}(?!\w)|[+*−-]")  # what a script is without braces; a longer word is a name


def formula(text: str) -> str:
    """Plain text as HTML: ``e^{s H_j}`` gets its scripts, ``sigma`` its letter, ``<u, v>`` its brackets."""
    text = re.sub(r"<(?! )([^<>=]+,\s?[^<>=]+)>", r"⟨\1⟩", text)
    text = _SIGN.sub(lambda found: SIGNS[found[0]], text)
    return _scripts(html.escape(text, quote=False))


def _scripts(text: str) -> str:
    made, at = "", 0
    while at < len(text):
        tag = {"_": "sub", "^": "sup"}.get(text[at])
        inner, end = _script(text, at + 1) if tag and at and not text[at - 1].isspace() else ("", at)
        if inner:
            made += f"<{tag}>{_scripts(inner)}</{tag}>"
            at = end
        else:
            made += text[at]
            at += 1
    return made


def _script(text: str, start: int) -> tuple[str, int]:
    """What stands above or below the line, and where it ends: a group in braces, or one number or short word."""
    if text[start : start + 1] != "{":
        found = _SCRIPT.match(text, start)
        return (found[0], found.end()) if found else ("", start)
    depth = 0
    for end in range(start, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return text[start + 1 : end], end + 1
    return "", start


def _display(block: str, indent: int) -> str:
    lines = []
    for line in block.split("\n"):
        body, number = re.fullmatch(r"(.*?)(?:\s{3,}(\(\w+\)))?\s*", line[indent:]).groups()
        shown = formula(body.replace("-", "−").replace("−>", "->")).replace("   ", "&emsp;&emsp;")
        lines.append(shown + (f'<span class="number">{number}</span>' if number else ""))
    return " " * (indent - 4) + f'<span class="formula">{"<br>".join(lines)}</span>'


def on_page_markdown(markdown: str, *, page, **_: object) -> str:
    """Called by mkdocs for every page before it is rendered."""
    if not page.file.src_uri.startswith("privacy/"):
        return markdown
    paragraphs, in_list = [], False
    for paragraph in re.split(r"\n{2,}", markdown):
        indent = len(paragraph) - len(paragraph.lstrip(" "))
        if indent < 4:
            in_list = re.match(r"(\d+\.|[-*]) ", paragraph) is not None
        code = 8 if in_list else 4
        if indent >= code:
            paragraphs.append(_display(paragraph, code))
        else:
            parts = _KEPT.split(paragraph)
            parts[::2] = map(formula, parts[::2])
            paragraphs.append("".join(parts))
    return "\n\n".join(paragraphs)
