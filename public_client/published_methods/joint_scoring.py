"""Scoring over several hospitals: a model for each, of what all have released.

Hospitals differ, and not wholly. With s the public source's weights, hospital h has w_h = s + u + d_h, where u is what
all have in common and d_h is its own; both are normal, with deviations t_u and t_d in every weight. Each hospital
answers gradients at its own weights, and `scoring` turns these into A_h and b_h = A_h (w_h - s) + N(0, A_h). The
posterior's means of all w_h together follow in closed form (Lindley and Smith 1972), for each pair of deviations. These
are no settings: they are averaged over, by what they make of the probability of all b_h (empirical Bayes). Hospitals
that turn out alike each get nearly what all of them have said together, others nearly what each has said itself.

Every hospital releases what it would alone, and is charged that: what the others make of it is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpswd.public_client.published_methods.scoring import LEAST, Scoring, go

MOST_WEIGHTS_TOGETHER = 1024
"""Of each classifier: for every deviation of hospitals from what they have in common a (p, p) matrix is taken apart."""
_DEVIATIONS = torch.logspace(-2.0, 0.0, 11, dtype=torch.float64)
"""t_u and t_d that are taken for possible; the ends are those of one hospital's scoring."""
_UNLIKELY = 1e-6  # a pair of deviations with less probability is left out


class JointScoring(torch.optim.Optimizer):
    """`Scoring` of several hospitals' classifiers, by what each has released and by what the others have.

    Args:
        hospitals: each hospital's own scoring, by name; of classifiers that start alike.

    Attributes:
        hospitals: as given. A classifier without a gradient was not answered in this step.
        shares: by name, of each answered gradient in the loss that is descended on, where that is not each by itself.
    """

    def __init__(self, hospitals: Mapping[str, Scoring]) -> None:
        super().__init__([{"params": own.param_groups[0]["params"]} for own in hospitals.values()], {"lr": 1.0})
        self.hospitals = dict(hospitals)
        self.shares: Mapping[str, float] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Takes the present gradients in and takes every classifier to its new mean."""
        for name, own in self.hospitals.items():
            if own.answered:
                own.take(share=self.shares.get(name, 1.0))
        go(list(self.hospitals.values()), means)

    def state_dict(self) -> dict[str, Any]:
        """Of every hospital, by name."""
        return {name: own.state_dict() for name, own in self.hospitals.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up what `state_dict` gave, of the same hospitals."""
        for name, own in self.hospitals.items():
            own.load_state_dict(state_dict[name])


@dataclass(frozen=True)
class _Equations:
    """A hospital's A and b, in A's eigenvectors.

    Attributes:
        seen: (k,) A's eigenvalues, where anything was seen.
        vectors: (p, k).
        along: (k,) b along them.
    """

    seen: Tensor
    vectors: Tensor
    along: Tensor

    @classmethod
    def of(cls, information: Tensor, pull: Tensor) -> _Equations:
        seen, vectors = torch.linalg.eigh(information)
        telling = seen > LEAST * seen[-1].clamp(min=1e-300)
        return cls(seen[telling], vectors[:, telling], vectors[:, telling].T @ pull)

    def way(self, common: Tensor, own: Tensor) -> Tensor:
        """(p,) u + E[d | u, b], for u (p,) and the deviation t_d."""
        missing = self.along - self.seen * (self.vectors.T @ common)
        return common + self.vectors @ (own**2 / (1.0 + own**2 * self.seen) * missing)


def means(equations: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """(p,) of each hospital, the posterior's mean of w_h - s in the prior's units, from its A (p, p) and b (p,)."""
    hospitals = [_Equations.of(*one) for one in equations]
    p = len(equations[0][1])
    evidence, common = [], []
    deviations = _DEVIATIONS.to(equations[0][1])
    squared = deviations[:, None].square()  # (11, 1), of u
    for own in deviations:
        information, pull, without = deviations.new_zeros(p, p), deviations.new_zeros(p), deviations.new_zeros(())
        for one in hospitals:  # b given u is N(A u, A (1 + t_d^2 A))
            spread = 1.0 + own**2 * one.seen
            information += (one.vectors * (one.seen / spread)) @ one.vectors.T
            pull += one.vectors @ (one.along / spread)
            without -= 0.5 * (spread.log() + one.along.square() / (one.seen * spread)).sum()
        seen, vectors = torch.linalg.eigh(information)
        seen, along = seen.clamp(min=0.0), vectors.T @ pull
        shrunk = squared / (1.0 + squared * seen) * along  # (11, p)
        evidence.append(without + 0.5 * (shrunk @ along - (1.0 + squared * seen).log().sum(dim=1)))
        common.append(shrunk @ vectors.T)
    chance = torch.softmax(torch.stack(evidence).flatten(), dim=0).reshape(len(deviations), -1)  # (t_d, t_u)
    posterior = [deviations.new_zeros(p) for _ in hospitals]
    for own, chances, ways in zip(deviations, chance, common, strict=True):
        if float(chances.sum()) < _UNLIKELY:
            continue
        middle = chances @ ways / chances.sum()  # a way is linear in u
        for place, one in enumerate(hospitals):
            posterior[place] += chances.sum() * one.way(middle, own)
    return posterior
