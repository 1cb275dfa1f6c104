"""docs/ml-team/extractors.md says what the vocabulary says."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from deploy.extractor_page import limit_table, vocabulary_list
from dpswd.public_client.extractor.modules import INSTEAD, MODULES

PAGE = Path(__file__).parents[4] / "docs" / "ml-team" / "extractors.md"


@pytest.mark.parametrize("generated", [vocabulary_list, limit_table])
def test_the_page_holds_what_is_generated(generated):
    assert generated() in PAGE.read_text(encoding="utf-8"), "run: python -m deploy.extractor_page"


def test_every_layer_that_is_lowered_is_documented():
    page = PAGE.read_text(encoding="utf-8")
    implied = {"InstanceNorm1d", "InstanceNorm2d", "Identity", "Dropout", "Dropout1d", "Dropout2d", "AlphaDropout"}
    for layer in MODULES:
        words = (f"nn.{layer.__name__}", f"adapters.{layer.__name__}")
        assert layer.__name__ in implied or any(word in page for word in words), layer


def test_refused_layers_exist_and_are_not_lowered():
    for name in INSTEAD:
        assert getattr(nn, name) not in MODULES


def test_the_page_s_program_runs(build, capsys):
    """The first Python block, as printed, with a network of the reader's."""
    program = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(program, str(PAGE), "exec"), {"model": build("digits").module})
    assert build("digits").extractor().graph.digest in capsys.readouterr().out
