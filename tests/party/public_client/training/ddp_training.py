"""One rank of trainings that the test starts with torchrun, or alone: writes weights, charges and what was refused.

``python ddp_training.py OUT METHOD...``; each method has a folder of its own below OUT.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from small_methods import hardly_refusing, small
from torch import nn

from dpswd import DomainAdaptation, Federation, Hospital
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.data.source import train_source
from dpswd.public_client.generation import Replayed
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.generation.pixels import Coordinates, Joint, Waves
from dpswd.public_client.generation.scattering import OnSphere
from dpswd.public_client.methods.statistics_head import ClassSums
from dpswd.public_client.published_methods.generators import DpSinkhorn, DpSwdQuantiles
from dpswd.public_client.replay import fit, posterior
from dpswd.public_client.replay.cross_fitting import CrossFit
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.tuning import tune
from dpswd.public_client.replay.weighted import Onward
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.distributed import shared_curators
from dpswd.shared.core.errors import BudgetExhausted, CuratorUnavailable, InvalidValue
from dpswd.shared.core.mechanisms.quantiles.coefficients import cosine_basis
from dpswd.shared.core.mechanisms.sliced import SlicedReply
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray, grid_step

D, BATCH, BATCHES = 6, 24, 4
IN_VAIN = ("replay", "rows")
"""Methods of one release and of many steps; of their runs some are refused, or given up before they are charged."""

SETTINGS = {"all-weights": {"learning_rate": 1e-2}, "rows": {"learning_rate": 1e-2}, "replay": {"tuning_steps": 5}}


class Shards:
    """Batches of this rank: its part of each global batch."""

    def __init__(self, ranks: Ranks, *, left_out: int = 0) -> None:
        generator = torch.Generator().manual_seed(0)
        part = slice(ranks.rank * BATCH // ranks.size, (ranks.rank + 1) * BATCH // ranks.size)
        labels = torch.randint(3, (BATCHES, BATCH), generator=generator)
        records = torch.randn(BATCHES, BATCH, D, generator=generator) + labels[..., None]
        self.batches = [(x[part], y[part]) for x, y in zip(records, labels, strict=True)][left_out:]

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def gloo_threads() -> int:
    """Threads of this process that work for a process group."""
    count = 0
    for task in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has just ended
            count += "gloo" in task.read_text()
    return count


def gloo_threads_left() -> int:
    """Those that are there when those that were joined have had time to leave /proc."""
    deadline = time.monotonic() + 10.0
    while (count := gloo_threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return count


def statistics(ranks: Ranks) -> list[float]:
    """What a batch norm has seen of this rank's batches, after training with the others."""
    extractor, classifier = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8)), nn.Linear(8, 3)
    ranks.synchronise(extractor, classifier)
    train_source(extractor, classifier, Shards(ranks), epochs=1, ranks=ranks)
    return extractor[1].running_mean.tolist()


def refused(model: DomainAdaptation, hospital: Hospital, ranks: Ranks) -> bool:
    """Whether this rank learned that a run beyond the budget is refused, and what is left of it."""
    greedy = hospital.plan(small("rows"), epsilon=3.9, steps=500, batch_size=300)
    try:
        DomainAdaptation(
            model.model().extractor, model.classifier, hospital=hospital, plan=greedy, source_epochs=0, device="cpu"
        ).fit(Shards(ranks), progress=False)
    except BudgetExhausted as error:
        return error.remaining < 4.0
    return False


def uneven(model: DomainAdaptation, ranks: Ranks) -> str:
    """What a training says whose ranks have different numbers of batches."""
    try:
        model.fit(Shards(ranks, left_out=ranks.rank), progress=False)
    except InvalidValue as error:
        return str(error)
    return ""


def failed(ranks: Ranks) -> list[str]:
    """What this rank hears of a fault that befalls rank 0 alone, and of one in rank 1's part of shared work."""

    def act(number: int) -> torch.Tensor:
        if number == 1:
            raise ValueError("of number 1")
        return torch.full((3,), float(number))

    heard = []
    for job in (lambda: ranks.share(lambda: act(1)), lambda: ranks.divided(4, act)):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            job()
        heard.append(repr(caught.value))
    torch.testing.assert_close(ranks.share(lambda: act(2)), act(2))  # and they go on together
    return heard


def mock_of(name: str, records: int = 300) -> MockCurator:
    """Both runs see the same noise."""
    counter = itertools.count()
    return MockCurator(
        mock_description(records=records, record_shape=(D,), epsilon=4.0, delta=1e-5, name=name, classes=3),
        randomness=lambda size: next(counter).to_bytes(size, "big"),
    )


class Reached(Federation):
    """Connects on rank 0 to mocks; one more site is down."""

    mocks: ClassVar[dict[str, MockCurator]] = {}

    @classmethod
    def _reached(cls, names, _):
        mocks = {site: cls.mocks[site] for site in names if site in cls.mocks}
        return mocks, {"east": CuratorUnavailable("nobody there")}


def planned_alike(mocks: dict[str, MockCurator]) -> None:
    """A wish for the site that rank 0 could not reach is no mistake on any rank, and a mistake is one on all."""
    Reached.mocks = mocks
    sites = Reached.connect(dict.fromkeys((*mocks, "east"), "-"), credentials="-")
    assert set(sites.plan(small("replay"), epsilon={"north": 1.0, "south": 1.0, "east": 1.0})) == set(mocks)
    assert "nobody there" in str(sites.lost["east"])
    with pytest.raises(InvalidValue, match="names west"):
        sites.plan(small("replay"), epsilon={"north": 1.0, "south": 1.0, "west": 1.0})


def several(out: Path, ranks: Ranks) -> None:
    """Two hospitals: one model of both by many steps, and a replay's model for each."""
    for name in ("rows", "replay"):
        mocks = {"north": mock_of("north"), "south": mock_of("south", 200)}
        curators = mocks if ranks.size == 1 else shared_curators(lambda mocks=mocks: mocks)
        sites = Federation({site: Hospital(curator) for site, curator in curators.items()})
        if ranks.size > 1:
            planned_alike(mocks)
        method = small(name, source_records=BATCH * BATCHES, **SETTINGS.get(name, {}))
        size = {} if name == "replay" else {"steps": 3, "batch_size": 80}
        torch.manual_seed(0)
        extractor, classifier = nn.Sequential(nn.Linear(D, 8), nn.Tanh()), nn.Linear(8, 3)
        plans = sites.plan(method, epsilon=2.0, **size)
        model = DomainAdaptation(extractor, classifier, hospital=sites, plan=plans, source_epochs=1, device="cpu")
        model.fit(Shards(ranks), checkpoint=out / f"several-{name}", progress=False)
        trained = {site: model.model(site).classifier.state_dict() for site in plans}
        charges = {site: len(mock.charges) for site, mock in mocks.items()}
        torch.save((trained, charges, model.reports), out / f"several-{name}-{ranks.rank}.pt")


def divided(out: Path, ranks: Ranks) -> None:
    """A view fitted, and a model tuned on it, by all ranks together."""
    posterior._ROUNDS = (posterior._Round(4, 4, 1.0), posterior._Round(3, 4, 1.0))
    generator = torch.Generator().manual_seed(4)
    labels = torch.arange(96) % 3
    images = torch.rand(96, 1, 6, 6, generator=generator) - 0.5 + 0.4 * (labels[:, None, None, None] - 1.0)
    source = Labelled(images.clamp(-1.0, 1.0), labels)
    torch.manual_seed(1)
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(36, 5)).eval()
    with torch.no_grad():
        seen, target = extractor(source.images), extractor((0.5 * source.images + 0.3).roll(1, dims=3))
    feature_map = map_from_source(seen, target_norm=0.25)
    residuals = Residuals(
        [released(target, feature_map, sigma=0.01)], like=seen, feature_map=feature_map, batch=96, sigma=0.01
    )
    with reporting("", 1, shown=False) as bar:
        fitted = fit.find_view(
            extractor, source, residuals,
            learning_rate=0.03, generator=torch.Generator().manual_seed(0), bar=bar, ranks=ranks,
        )  # fmt: skip
        tuned = tune(
            extractor, nn.Linear(5, 3), fit.view_for(source.images, seen), source,
            steps=6, generator=torch.Generator().manual_seed(0), bar=bar, ranks=ranks,
        )  # fmt: skip
        crossed = CrossFit(extractor, nn.Linear(5, 3), source, seed=0, ranks=ranks, bar=bar).crossed()
        assert crossed is not None
        absent = torch.tensor([1.5, 1.5, 1e-3])
        onward = Onward(crossed, extractor, steps=20, seed=0, ranks=ranks, bar=bar)
        trained = onward.by(absent, absent.repeat(50, 1))
        assert trained.modules is not None, trained.reason
    weights = torch.cat([value.detach().flatten() for module in trained.modules for value in module.parameters()])
    torch.save(
        (fitted.reason, tuned[0].state_dict(), drawn(ranks), trained.reason, weights), out / f"divided-{ranks.rank}.pt"
    )


def drawn(ranks: Ranks) -> torch.Tensor:
    """Weights of a network that is fitted in all ranks."""
    torch.manual_seed(2)
    seen = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), OnSphere(5)).eval()
    own = Coordinates(torch.randn(2, 64), torch.zeros(64))
    joint = Joint(seen, own, Waves((1, 8, 8), -1.0, 1.0, 3), (0.4, 0.2, 0.4))
    d = 5 + 2 + 6
    means = 20.0 * np.random.default_rng(1).normal(size=(3, d))
    release = ClassSums(
        np.zeros(3), means - means.mean(axis=0), means.sum(axis=0), 60.0 * np.eye(d), 300.0, 1.0, 1.0, 1.0, 1.0
    )
    fitting = Fitting(device=torch.device("cpu"), progress=False, ranks=ranks)
    fitted = Replayed(pretraining=2, updates=2, images=6, width=2).fitted(release, joint, (1, 8, 8), fitting)
    return torch.cat([value.flatten() for _, value in sorted(fitted.decoder.weights.items())])


LEARNING = {"latent": 2, "width": 4, "learning_rate": 0.03}
GENERATORS = (
    (DpSinkhorn(**LEARNING, points=18, fresh=4, iterations=4), 3),
    (DpSwdQuantiles(**LEARNING, directions=6), 3),
)


def generators(out: Path, ranks: Ranks) -> None:
    """Networks that learn by steps, in each rank; rank 0 alone asks the mock."""
    trained = {}
    for method, steps in GENERATORS:
        name = method.name
        keys = (bytes([number % 256]) * 32 for number in itertools.count(1))
        labels = np.arange(200) % 2
        values = (0.4 * np.sin(np.arange(800.0)).reshape(200, 4) + 0.3 * labels[:, None]).astype(np.float32)
        facts = mock_description(records=200, record_shape=(4,), epsilon=90.0, delta=1e-5, classes=2)
        mock = MockCurator(facts, records=values, labels=labels, randomness=lambda size, keys=keys: next(keys)[:size])
        curator = mock if ranks.size == 1 else shared_curators(lambda name=name, mock=mock: {name: mock})[name]
        plan, _ = plan_generator(curator, method, epsilon=20.0, steps=steps, batch_size=200)  # no chance of a sample
        made = generate(curator, plan, device="cpu", progress=False)
        weights = torch.cat([value.flatten() for _, value in sorted(made.decoder.weights.items())])
        trained[name] = (weights, [charge.epsilon for charge in mock.charges])
    torch.save(trained, out / f"generators-{ranks.rank}.pt")


def released(target: torch.Tensor, feature_map: FeatureMap, *, sigma: float) -> SlicedReply:
    """What a curator would answer, with noise of a fixed seed."""
    seed, step = bytes(range(32)), grid_step(sigma)
    ordered = (feature_map.clipped(target) @ directions(seed, target.shape[1], 8)).double().sort(dim=0).values
    values = (cosine_basis(len(target), 3).T @ ordered).numpy() + np.random.default_rng(3).normal(
        scale=sigma, size=(3, 8)
    )
    return SlicedReply(seed, GridArray(np.rint(values / step).astype(np.int32), step))


def main(out: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    ranks = Ranks.current()
    for name in names:
        with hardly_refusing():
            train(out / name, name, ranks)
    several(out, ranks)
    divided(out, ranks)
    generators(out, ranks)
    if ranks.size > 1:
        (out / f"failed-{ranks.rank}.json").write_text(json.dumps(failed(ranks)))
        dist.barrier()
        threads = [gloo_threads()]
        dist.destroy_process_group()
        threads.append(gloo_threads_left())
        (out / f"threads-{ranks.rank}.json").write_text(json.dumps(threads))


def train(out: Path, name: str, ranks: Ranks) -> None:
    out.mkdir(exist_ok=True)
    mock = mock_of(name)
    hospital = Hospital(mock if ranks.size == 1 else shared_curators(lambda: {name: mock})[name])
    method = small(name, source_records=BATCH * BATCHES, **SETTINGS.get(name, {}))
    size = {} if name == "replay" or method.mechanism.whole else {"steps": 5, "batch_size": 80}
    torch.manual_seed(ranks.rank)  # ranks begin with different weights; rank 0's count
    extractor, classifier = nn.Sequential(nn.Linear(D, 8), nn.Tanh()), nn.Linear(8, 3)
    plan = hospital.plan(method, epsilon=2.0, **size)
    model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, source_epochs=2, device="cpu")
    model.fit(Shards(ranks), checkpoint=out / "run", progress=False)
    if ranks.first:
        model.save(out / "adapted.safetensors")  # rank 0 alone: it must not wait for the others
    weights = {"extractor": model.model().extractor.state_dict(), "classifier": model.classifier.state_dict()}
    torch.save(weights, out / f"weights-{ranks.rank}.pt")
    report = {"charges": [charge.epsilon for charge in mock.charges], "steps": model.sites["curator"].steps}
    if name in IN_VAIN:
        report["refused"] = refused(model, hospital, ranks)
        report["statistics"] = statistics(ranks)
        if ranks.size > 1:
            cheap = hospital.plan(method, epsilon=1.0, **size)
            again = DomainAdaptation(
                extractor, classifier, hospital=hospital, plan=cheap, source_epochs=2, device="cpu"
            )
            report["uneven"] = uneven(again, ranks)
            report["charges after uneven"] = len(mock.charges)
    (out / f"report-{ranks.rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
