"""One private adaptation of a small classifier of vectors; what office and heart share.

The team's extractor is a fixed public linear map of the source (standardised columns, or principal components), its
classifier one linear layer. The hospital's one release is replayed with the client's default view of features (a gain
and a bias for each, and the classes' frequencies, as probable as the release and the prior make them together), or with
its view of tables with gaps.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks.local import RATE, released
from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.data.datasets import Batches, Labelled
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.replay import fit as replay
from dpswd.public_client.replay.missing_columns import TableView
from dpswd.public_client.replay.posterior import VIEW_STEPS
from dpswd.public_client.replay.tuning import tune
from dpswd.public_client.replay.views import FeatureView, View
from dpswd.public_client.testing.local_hospital import LocalHospital

UPDATES = 1500  # of source-only training and, again, of tuning
_BATCH = 64


@dataclass(frozen=True)
class Domain:
    """Records and labels of one site.

    Attributes:
        name: of the site.
        records: (n, d) float32, prepared record by record with public numbers.
        labels: (n,) classes from 0.
    """

    name: str
    records: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def labelled(self) -> Labelled:
        """The same as tensors."""
        return Labelled(torch.from_numpy(self.records), torch.from_numpy(self.labels))


@dataclass(frozen=True)
class Scores:
    """Scores (n, classes) of the target's records.

    Attributes:
        source_only: of the classifier as it was trained on the source.
        trained_on: of the same classifier, tuned for as long as the adapted one without a view: the control.
        adapted: after the private adaptation.
        spent: epsilon that the curator's ledger charged, or that the accountant gave the release.
        changed: whether the release spoke for a view; otherwise the adapted classifier is the source-only one.
    """

    source_only: Tensor
    trained_on: Tensor
    adapted: Tensor
    spent: float
    changed: bool


def standardised(source: Domain) -> nn.Linear:
    """A fixed map: each column less the source's mean, over its deviation."""
    records = torch.from_numpy(source.records).double()
    deviation = records.std(dim=0).clamp(min=1e-6)
    return _fixed(torch.diag(1.0 / deviation), -records.mean(dim=0) / deviation)


def standardised_table(source: Domain, flag: float) -> nn.Linear:
    """A fixed map of records (2 c,), values and flags of gaps: values as `standardised`, flags times `flag`."""
    records = torch.from_numpy(source.records).double()
    values = records[:, : records.shape[1] // 2]
    deviation = values.std(dim=0).clamp(min=1e-6)
    scales = torch.cat((1.0 / deviation, torch.full_like(deviation, flag)))
    shift = torch.cat((-values.mean(dim=0) / deviation, torch.zeros_like(deviation)))
    return _fixed(torch.diag(scales), shift)


def principal_components(source: Domain, count: int) -> nn.Linear:
    """A fixed map: the source's first components, all over one number that gives them mean square 1."""
    records = torch.from_numpy(source.records).double()
    mean = records.mean(dim=0)
    _, singular, directions = torch.linalg.svd(records - mean, full_matrices=False)
    components = directions[: min(count, len(records) - 1)]
    scale = singular[: len(components)].square().mean().div(len(records)).sqrt()
    return _fixed(components / scale, -(components @ mean) / scale)


def _fixed(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer.requires_grad_(False)


def adapt(
    extractor: nn.Module,
    source: Domain,
    target: Domain,
    *,
    epsilon: float,
    delta: float,
    seed: int,
    service: bool,
    fill: Tensor | None = None,
) -> Scores:
    """Trains on the source, has the target's release made, and adapts.

    Args:
        extractor: fixed, records to features.
        source: public.
        target: what the hospital holds; its labels are not looked at.
        epsilon: the data set's whole budget, and the run's.
        delta: of that budget.
        seed: of the client's random choices.
        service: whether a curator process makes the release; otherwise this one does, by the same mechanism.
        fill: (columns,) what stands for missing values, where records are a table.
    """
    data = source.labelled()
    records = torch.from_numpy(target.records)
    classifier, loader = source_trained(extractor, source, seed)
    before = copy.deepcopy(classifier)
    view = None if fill is None else TableView(fill)
    if service:
        adapted, spent = _over_the_service(extractor, classifier, loader, target, epsilon, delta, seed, view)
    else:
        adapted, spent = _here(extractor, classifier, data, target, epsilon, delta, seed, view), epsilon
    _, longer = tuned(extractor, before, FeatureView(torch.ones(before.in_features)), data, seed)
    with torch.no_grad():
        before_scores, adapted_scores = before(extractor(records)), adapted(extractor(records))
        return Scores(
            source_only=before_scores,
            trained_on=longer(extractor(records)),
            adapted=adapted_scores,
            spent=spent,
            changed=not torch.equal(before_scores, adapted_scores),
        )


def source_trained(extractor: nn.Module, source: Domain, seed: int) -> tuple[nn.Linear, Batches]:
    """The source-only classifier, and the loader that trained it."""
    torch.manual_seed(seed)
    data = source.labelled()
    with torch.no_grad():
        features = extractor(data.images)
    classifier = nn.Linear(features.shape[1], int(data.labels.max()) + 1)
    with torch.no_grad():  # what is never seen on the source (flags of gaps) has no weight
        classifier.weight[:, features.std(dim=0) == 0.0] = 0.0
    loader = source_loader(data, batch_size=_BATCH, seed=seed)
    train_source(extractor, classifier, loader, epochs=-(-UPDATES // len(loader)))
    return classifier, loader


def tuned(
    extractor: nn.Module, classifier: nn.Module, view: View, source: Labelled, seed: int
) -> tuple[nn.Module, nn.Module]:
    """Copies of both modules, tuned on the source seen through a view."""
    generator = torch.Generator().manual_seed(seed)
    with reporting("", UPDATES, shown=False) as bar:
        return tune(extractor, classifier, view, source, steps=UPDATES, generator=generator, bar=bar)


def _over_the_service(
    extractor: nn.Module,
    classifier: nn.Module,
    loader: Batches,
    target: Domain,
    epsilon: float,
    delta: float,
    seed: int,
    view: View | None,
) -> tuple[nn.Module, float]:
    with (
        LocalHospital(target.records, epsilon=epsilon, delta=delta, name="target", device="cpu") as hospital,
        hospital.connect() as connected,
    ):
        plan = connected.plan(Replay(tuning_steps=UPDATES), epsilon=epsilon)
        adaptation = DomainAdaptation(
            copy.deepcopy(extractor), classifier, hospital=connected, plan=plan, view=view,
            device="cpu", seed=seed, source_epochs=0,
        )  # fmt: skip
        adaptation.fit(loader, progress=False)
        return adaptation.model().classifier, float(hospital.budget()["epsilon_spent"])


def _here(
    extractor: nn.Module,
    classifier: nn.Module,
    source: Labelled,
    target: Domain,
    epsilon: float,
    delta: float,
    seed: int,
    view: View | None,
) -> nn.Module:
    with torch.no_grad():
        seen, features = extractor(torch.from_numpy(target.records)), extractor(source.images)
    residuals = released(seen, features, epsilon=epsilon, delta=delta)
    generator = torch.Generator().manual_seed(seed)
    with reporting("", VIEW_STEPS, shown=False) as bar:
        fitted = replay.find_view(
            extractor, source, residuals, learning_rate=RATE, generator=generator, bar=bar, view=view
        )
    if not fitted.convinced:
        return copy.deepcopy(classifier)
    with reporting("", UPDATES, shown=False) as bar:
        return tune(extractor, classifier, fitted.view, source, steps=UPDATES, generator=generator, bar=bar)[1]
