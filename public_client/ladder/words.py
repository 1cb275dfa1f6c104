"""What a rung found, in one plain clause; odds and nats stand in the findings of its method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpswd.public_client.normalisation.columns import LEAST_SAID
from dpswd.public_client.normalisation.inference import AS_IT_IS, FREQUENCIES
from dpswd.public_client.normalisation.verdict import PEOPLE, UNDECIDED, Verdict
from dpswd.public_client.probes.probes import INPUT, Place

UNEXPLAINED = (
    "no loss of accuracy can be excluded; labels there would tell (its operator may add some of your model's classes), "
    "or bring a source that is nearer to its records"
)


def of_glance(verdict: Verdict, first: Place, *, images: bool, names: Sequence[str]) -> str:
    """What a glance's verdict says in words; the first layer that it saw, if records are images, columns' names."""
    columns = verdict.columns and verdict.columns.said(names)
    if verdict.outcome == AS_IT_IS:
        return "it sees there what it saw of your source, as far as so small a release can tell"
    if verdict.outcome == UNDECIDED:
        return "something has changed, and a glance does not tell whether other classes or other inputs"
    if verdict.outcome == PEOPLE:
        return f"its people are others than your source's{f', or columns moved ({columns})' if columns else ''}"
    if verdict.outcome == FREQUENCIES:
        assert verdict.frequencies is not None, "set with the outcome"
        rarer = np.argsort(-np.abs(verdict.frequencies - verdict.before))[:3]
        each = "class {}: {:.0%} there, {:.0%} in your source"
        shares = (each.format(verdict.kinds[k], verdict.frequencies[k], verdict.before[k]) for k in rarer)
        return f"its classes are not as frequent as in your source ({'; '.join(shares)})"
    if columns:
        return f"its columns lie elsewhere or have other units ({columns}), and classes may be rarer there"
    means, other = verdict.move[: 2 * first.channels].reshape(2, -1)
    varied = float(np.mean(other - first.single * means**2))  # squares, where a record has one value a channel
    look = ("look noisier, or of more contrast,", "look paler, or blurred,", "look brighter or darker")
    look = look if images else ("vary more", "vary less", "lie higher or lower")
    what = "its inputs" if images or first.path == INPUT else "numbers in its first layer"
    if abs(varied) > LEAST_SAID:
        return f"{what} {look[varied < 0.0]} there"
    if float(np.sqrt(np.mean(means**2))) > LEAST_SAID:
        return f"{what} {look[2]} there"
    return "its deeper layers see something else there than in your source"
