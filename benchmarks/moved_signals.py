"""Signals without labels that were recorded otherwise: upside down, of another gain, noisier, slower; by the ladder.

    python -m benchmarks.moved_signals run [--seeds 1,2] [--results FILE]
    python -m benchmarks.moved_signals summary [--results FILE] [--format json]

Made heartbeats in four classes (narrow, early, wide and notched ones; amplitudes, widths, places and wander vary), 187
samples of one lead, or 150 of three leads. The team has 4,000 of them, a hospital 3,000, and accuracy is measured on
3,000 others like the hospital's. Models: a convolutional network (BatchNorm), an LSTM of eleven samples a step, and a
transformer of patches for one lead; a GRU behind a convolution and a convolutional network for three. Gains and
signs were made on another generator of beats; the look back after seed 0's slower and noisier signals were seen here,
so that the figures are of seeds 1 and 2.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks import records
from dpswd import Hospital, MockCurator, adapt, mock_description

RESULTS = Path(__file__).parent / "results" / "moved_signals.json"
SEEDS = 1, 2
SOURCE, RECORDS, EPSILONS, DELTA, EPOCHS = 4000, 3000, (1.0, 0.3), 1e-6, 8
MODELS = {"cnn": 1, "lstm": 1, "transformer": 1, "gru, three leads": 3, "cnn, three leads": 3}
SHIFTS = ("none", "gain 1.6, offset 0.3", "upside down", "one lead upside down", "hum and noise", "20% slower")
_SHARES = (0.7, 0.12, 0.1, 0.08)
_FREQUENCY = 125.0  # samples in a second

Values = npt.NDArray[np.float64]


def beats(count: int, leads: int, seed: int) -> tuple[Values, npt.NDArray[np.int64]]:
    """Beats (m, leads, T) and their classes (m,)."""
    rng, samples = np.random.default_rng(seed), 187 if leads == 1 else 150
    kinds = rng.choice(4, size=count, p=_SHARES)
    t = np.arange(samples) / _FREQUENCY
    seen = np.random.default_rng(77).uniform(0.3, 1.2, size=(3, 4)) * np.array([[1], [0.7], [-0.6]])  # by each lead

    def bump(height: Values, at: Values, width: Values) -> Values:
        return np.asarray(height[:, None] * np.exp(-0.5 * ((t - at[:, None]) / width[:, None]) ** 2))

    def between(low: float, high: float) -> Values:
        return rng.uniform(low, high, size=count)

    early, wide, notched = (kinds == k for k in (1, 2, 3))
    peak = 0.5 + rng.normal(0.0, 0.03, size=count) - early * between(0.04, 0.12)
    before = between(0.08, 0.2) * np.where(early, between(-1.0, 0.5), 1.0) * ~wide
    waves = [
        bump(before, peak - between(0.13, 0.19), between(0.015, 0.03)),
        bump(between(0.7, 1.3), peak, np.where(wide, between(0.025, 0.05), between(0.009, 0.017))),
        bump(
            np.where(notched, between(0.15, 0.6), -between(0.05, 0.3)), peak + between(0.03, 0.06), 0.0 * peak + 0.012
        ),
        bump(between(0.1, 0.4) * np.where(wide, -1.0, 1.0), peak + between(0.22, 0.32), between(0.03, 0.06)),
    ]
    gains = (np.ones((1, 4)) if leads == 1 else seen)[:, :, None, None]
    heights = np.exp(rng.normal(0.0, 0.15, size=(count, 1, 1)))
    wander = (rng.normal(0.0, 0.08, size=count)[:, None] * np.sin(6.3 * between(0.2, 0.6)[:, None] * t))[:, None]
    made = heights * np.swapaxes((gains * np.stack(waves)).sum(axis=1), 0, 1) + wander
    return made + between(0.01, 0.05)[:, None, None] * rng.normal(size=made.shape), kinds


def elsewhere(signals: Values, shift: str, seed: int) -> Values:
    """As a hospital records them."""
    rng, t = np.random.default_rng(seed), np.arange(signals.shape[-1]) / _FREQUENCY
    if shift.startswith("gain"):
        return 1.6 * signals + 0.3
    if shift == "upside down":
        return -signals
    if shift == "one lead upside down":
        return signals * np.where(np.arange(signals.shape[1]) == 1, -1.0, 1.0)[:, None]
    if shift == "hum and noise":
        phase, size = (rng.uniform(low, high, size=(len(signals), 1, 1)) for low, high in ((0.0, 1.0), (0.05, 0.15)))
        return signals + size * np.sin(6.283 * (50.0 * t + phase)) + 0.08 * rng.normal(size=signals.shape)
    if shift == "20% slower":
        middle = len(t) / 2.0
        places = middle + (np.arange(len(t)) - middle) / 1.2
        flat = [np.interp(places, np.arange(len(t)), row) for row in signals.reshape(-1, len(t))]
        return np.reshape(flat, signals.shape)
    return signals


class Steps(nn.Module):
    """A recurrent network over (m, T), eleven samples a step, or over time of (m, T, 3) behind a convolution."""

    def __init__(self, leads: int) -> None:
        super().__init__()
        self.leads = leads
        self.front = nn.Sequential(nn.Conv1d(3, 24, 7, stride=3), nn.ReLU()) if leads > 1 else nn.Identity()
        self.cells = nn.LSTM(11, 48, batch_first=True) if leads == 1 else nn.GRU(24, 48, batch_first=True)
        self.head = nn.Linear(48, len(_SHARES))

    def forward(self, x: Tensor) -> Tensor:
        """Scores (m, 4)."""
        x = x.view(x.shape[0], -1, 11) if self.leads == 1 else self.front(x.transpose(1, 2)).transpose(1, 2)
        states, _ = self.cells(x)
        scores: Tensor = self.head(states.mean(dim=1))
        return scores


class Patches(nn.Module):
    """Attention over patches of (m, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.place = nn.Linear(11, 32), nn.Parameter(0.02 * torch.randn(1, 17, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, len(_SHARES))

    def forward(self, x: Tensor) -> Tensor:
        """Scores (m, 4)."""
        scores: Tensor = self.head(self.encoder(self.patch(x.view(x.shape[0], 17, 11)) + self.place).mean(dim=1))
        return scores


class Convolutions(nn.Module):
    """Three of them, with batch normalisation, over (m, T) or (m, 3, T)."""

    def __init__(self, leads: int) -> None:
        super().__init__()
        sizes, self.leads = ((leads, 16), (16, 32), (32, 48)), leads
        blocks = (
            nn.Sequential(nn.Conv1d(a, b, 7, padding=3), nn.BatchNorm1d(b), nn.ReLU(), nn.MaxPool1d(2))
            for a, b in sizes
        )
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(48, len(_SHARES))

    def forward(self, x: Tensor) -> Tensor:
        """Scores (m, 4)."""
        scores: Tensor = self.head(self.blocks(x.unsqueeze(1) if self.leads == 1 else x).mean(dim=2))
        return scores


def shaped(signals: Values, kind: str) -> Tensor:
    """As the model of a kind reads them."""
    x = torch.from_numpy(signals).float()
    return x[:, 0] if MODELS[kind] == 1 else x.transpose(1, 2).contiguous() if kind.startswith("gru") else x


@functools.cache
def trained(kind: str, seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The team's model, and its source."""
    signals, labels = beats(SOURCE, MODELS[kind], 1000 + seed)
    x, y = shaped(signals, kind), torch.from_numpy(labels)
    torch.manual_seed(seed)
    model = Patches() if kind == "transformer" else (Convolutions if "cnn" in kind else Steps)(MODELS[kind])
    adam = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(EPOCHS if "cnn" in kind else 3 * EPOCHS):
        for part in torch.split(torch.randperm(len(x)), 64):
            adam.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x[part]), y[part]))
            adam.step()
    return model.eval(), x, y


def adapted(kind: str, shift: str, epsilon: float, seed: int) -> records.Row:
    """Accuracies in percent."""
    model, x, y = trained(kind, seed)
    own, (fresh, labels) = (beats(RECORDS, MODELS[kind], more + seed) for more in (5000, 9000))
    rows, there = (shaped(elsewhere(each, shift, seed), kind) for each in (own[0], fresh))
    shape = tuple(rows.shape[1:])
    described = mock_description(records=RECORDS, record_shape=shape, epsilon=4.0, delta=DELTA)
    curator = MockCurator(described, records=lambda count: rows[:count], randomness=np.random.default_rng(seed).bytes)
    reached = adapt(model, (x.numpy(), y.numpy()), Hospital(curator), epsilon=epsilon, seed=seed, progress=False)

    def right(module: nn.Module, signals: Tensor) -> float:
        with torch.no_grad():
            return 100.0 * float((module(signals).argmax(dim=1).numpy() == labels).mean())

    figures = {"source": right(model, there), "delivered": right(reached.module, there)}
    figures |= {"unmoved": right(model, shaped(fresh, kind)), "outcome": reached.outcome}
    return figures | {"asked": [[answer.rung, answer.outcome] for answer in reached.answers]}


def jobs(seeds: Sequence[int]) -> Iterator[records.Job]:
    """All cells."""
    for seed, kind, shift, epsilon in itertools.product(seeds, MODELS, SHIFTS, EPSILONS):
        if MODELS[kind] > 1 or not shift.startswith("one"):
            cell = {"model": kind, "shift": shift, "epsilon": epsilon, "seed": seed}
            yield cell, functools.partial(adapted, kind, shift, epsilon, seed)


def summary(runs: Sequence[records.Row]) -> dict[str, Any]:
    """Means over seeds by shift, model and epsilon: "upside down 1 cnn"."""
    figures: dict[str, Any] = {}
    for shift, epsilon, kind in itertools.product(SHIFTS, EPSILONS, MODELS):
        named = {"model": kind, "shift": shift, "epsilon": epsilon}
        if some := [run for run in runs if named.items() <= run.items()]:
            means = {of: statistics.fmean(run[of] for run in some) for of in ("source", "delivered", "unmoved")}
            worst = min(run["delivered"] - run["source"] for run in some)
            figures[f"{shift} {epsilon:g} {kind}"] = means | {"runs": len(some), "worst": worst}
    return figures


def lines(figures: dict[str, Any]) -> Iterator[str]:
    """The summary at the larger epsilon as a table, models together."""
    yield "| signals | before/after/not moved |"
    yield "|---|---|"
    for shift in SHIFTS[1:]:
        own = [one for kind in MODELS if (one := figures.get(f"{shift} {EPSILONS[0]:g} {kind}"))]
        means = (statistics.fmean(one[of] for one in own) for of in ("source", "delivered", "unmoved") if own)
        yield f"| {shift} | {'/'.join(f'{mean:.1f}' for mean in means)} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Signals that were recorded otherwise", allow_abbrev=False)
    parser.add_argument("command", choices=("run", "summary"))
    records.options(parser, RESULTS, seeds=SEEDS)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    if asked.command == "run":
        torch.set_num_threads(1)
        records.Rows(RESULTS, asked.results).run(jobs(asked.seeds))
        return
    figures = summary(records.read(asked.results or RESULTS))
    print(json.dumps(figures, indent=1) if asked.format == "json" else "\n".join(lines(figures)))


if __name__ == "__main__":
    main()
