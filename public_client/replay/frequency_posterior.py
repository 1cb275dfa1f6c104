"""Class frequencies where released coefficients are linear in them: the most probable ones, and draws.

left - slopes^T (w - w0) is noise, and w has a Dirichlet prior around the source's frequencies, whose strength is not
known. The mode is that of the softmax basis (MacKay 1998), under the most probable strength. Draws are of frequencies
and strength together: frequencies by Metropolis steps in the softmax basis, in the shape of the mode's curvature, and
the strength given the frequencies from its few values (Gibbs). So classes that are hard to tell apart move together,
and an absent class lies at 0 with a tail, which no mode with deviations can say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

STRENGTHS = (0.5, 2.0, 8.0, 32.0, 128.0, 512.0, 2048.0)
"""Records of the source that the prior is worth, times the number of classes."""
_NEWTON_STEPS = 40
_CHAINS = 256
_STEPS = 400  # of each chain; the first half is left out
_EVERY = 10  # steps between two draws that are kept
_SHORT = 0.2  # of every fourth step, for where the posterior is narrower than the mode says
_SEED = 14  # of the draws: the same release says the same again, to every process


@dataclass(frozen=True)
class Mode:
    """The most probable frequencies under one strength of the prior.

    Attributes:
        w: (c,).
        covariance: (c, c), of the frequencies.
        curvature: (c - 1, c - 1), of minus the logarithm of the posterior, in the softmax basis.
        log_evidence: of the release and this strength, by Laplace's method.
        occam: the part of it that is not the likelihood at the mode.
    """

    w: Tensor
    covariance: Tensor
    curvature: Tensor
    log_evidence: float
    occam: float


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
        self._strengths = [strength * c for strength in STRENGTHS]

    def best(self) -> Mode:
        """The mode under the most probable strength; the source's own frequencies count as the strongest prior."""
        return max([*map(self._mode, self._strengths), self._fixed()], key=lambda mode: mode.log_evidence)

    def draws(self) -> Tensor:
        """Frequencies from the posterior, the strength of the prior drawn with them, (s, c)."""
        if len(self._source) == 1:
            return torch.ones_like(self._source)[None]
        generator = torch.Generator(device=self._source.device).manual_seed(_SEED)
        modes = [self._mode(strength) for strength in self._strengths]
        strengths = torch.tensor(self._strengths).to(self._source)
        normalised = torch.lgamma(strengths) - torch.lgamma(strengths[:, None] * self._source).sum(dim=1)
        size = self._basis.shape[1]
        # The mode's curvature leaves out how the softmax bends, which for an absent class is all there is: about alpha.
        bent = self._basis.T @ torch.diag(self._source) @ self._basis
        roots = [_root(mode.curvature + one * bent) for mode, one in zip(modes, self._strengths, strict=True)]
        steps = 2.38 / math.sqrt(size) * torch.stack(roots)  # Roberts, Gelman & Gilks 1997
        evidence = torch.tensor([mode.log_evidence for mode in modes]).to(strengths)
        strength = torch.multinomial(torch.softmax(evidence, dim=0), _CHAINS, replacement=True, generator=generator)
        centres = torch.stack([torch.log(mode.w.clamp(min=1e-12)) @ self._basis for mode in modes])
        at, kept = centres[strength], []
        logs = torch.log_softmax(at @ self._basis.T, dim=1)
        for number in range(_STEPS):
            length = _SHORT if number % 4 == 0 else 1.0
            normal = torch.randn(_CHAINS, size, generator=generator, dtype=at.dtype, device=at.device)
            proposed = at + length * (steps[strength] @ normal[:, :, None])[:, :, 0]
            then = torch.log_softmax(proposed @ self._basis.T, dim=1)
            gained = self._log_density(then, strengths[strength]) - self._log_density(logs, strengths[strength])
            uniform = torch.rand(_CHAINS, generator=generator, dtype=at.dtype, device=at.device)
            taken = (torch.log(uniform) < gained)[:, None]
            at, logs = torch.where(taken, proposed, at), torch.where(taken, then, logs)
            weights = torch.softmax(normalised + (logs @ self._source)[:, None] * strengths, dim=1)
            strength = torch.multinomial(weights, 1, generator=generator)[:, 0]
            if number >= _STEPS // 2 and number % _EVERY == 0:
                kept.append(torch.exp(logs))
        return torch.cat(kept)

    def _log_density(self, logs: Tensor, strength: Tensor) -> Tensor:
        """In the softmax basis, up to a constant; logs (s, c) of frequencies, strength (s,)."""
        step = torch.exp(logs) - self._w0
        return step @ self._pulled - 0.5 * (step @ self._gram * step).sum(dim=1) + strength * (logs @ self._source)

    def _square(self, w: Tensor) -> float:
        step = w - self._w0
        return self._constant - 2.0 * float(step @ self._pulled) + float(step @ self._gram @ step)

    def _fixed(self) -> Mode:
        c, source = len(self._source), self._source
        still, flat = torch.zeros(c, c).to(source), torch.eye(c - 1).to(source)
        return Mode(source, still, flat, -0.5 * self._square(source), 0.0)

    def _mode(self, strength: float) -> Mode:
        alpha = strength * self._source
        logs = torch.log((0.98 * self._w0 + 0.02 * self._source).clamp(min=1e-12))

        def energy(logs: Tensor) -> float:
            w = torch.softmax(logs, dim=0)
            return 0.5 * self._square(w) - float(alpha @ torch.log_softmax(logs, dim=0))

        damping, now = 1e-3, energy(logs)
        for _ in range(_NEWTON_STEPS):
            w = torch.softmax(logs, dim=0)
            spread = torch.diag(w) - torch.outer(w, w)
            gradient = spread @ (self._gram @ (w - self._w0) - self._pulled) - alpha + strength * w
            curvature = self._basis.T @ (spread @ self._gram @ spread + strength * spread) @ self._basis
            gradient = self._basis.T @ gradient
            damped = curvature + damping * torch.diag(torch.diagonal(curvature))
            step = self._basis @ torch.linalg.solve(damped, gradient)
            proposed = logs - step * min(1.0, 3.0 / float(step.abs().max().clamp(min=1e-12)))
            then = energy(proposed)
            if then > now:
                damping *= 10.0
                if damping > 1e6:
                    break
                continue
            damping, gained = max(damping * 0.2, 1e-9), now - then
            logs, now = proposed, then
            if gained < 1e-7:
                break
        w = torch.softmax(logs, dim=0)
        spread = torch.diag(w) - torch.outer(w, w)
        curvature = self._basis.T @ (spread @ self._gram @ spread + strength * spread) @ self._basis
        c = len(w)
        log_prior = math.lgamma(strength) - float(torch.lgamma(alpha).sum()) + 0.5 * math.log(c)
        log_prior += float(alpha @ torch.log(w.clamp(min=1e-300)))
        volume = 0.5 * (c - 1) * math.log(2 * math.pi) - 0.5 * float(torch.logdet(curvature))
        covariance = spread @ self._basis @ torch.linalg.inv(curvature) @ self._basis.T @ spread
        return Mode(w, covariance, curvature, -0.5 * self._square(w) + log_prior + volume, log_prior + volume)


def _root(curvature: Tensor) -> Tensor:
    """Of the inverse, (c, c), lower triangular; from the other end, so that nothing is inverted."""
    factor = torch.linalg.cholesky(curvature.flip(0, 1))
    one = torch.eye(len(curvature)).to(curvature)
    root: Tensor = torch.linalg.solve_triangular(factor, one, upper=False).T.flip(0, 1)
    return root
