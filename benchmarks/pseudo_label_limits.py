"""Where `pseudo-labels` loses what could be gained: to noise, to the fit or to the family of moves; on USPS.

    python -m benchmarks.pseudo_label_limits --data-dir ../shared/data --seeds 20

For choices: a row is one shift of USPS behind a network whose seed no reported cell uses. Accuracy on fresh records of
the team's classifier; of what the method learns of 1,000 records at epsilons 1, 3, 8 and without noise, delivered
always; of what it would learn if it knew each class's true mean, along its components and along all; and of the same
training on the hospital's own labelled records.
"""

from __future__ import annotations

import argparse
import copy
import functools
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.pseudo_labels import CACHE, TUNED_ON, parted
from benchmarks.records import Row, Rows, options, table
from benchmarks.shifts.cells import DELTAS, Cell, target_of
from benchmarks.shifts.sources import load
from dpswd import PseudoLabels, mock_description
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.plans.plan import make_plan
from dpswd.public_client.published_methods.pseudo_label_fit import Observed, Shifts, Source
from dpswd.public_client.published_methods.pseudo_label_head import learned, moved_fit
from dpswd.public_client.published_methods.pseudo_label_sums import component_axes, components_of, whole

RESULTS = Path(__file__).parent / "results" / "pseudo-label-limits.json"
SHIFTS = ("texture", "blurred", "noisy", "occluded", "turned", "mnist")
_RECORDS, _FRESH = 1000, 4000
_METHOD = PseudoLabels()


_NAMES = ("source", "epsilon_1", "epsilon_3", "epsilon_8", "no_noise", "true_moves", "all_directions", "own_labels")
_COLUMNS = {
    "seed": "{seed}",
    "shift": "{shift}",
    **{name.replace("_", " "): f"{{{name}:.1f}}" for name in _NAMES},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder that keeps source-trained models")
    options(parser, RESULTS, seeds=(20,))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    jobs = [
        ({"seed": seed, "shift": shift}, functools.partial(measured, arguments.data_dir, arguments.cache, seed, shift))
        for seed in arguments.seeds
        for shift in SHIFTS
    ]
    print(table(Rows(RESULTS, arguments.results).run(jobs), _COLUMNS))


def measured(data_dir: Path, cache: Path, seed: int, shift: str) -> Row:
    """Accuracies in percent of each model."""
    origin = load(TUNED_ON, seed, data_dir=data_dir, cache=cache)
    extractor, classifier = parted(origin)
    target = target_of(Cell(TUNED_ON, shift, _RECORDS + _FRESH, 1.0, seed), origin)
    with torch.no_grad():
        features, seen = extractor(origin.source.images).double(), extractor(target.images).double()
    held, fresh = (seen[:_RECORDS], target.labels[:_RECORDS]), (seen[_RECORDS:], target.labels[_RECORDS:])
    source = _source(features, origin.source.labels, classifier)
    models = [source.sums.classifier, *(_by_release(source, held[0], epsilon) for epsilon in (1.0, 3.0, 8.0, None))]
    means = torch.stack([held[0][held[1] == c].mean(dim=0) for c in range(source.classes)])
    means = means - torch.stack([features[source.labels == c].mean(dim=0) for c in range(source.classes)])
    rows = torch.nn.functional.normalize(source.sums.axes.weight[1:], dim=1)
    for moves in (means @ rows.T @ rows, means):
        moved_source = Source(features + moves[source.labels], source.labels, source.sums, source.feature_map)
        models.append(_learned(moved_source))
    models.append(_learned(Source(*held, source.sums, source.feature_map)))
    return {name: _percent(model, *fresh) for name, model in zip(_NAMES, models, strict=True)}


def _source(features: Tensor, labels: Tensor, classifier: nn.Module) -> Source:
    count = components_of(_METHOD.components, classes=int(labels.max()) + 1, dimension=features.shape[1])
    _, sums = whole(nn.Identity(), copy.deepcopy(classifier), component_axes(features, count))
    sums = sums.double()
    with torch.no_grad():
        return Source(features, labels, sums, map_from_source(sums(features), target_norm=_METHOD.target_norm))


def _by_release(source: Source, held: Tensor, epsilon: float | None) -> nn.Module:
    """What is learned of records (n, d) by the noise of this epsilon on each number of their mean, or of none."""
    noise = 1e-4
    if epsilon is not None:
        description = mock_description(records=len(held), record_shape=(1,), epsilon=epsilon, delta=DELTAS["images"])
        plan = make_plan(description, _METHOD, epsilon=epsilon)
        plan = plan.for_model(feature_dimension=source.dimension, gradient_parameters=0)
        assert plan.noise is not None, "known with the model"
        noise = plan.noise
    generator = torch.Generator().manual_seed(0)
    each = torch.eye(source.dimension, dtype=torch.float64)
    exact = Observed(torch.zeros(source.dimension, dtype=torch.float64), each, noise / len(held), len(held))
    observed = exact.again(
        source.added(held).mean(dim=0), torch.zeros(source.dimension, dtype=torch.float64), generator
    )
    return learned(source, moved_fit(source, observed, generator), generator)


def _learned(source: Source) -> nn.Module:
    return learned(source, Shifts.none(source), torch.Generator().manual_seed(0))


@torch.no_grad()
def _percent(classifier: nn.Module, features: Tensor, labels: Tensor) -> float:
    return 100.0 * float((classifier(features).argmax(dim=1) == labels).double().mean())


if __name__ == "__main__":
    main()
