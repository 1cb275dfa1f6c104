"""Lowering of comparisons and of what is done with their results: logic, selection, filling.

A truth is 1.0 or 0.0 in a graph, so `.float()` of it changes nothing.
"""

from __future__ import annotations

from typing import Any

from dpswd.public_client.extractor.functions import Function, binary, negative
from dpswd.public_client.extractor.lowering import UNKNOWN, Builder, Refused, Traced, Truth
from dpswd.public_client.extractor.unlowered import Held

_MASKED = 1e6
"""Stands for an infinite number in `masked_fill`: far beyond scores of attention, whose softmax gives 0 for both."""


def compare(name: str) -> Function:
    """A comparison, by the name that the operator module gives it."""

    def lower(builder: Builder, input: Any, other: Any) -> Any:
        if not isinstance(input, (Traced, Held)) and not isinstance(other, (Traced, Held)):
            raise Refused(f"{name} of these operands is not in the vocabulary", "compare tensors and constants")
        if name in ("gt", "ge"):
            return compare({"gt": "lt", "ge": "le"}[name])(builder, other, input)
        if name == "le":  # less or equal, so that NaN is neither
            below, same = (_compared(builder, one, input, other) for one in ("lt", "eq"))
            return truth(builder.emit("add", below, same))
        if name == "ne":
            return negation(builder, _compared(builder, "eq", input, other))
        return truth(_compared(builder, name, input, other))

    return lower


def truth(value: Traced) -> Traced:
    """A value of 1.0 and 0.0 as what a comparison gives."""
    return Truth(value.number, value.shape)


def as_scores(builder: Builder, mask: Any, sides: int, *, keep: bool) -> Any:
    """What is added to scores of attention before the softmax.

    Args:
        builder: of the graph.
        mask: truths, or numbers to be added.
        sides: of the scores of one record.
        keep: whether truths say where to look, not where not to.
    """
    if isinstance(mask, Held):
        mask = truth(mask.beside(builder, sides)) if mask.truth else mask.beside(builder, sides)
    if mask is UNKNOWN:
        return UNKNOWN
    if isinstance(mask, Truth):
        gain, shift = (_MASKED, -_MASKED) if keep else (-_MASKED, 0.0)
        mask = builder.emit("scale_shift", mask, gain=gain, shift=shift)
    return builder.reshape(mask, (1,) * (sides - len(mask.shape)) + mask.shape)


def _compared(builder: Builder, name: str, a: Any, b: Any) -> Traced:
    """A < b or a == b."""
    word = {"lt": "less", "eq": "equal"}[name]
    if isinstance(a, Held) and isinstance(b, Traced):
        a = a.beside(builder, len(b.shape))
    if isinstance(b, Held) and isinstance(a, Traced):
        b = b.beside(builder, len(a.shape))
    if isinstance(a, Traced) and isinstance(b, Traced):
        return builder.emit(word, a, b)
    if isinstance(a, Traced) and type(b) in (int, float):
        return builder.emit("less_than" if name == "lt" else "equal_to", a, constant=b)
    if isinstance(b, Traced) and type(a) in (int, float):
        if name == "eq":
            return builder.emit("equal_to", b, constant=a)
        return builder.emit("less_than", negative(builder, b), constant=-a)  # a < b
    raise Refused("a comparison of these operands is not in the vocabulary", "compare tensors and constants")


def negation(builder: Builder, input: Traced) -> Traced:
    """~mask, torch.logical_not(mask)."""
    return truth(builder.emit("scale_shift", input, gain=-1.0, shift=1.0))


def both(builder: Builder, input: Any, other: Any) -> Any:
    """Mask & mask."""
    return truth(binary("mul")(builder, input, other))


def either(builder: Builder, input: Any, other: Any) -> Any:
    """Mask | mask."""
    return negation(builder, both(builder, negation(builder, input), negation(builder, other)))


def missing(builder: Builder, input: Traced) -> Traced:
    """torch.isnan(x): what does not equal itself."""
    return negation(builder, builder.emit("equal", input, input))


def nan_to_num(
    builder: Builder, input: Traced, nan: float | None = 0.0, posinf: Any = None, neginf: Any = None
) -> Traced:
    """torch.nan_to_num; infinite numbers become the largest ones."""
    if posinf is not None or neginf is not None:
        raise Refused("nan_to_num with a number of one's own for infinity", "give nan alone")
    return builder.emit("nan_to_num", input, nan=nan or 0.0)


def where(builder: Builder, condition: Traced, input: Any, other: Any) -> Any:
    """torch.where(mask, x, y): x * mask + y * (1 - mask), since a choice would tell by its time what is chosen."""
    chosen = binary("mul")(builder, condition, _finite(input))
    return binary("add")(builder, chosen, binary("mul")(builder, negation(builder, condition), _finite(other)))


def masked_fill(builder: Builder, input: Traced, mask: Any, value: Any) -> Any:
    """x.masked_fill(mask, -inf) and the like."""
    return where(builder, mask, value, input)


def _finite(value: Any) -> Any:
    """Minus infinity as a large number, which a graph can hold and 0 can be multiplied with."""
    return max(-_MASKED, min(_MASKED, float(value))) if type(value) in (int, float) else value
