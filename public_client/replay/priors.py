"""Other class frequencies in a classifier's scores, by as much as is safe.

log(target's / source's frequency) added to the scores is Bayes' rule for new priors (Saerens, Latinne & Decaestecker
2002). The frequencies come from a release, so they are uncertain: what a correction gains or costs is asked of their
whole posterior. Both are read twice: on what the classifier says of the records that it was trained on, which shows too
little of either where it knows them by heart, and on what its twins say of records that they were not trained on
(`cross_fitting`), which shows rather too much, as they have seen fewer. A correction must be safe by both, and gain by
the twins.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.extractor.adapter_layers import filled_linear
from dpswd.public_client.replay.cross_fitting import OutOfFold

_LEAST_WEIGHT = 1e-3  # of a class
SHARES = (1.0, 0.75, 0.5, 0.25)
"""Of the logarithms that correct priors: the first that is safe enough is taken, or the model is kept."""
UNSURE = 0.02
"""Part of the plausible class frequencies that may cost more than the bound below,"""
MOST_LOST = 0.5
"""in percentage points of accuracy, if priors are corrected."""


@dataclass(frozen=True)
class Safe:
    """A correction.

    Attributes:
        weights: (classes,), whose logarithms are to be added to the scores; None if none is safe and gains.
        reason: in words.
    """

    weights: Tensor | None
    reason: str


@torch.no_grad()
def safe_weights(out_of_fold: OutOfFold, labels: Tensor, weights: Tensor, draws: Tensor) -> Safe:
    """As much of a correction as is safe, if any is.

    Args:
        out_of_fold: scores (m, classes) of the source's records.
        labels: (m,), theirs.
        weights: (classes,), the target's most useful frequency of each class over the source's.
        draws: (s, classes), plausible ones.
    """
    caveat = ""
    for share in SHARES:
        part = prior_weights(weights, share)
        own, gains = (_gains(scores, labels, part, draws) for scores in (out_of_fold.in_sample, out_of_fold.scores))
        low, high = (float(gains.quantile(end)) for end in (UNSURE, 1.0 - UNSURE))
        least = float(own.quantile(UNSURE))
        caveat = (
            f"{low:+.1f} to {high:+.1f} points of accuracy by the plausible frequencies and scores {out_of_fold.origin}"
            f", and {least:+.1f} at least by the model's own"
        )
        if min(low, least) > -MOST_LOST and float(gains.mean()) > 0.0:
            much = "" if share == 1.0 else f" by {share:.0%} of it, as frequencies are uncertain"
            return Safe(part, f"scores are corrected{much}: {caveat}")
    return Safe(None, f"correcting scores by class frequencies this uncertain may do harm ({caveat})")


def _gains(scores: Tensor, labels: Tensor, weights: Tensor, draws: Tensor) -> Tensor:
    """(s,), in percentage points."""
    return frequency_gains(changes(scores, scores + torch.log(weights), labels), labels, draws)


def changes(before: Tensor, after: Tensor, labels: Tensor) -> Tensor:
    """Of each record, (m,): 100 if only the later scores (m, classes) are right, -100 if only the earlier ones."""
    first, second = (scores.argmax(dim=1) == labels for scores in (before, after))
    return 100.0 * (second.double() - first.double())


def prior_weights(weights: Tensor, share: float) -> Tensor:
    """Class weights (classes,) of which so much of the logarithm is left; a class that seems absent may still come."""
    return weights.clamp(min=_LEAST_WEIGHT) ** share


def frequency_gains(changes: Tensor, labels: Tensor, draws: Tensor) -> Tensor:
    """Gains in accuracy, which are linear in class frequencies: each class's own on the source, times its frequency.

    Args:
        changes: (m,), of each source record: what it gains.
        labels: (m,).
        draws: (s, classes), plausible frequencies of each class over the source's.

    Returns:
        (s,), with the chance in the source's records added, in the unit of `changes`.
    """
    means, variances, shares = _by_class(changes, labels, draws)
    chance = torch.randn(len(shares), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(shares)
    return shares @ means + chance * (shares.square() @ variances).sqrt()


def expected_change(changes: Tensor, labels: Tensor, weights: Tensor) -> tuple[float, float]:
    """The mean change where classes are as frequent as `weights` (classes,) say, and its standard error by chance."""
    means, variances, shares = _by_class(changes, labels, weights[None])
    return float(shares @ means), float((shares.square() @ variances).sqrt())


def _by_class(changes: Tensor, labels: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean change (classes,) of each class, the variance of each mean, and the draws as frequencies (s, classes)."""
    onehot = functional.one_hot(labels, draws.shape[1]).double()  # (m, c)
    counts = onehot.sum(dim=0).clamp(min=1.0)
    means = onehot.T @ changes / counts
    # With one record more, which varies as all do: a class of a single record would seem sure.
    variances = (onehot.T @ (changes - means[labels]).square() + changes.var(unbiased=False)) / counts.square()
    shares = draws.double() * onehot.mean(dim=0)
    return means, variances, shares / shares.sum(dim=1, keepdim=True)


def with_priors(classifier: nn.Module, weights: Tensor) -> nn.Module:
    """A copy that adds log weights to the scores.

    Args:
        classifier: features to scores (m, classes) whose softmax is a probability on the source.
        weights: (classes,) the target's class frequencies over the source's.
    """
    last = filled_linear(torch.eye(len(weights)).to(weights), torch.log(weights.clamp(min=_LEAST_WEIGHT)))
    return nn.Sequential(copy.deepcopy(classifier), last).eval()
