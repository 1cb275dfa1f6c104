from __future__ import annotations

import re
from pathlib import Path

from dpswd.shared.core import errors

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "api" / "errors.md"


def test_the_drawn_tree_is_the_tree():
    drawn = re.findall(r"[├└]── (\w+)", PAGE.read_text(encoding="utf-8"))
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and name != "DpswdError"}
    defined -= {"dataclass"}
    assert set(drawn) == defined


def test_a_refusal_never_flatters_the_budget():
    text = str(errors.BudgetExhausted(requested=1.00001, spent=0.30001, remaining=0.69999, steps_that_fit=3))
    assert "1.0001" in text
    assert "0.3001" in text
    assert "0.6999" in text
    assert "at most 3 such steps" in text
