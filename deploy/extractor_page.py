"""Vocabulary and limits of docs/ml-team/extractors.md: `python -m deploy.extractor_page` prints them."""

from __future__ import annotations

import sys

from dpswd.shared.sandbox import graph
from dpswd.shared.sandbox.vocabulary import VOCABULARY


def vocabulary_list() -> str:
    """How each operation is written in a module, one a line."""
    return "\n".join(["```text", *(operation.about for operation in VOCABULARY.values()), "```"])


def limit_table() -> str:
    """The limits that a network meets first."""
    rows = (
        ("bytes of a graph", graph.MAX_GRAPH_BYTES),
        ("nodes", graph.MAX_NODES),
        ("numbers in all weights", graph.MAX_PARAMETERS),
        ("numbers of one record", graph.MAX_INPUT_VALUES),
        ("features", graph.MAX_FEATURES),
        ("numbers in all intermediate values of one record", graph.MAX_ACTIVATION_VALUES),
        ("floating point operations of one record", graph.MAX_WORK),
    )
    return "\n".join(["| what | at most |", "|---|---|", *(f"| {what} | {limit:,} |" for what, limit in rows)])


if __name__ == "__main__":
    sys.stdout.write("\n\n".join((vocabulary_list(), limit_table())) + "\n")
