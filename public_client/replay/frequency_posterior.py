"""Class frequencies where released coefficients are linear in them: the most probable ones, and draws.

left - slopes^T (w - w0) is noise, and w has a Dirichlet prior whose strength is not known. For the most probable
frequencies it is around the source's: the mode is that of the softmax basis (MacKay 1998), under the most probable
strength.

Draws know more of how frequencies differ between two sites: *some classes are rare or absent, and the others keep their
proportions*, more or less. The prior of draws is a mixture: any set of classes may be rarer by one of `RARER`, the
Dirichlet is around the source's frequencies with these rarer, and its strength says how strictly proportions are kept;
no class rarer and a weak prior are among them, for frequencies that changed in any other way. Sets are searched from
that mode (`_components`), and frequencies and the prior's component are drawn together: frequencies by Metropolis steps
in the softmax basis, in the shape of the component's curvature, and the component given the frequencies (Gibbs). So
classes that are hard to tell apart move together, and an absent class lies at 0, surely so or with a tail.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

STRENGTHS = (0.5, 2.0, 8.0, 32.0, 128.0, 512.0, 2048.0)
"""Records of the source that the prior is worth, for each class."""
RARER = (0.1, 0.01, 0.001)
"""What rare classes may be of their share in the source, beside the common ones."""
_NEWTON_STEPS = 40
_SMOOTHED = 0.02  # of where Newton's steps begin, from the prior's centre
_AT_ONCE = 2**22  # numbers of matrices that are solved at once
_SEARCHED = 16  # classes up to which sets are searched by each class's change and exchange; else along one order
_MOST_CUTS = 16  # of that order
_MOST_CURVATURES = 2**25  # numbers of curvatures that the cuts' priors may have: of many classes fewer cuts are tried
_ROUNDS = 20  # of the search
_FAR = 10.0  # nats behind the best component that one is left out
_CHAINS = 256
_STEPS = 400  # of each chain; the first half is left out
_EVERY = 10  # steps between two draws that are kept
_SHORT = 0.2  # of every fourth step, for where the posterior is narrower than the mode says
_SEED = 14  # of the draws: the same release says the same again, to every process

Rare = tuple[bool, ...]


@dataclass(frozen=True)
class Mode:
    """The most probable frequencies under one strength of the prior around the source's.

    Attributes:
        w: (c,).
        covariance: (c, c), of the frequencies.
        log_evidence: of the release and this strength, by Laplace's method.
        occam: the part of it that is not the likelihood at the mode.
    """

    w: Tensor
    covariance: Tensor
    log_evidence: float
    occam: float


class _Modes(NamedTuple):
    """Under b Dirichlet priors.

    Attributes:
        alpha: (b, c), of the priors.
        log_prior: (b,), the logarithm of each prior's own probability.
        logs: (b, c), of the most probable frequencies.
        curvature: (b, c - 1, c - 1), of minus the logarithm of the posterior there, in the softmax basis.
        log_evidence: (b,), with `log_prior`.
    """

    alpha: Tensor
    log_prior: Tensor
    logs: Tensor
    curvature: Tensor
    log_evidence: Tensor

    def some(self, chosen: Tensor) -> _Modes:
        """Those of the priors that `chosen` (b,) holds."""
        return _Modes(*(values[chosen] for values in self))


class LinearPosterior:
    """The posterior of class frequencies around w0.

    Args:
        left: (N,), released coefficients less those at w0, in units of the noise.
        slopes: (N, c), by class, in units of the noise.
        w0: (c,).
        source: (c,), the source's frequencies, all positive.
    """

    def __init__(self, left: Tensor, slopes: Tensor, w0: Tensor, source: Tensor) -> None:
        self._w0, self._source = w0, source
        self._gram, self._pulled = slopes.T @ slopes, slopes.T @ left
        self._constant = float(left.square().sum())
        c = len(source)
        centred = torch.eye(c).to(source) - 1.0 / c
        self._basis = torch.linalg.eigh(centred)[1][:, 1:]  # (c, c - 1), orthogonal to ones
        self._strengths = torch.tensor([strength * c for strength in STRENGTHS]).to(source)

    def best(self) -> Mode:
        """The mode under the most probable strength; the source's own frequencies count as the strongest prior."""
        c, source = len(self._source), self._source
        fixed = Mode(source, torch.zeros(c, c).to(source), -0.5 * float(self._squares(source[None])), 0.0)
        modes = self._modes(self._strengths[:, None] * source, torch.zeros_like(self._strengths))
        one = int(modes.log_evidence.argmax())
        log_evidence = float(modes.log_evidence[one])
        if log_evidence <= fixed.log_evidence:
            return fixed
        w = torch.exp(modes.logs[one])
        turned = _spread(w) @ self._basis
        covariance = turned @ torch.linalg.inv(modes.curvature[one]) @ turned.T
        return Mode(w, covariance, log_evidence, log_evidence + 0.5 * float(self._squares(w[None])))

    def most_probable(self) -> Tensor:
        """(c,), under the most probable component of the prior of draws."""
        of = self._components
        return torch.exp(of.logs[int(of.log_evidence.argmax())]) if len(of.logs) else self.best().w

    def draws(self) -> Tensor:
        """Frequencies from the posterior, the component of the prior drawn with them, (s, c)."""
        if len(self._source) == 1:
            return torch.ones_like(self._source)[None]
        generator = torch.Generator(device=self._source.device).manual_seed(_SEED)
        of = self._components
        # The mode's curvature leaves out how the softmax bends, which for an absent class is all there is: about alpha.
        bent = self._basis.T @ torch.diag_embed(of.alpha) @ self._basis
        roots, whole = _roots(of.curvature + bent)
        if not whole.any():
            return self.best().w[None]
        of, size = of.some(whole), self._basis.shape[1]
        # Of each component, with its Dirichlet's constant.
        priors = of.log_prior + torch.lgamma(of.alpha.sum(dim=1)) - torch.lgamma(of.alpha).sum(dim=1)
        steps = 2.38 / math.sqrt(size) * roots[whole]  # Roberts, Gelman & Gilks 1997
        weights = torch.softmax(of.log_evidence, dim=0)
        component = torch.multinomial(weights, _CHAINS, replacement=True, generator=generator)
        at, drawn = (of.logs @ self._basis)[component], []
        logs = torch.log_softmax(at @ self._basis.T, dim=1)
        for number in range(_STEPS):
            length = _SHORT if number % 4 == 0 else 1.0
            normal = torch.randn(_CHAINS, size, generator=generator, dtype=at.dtype, device=at.device)
            proposed = at + length * (steps[component] @ normal[:, :, None])[:, :, 0]
            then = torch.log_softmax(proposed @ self._basis.T, dim=1)
            gained = self._log_density(then, of.alpha[component]) - self._log_density(logs, of.alpha[component])
            uniform = torch.rand(_CHAINS, generator=generator, dtype=at.dtype, device=at.device)
            taken = (torch.log(uniform) < gained)[:, None]
            at, logs = torch.where(taken, proposed, at), torch.where(taken, then, logs)
            if number % 4 == 0:  # the largest of log probabilities with Gumbel noise is a draw (Gumbel 1954)
                uniform = torch.rand(_CHAINS, len(priors), generator=generator, dtype=at.dtype, device=at.device)
                component = (priors + logs @ of.alpha.T - torch.log(-torch.log(uniform))).argmax(dim=1)
            if number >= _STEPS // 2 and number % _EVERY == 0:
                drawn.append(torch.exp(logs))
        return torch.cat(drawn)

    @cached_property
    def _components(self) -> _Modes:
        """The plausible components of the prior of draws; none where rounding has left nothing of any."""
        c = len(self._source)
        modes: dict[Rare, _Modes] = {}

        def best(of: Iterable[Rare]) -> Rare:
            """Of these sets and all that were looked at before."""
            fresh = [rare for rare in of if rare not in modes and not all(rare)]
            if fresh:
                priors = [self._priors(rare) for rare in fresh]
                them = self._modes(*(torch.cat(parts) for parts in zip(*priors, strict=True)))
                sizes = [len(alpha) for alpha, _ in priors]
                own = zip(*(torch.split(values, sizes) for values in them), strict=True)
                modes.update(zip(fresh, itertools.starmap(_Modes, own), strict=True))
            return max(modes, key=lambda rare: float(modes[rare].log_evidence.max()))

        order = (self.best().w / self._source).argsort().argsort().tolist()

        def cut(counts: Iterable[int]) -> list[Rare]:
            """The sets of so many classes whose shares fell most."""
            return [tuple(place < count for place in order) for count in counts if 0 <= count < c]

        affordable = _MOST_CURVATURES // (len(RARER) * len(STRENGTHS) * c**2)
        cuts = sorted({round(k) for k in torch.linspace(0, c - 1, min(c, _MOST_CUTS, max(1, affordable))).tolist()})
        at = best(cut(cuts))
        if c <= _SEARCHED:
            for _ in range(_ROUNDS):
                before, at = at, best(_neighbours(at))
                if at == before:
                    break
        elif len(cuts) == _MOST_CUTS:
            apart = -(-c // _MOST_CUTS)
            while apart > 1:
                apart = -(-apart // 2)
                at = best(cut((sum(at) - apart, sum(at) + apart)))
        every = _Modes(*(torch.cat(parts) for parts in zip(*modes.values(), strict=True)))
        return every.some(every.log_evidence > every.log_evidence.max() - _FAR)

    def _priors(self, rare: Rare) -> tuple[Tensor, Tensor]:
        """Of one set of classes: Dirichlets (b, c), and the logarithm of each one's probability, (b,).

        Any number of rare classes is as probable as any other, and so is any set of as many.
        """
        c, count = len(rare), sum(rare)
        factors = torch.tensor(RARER if count else (1.0,)).to(self._source)
        centres = self._source * torch.where(torch.tensor(rare).to(self._source.device), factors[:, None], 1.0)
        centres = centres / centres.sum(dim=1, keepdim=True)
        alpha = (self._strengths[:, None, None] * centres).flatten(0, 1)
        probability = 1.0 / (c * math.comb(c, count) * len(alpha))
        return alpha, torch.full((len(alpha),), math.log(probability)).to(alpha)

    def _log_density(self, logs: Tensor, alpha: Tensor) -> Tensor:
        """In the softmax basis, up to a constant; logs (s, c) of frequencies, alpha (s, c) of the priors."""
        return -0.5 * self._squares(torch.exp(logs)) + (alpha * logs).sum(dim=1)

    def _squares(self, w: Tensor) -> Tensor:
        """Squared residuals (s,) at frequencies (s, c)."""
        step = w - self._w0
        return self._constant - 2.0 * step @ self._pulled + (step @ self._gram * step).sum(dim=1)

    def _modes(self, alpha: Tensor, log_prior: Tensor) -> _Modes:
        """Under Dirichlet priors (b, c), which have these log probabilities (b,) themselves."""
        at_once = max(1, _AT_ONCE // alpha.shape[1] ** 2)
        parts = [self._some_modes(part) for part in torch.split(alpha, at_once)]
        logs, curvature, log_evidence = (torch.cat(own) for own in zip(*parts, strict=True))
        return _Modes(alpha, log_prior, logs, curvature, log_evidence + log_prior)

    def _some_modes(self, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """By damped Newton steps in the softmax basis: logs, curvature, log evidence by Laplace's method."""
        c, strength = alpha.shape[1], alpha.sum(dim=1)
        logs = torch.log(((1.0 - _SMOOTHED) * self._w0 + _SMOOTHED * alpha / strength[:, None]).clamp(min=1e-12))
        logs = torch.log_softmax(logs, dim=1)
        damping, now = torch.full_like(strength, 1e-3), -self._log_density(logs, alpha)
        for _ in range(_NEWTON_STEPS):
            curvature, gradient = self._curvature(logs, alpha)
            damped = curvature + damping[:, None, None] * torch.diag_embed(curvature.diagonal(dim1=1, dim2=2))
            step, singular = torch.linalg.solve_ex(damped, gradient)
            step = torch.where(singular[:, None] == 0, step, 0.0) @ self._basis.T
            step = step * (3.0 / step.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
            proposed = torch.log_softmax(logs - step, dim=1)
            then = -self._log_density(proposed, alpha)
            better = then <= now
            gained = torch.where(better, now - then, 0.0)
            logs, now = torch.where(better[:, None], proposed, logs), torch.where(better, then, now)
            damping = torch.where(better, (0.2 * damping).clamp(min=1e-9), 10.0 * damping)
            if bool(((better & (gained < 1e-7)) | (damping > 1e6)).all()):
                break
        curvature, _ = self._curvature(logs, alpha)
        log_prior = torch.lgamma(strength) - torch.lgamma(alpha).sum(dim=1) + 0.5 * math.log(c)
        root, failed = torch.linalg.cholesky_ex(curvature)
        volume = 0.5 * (c - 1) * math.log(2 * math.pi) - root.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        # A class so rare that its curvature is lost in rounding: such a prior is left out.
        log_evidence = -now + log_prior + volume
        return logs, curvature, torch.where((failed == 0) & log_evidence.isfinite(), log_evidence, -math.inf)

    def _curvature(self, logs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Of minus the logarithm of the posterior (b, c - 1, c - 1), and its gradient (b, c - 1)."""
        w, strength = torch.exp(logs), alpha.sum(dim=1, keepdim=True)
        spread = _spread(w)
        pull = (w - self._w0) @ self._gram - self._pulled
        gradient = (spread @ pull[:, :, None])[:, :, 0] - alpha + strength * w
        curvature = self._basis.T @ (spread @ self._gram @ spread + strength[:, :, None] * spread) @ self._basis
        return curvature, gradient @ self._basis


def _neighbours(rare: Rare) -> Iterator[Rare]:
    """Sets in which one class changed, or a rare and a common one changed places."""
    for i, one in enumerate(rare):
        yield (*rare[:i], not one, *rare[i + 1 :])
        for j, other in enumerate(rare[:i]):
            if one != other:
                yield (*rare[:j], one, *rare[j + 1 : i], other, *rare[i + 1 :])


def _spread(w: Tensor) -> Tensor:
    """Derivatives (..., c, c) of the softmax at frequencies (..., c)."""
    return torch.diag_embed(w) - w[..., :, None] * w[..., None, :]


def _roots(curvature: Tensor) -> tuple[Tensor, Tensor]:
    """Of the inverses, (b, c, c), lower triangular, from the other end, so that nothing is inverted; (b,) whether."""
    factor, failed = torch.linalg.cholesky_ex(curvature.flip(-2, -1))
    whole = failed == 0
    one = torch.eye(curvature.shape[-1]).to(curvature).expand_as(curvature)
    factor = torch.where(whole[:, None, None], factor, one)
    root: Tensor = torch.linalg.solve_triangular(factor, one, upper=False).mT.flip(-2, -1)
    return root, whole
