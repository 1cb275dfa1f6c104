"""The formulas of the pages on privacy: what is written as plain text gets scripts and letters, words stay words."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

HOOK = runpy.run_path(str(Path(__file__).resolve().parents[3] / "docs" / "formulas.py"))


def shown(markdown, page="privacy/pld.md"):
    return HOOK["on_page_markdown"](markdown, page=SimpleNamespace(file=SimpleNamespace(src_uri=page)))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("u^j / v^{j-1} >= 0", "u<sup>j</sup> / v<sup>j-1</sup> ≥ 0"),
        ("(p-q)_+^j", "(p-q)<sub>+</sub><sup>j</sup>"),
        ("e^{(S_u-S_{u-v})/2}", "e<sup>(S<sub>u</sub>-S<sub>u-v</sub>)/2</sup>"),
        ("C_gamma at epsilon <= 1", "C<sub>γ</sub> at ε ≤ 1"),
        ("a sum of sum_{j=2}^n", "a sum of ∑<sub>j=2</sub><sup>n</sup>"),
        ("<mu_p - mu_0, u> < 1", "⟨μ<sub>p</sub> - μ<sub>0</sub>, u⟩ &lt; 1"),
        ("2^-11", "2<sup>-11</sup>"),
        ("dp_accounting and deltas", "dp_accounting and deltas"),
        ("`e^epsilon` of [x_1](a_b.md)", "`e^epsilon` of [x<sub>1</sub>](a_b.md)"),
        ("# What sigma_1 is", "# What sigma_1 is"),
        ("an open brace_{ stays", "an open brace_{ stays"),
    ],
)
def test_a_formula_in_a_sentence(written, read):
    assert shown(written) == read


def test_a_formula_of_its_own_keeps_its_lines_and_its_number():
    lines = "a<sub>1</sub> − b,&emsp;&emsp;c", 'd = 1.<span class="number">(3)</span>'
    assert shown("so\n\n    a_1 - b,   c\n    d = 1.        (3)\n\nends") == (
        f'so\n\n<span class="formula">{"<br>".join(lines)}</span>\n\nends'
    )


def test_what_goes_on_in_a_list_is_no_formula_of_its_own():
    assert shown("1. One\n\n    goes on\n\n        x^2\n\nends") == (
        '1. One\n\n    goes on\n\n    <span class="formula">x<sup>2</sup></span>\n\nends'
    )


def test_other_pages_stay_as_they_are():
    assert shown("sigma_1", page="operator/records.md") == "sigma_1"
