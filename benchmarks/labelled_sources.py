"""DPDA: a labelled hospital is the private source, public records without labels are the target.

    python -m benchmarks.labelled_sources run --data-dir ../shared/data       # anew, beside what is on file
    python -m benchmarks.labelled_sources choose                              # on scikit-learn's digits alone
    python -m benchmarks.labelled_sources large                               # time and memory of a target of 50,000
    python -m benchmarks.labelled_sources summary

needs office_caltech10_surf.npz, mnist.npz and usps16.npz in the folder. The extractor is the target's principal
components. Each run stands beside

- the same classifier trained on the source itself, without privacy and transport (source only);
- OTDA: the source's own records in the place of drawn points, everything after it the same (no privacy);
- the discriminant of the hospital's release, without transport;
- PATE: teachers on parts of the source, whose noised votes on 200 target records teach the same classifier; the votes
  are charged together, as one Gaussian release that a replaced record moves by at most the root of 2 for each query.

Every release of DPDA passes through the mock curator: admission, price, computation and noise are the product's.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import office, records
from benchmarks.labelled import HeldRecords, Site
from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.data.datasets import load_mnist, load_task, load_usps
from dpswd.public_client.methods.statistics import Statistics
from dpswd.public_client.published_methods.dpda import (
    Dpda,
    Points,
    moved,
    principal_components,
    target_network,
)
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.core.privacy.events import BoundedSum, RunEvent, StepEvent
from dpswd.shared.core.wire.limits import UNLABELLED

RESULTS = Path(__file__).parent / "results" / "labelled-sources.json"
EPSILONS, SEEDS = (20.0, 8.0, 1.0), (0, 1, 2, 3, 4)
METHOD = Dpda()
_COMPONENTS = {"office": 30, "digits": 50}
_DELTAS = {"office": 1e-3, "digits": 1e-5}
_LABELLED = 3  # of each class, semi-supervised: as in the literature of Office
_QUERIES, _MOST = 200, 2000  # of PATE; records of OTDA's source


@dataclass(frozen=True, eq=False)
class Pair:
    """A labelled source and a target.

    Attributes:
        name: source -> target.
        kind: "office" or "digits".
        source: (n, ...).
        labels: (n,).
        target: (m, ...).
        truth: (m,), for scores, and for the few of semi-supervised runs.
    """

    name: str
    kind: str
    source: Tensor
    labels: Tensor
    target: Tensor
    truth: Tensor

    @property
    def classes(self) -> int:
        """C."""
        return int(self.labels.max()) + 1


def pairs(folder: Path) -> list[Pair]:
    """Twelve of Office-Caltech10, and the digits in both directions (USPS stretched to 28 x 28)."""
    sites = {name: site.labelled() for name, site in office.load(folder / "office_caltech10_surf.npz").items()}
    shifted = [
        Pair(f"{s} -> {t}", "office", sites[s].images, sites[s].labels, sites[t].images, sites[t].labels)
        for s in sites
        for t in sites
        if s != t
    ]
    mnist, usps = load_mnist(folder), load_usps(folder, geometry="stretched")
    few = torch.from_numpy(np.random.default_rng(0).permutation(len(mnist))[: len(usps)])  # as many as USPS has
    digits = [
        Pair("MNIST -> USPS", "digits", mnist.images, mnist.labels, usps.images, usps.labels),
        Pair("USPS -> MNIST", "digits", usps.images, usps.labels, mnist.images[few], mnist.labels[few]),
    ]
    return digits + shifted


def start(pair: Pair, seed: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Extractor and classifier before anything is trained."""
    extractor = principal_components(pair.target, count=_COMPONENTS[pair.kind])
    torch.manual_seed(seed)
    return extractor, target_network(extractor(pair.target[:1]).shape[1], pair.classes)


def dpda(pair: Pair, epsilon: float, seed: int, *, labelled: int = 0, method: Dpda = METHOD) -> float:
    """Accuracy on the target, in percent; of semi-supervised runs on its records without labels."""
    extractor, classifier = start(pair, seed)
    site = Site(pair.source.numpy(), pair.labels.numpy())
    with Hospital(HeldRecords(site, classes=pair.classes, delta=_DELTAS[pair.kind], seed=seed)) as hospital:
        plan = hospital.plan(method, epsilon=epsilon)
        model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, device="cpu", seed=seed)
        labels = few_labels(pair, labelled, seed)
        model.fit(DataLoader(TensorDataset(pair.target, labels), batch_size=1000), progress=False)
    return 100.0 * model.score(pair.target[labels == UNLABELLED], pair.truth[labels == UNLABELLED])


def few_labels(pair: Pair, labelled: int, seed: int) -> Tensor:
    """(m,) labels of so many records of each class; of all others `UNLABELLED`."""
    labels = torch.full_like(pair.truth, UNLABELLED)
    for c in range(pair.classes) if labelled else ():
        own = torch.nonzero(pair.truth == c).flatten().numpy()
        labels[np.random.default_rng(seed).permutation(own)[:labelled]] = c
    return labels


def without_transport(pair: Pair, epsilon: float, seed: int) -> float:
    """The discriminant of the same release."""
    extractor, _ = start(pair, seed)
    classifier = nn.Linear(extractor(pair.target[:1]).shape[1], pair.classes)
    site = Site(pair.source.numpy(), pair.labels.numpy())
    with Hospital(HeldRecords(site, classes=pair.classes, delta=_DELTAS[pair.kind], seed=seed)) as hospital:
        plan = hospital.plan(Statistics(prior="none"), epsilon=epsilon)
        model = DomainAdaptation(
            extractor, classifier, hospital=hospital, plan=plan, device="cpu", seed=seed, source_epochs=0
        )
        made_up = torch.arange(len(pair.target)) % pair.classes  # without a prior no public label is looked at
        model.fit(DataLoader(TensorDataset(pair.target, made_up), batch_size=1000), progress=False)
    return 100.0 * model.score(pair.target, pair.truth)


def source_only(pair: Pair, seed: int) -> float:
    """The classifier trained on the source's own features, without privacy and transport."""
    extractor, classifier = start(pair, seed)
    with torch.no_grad():
        features, target = extractor(pair.source), extractor(pair.target)
    return _taught(classifier, features, pair.labels, None, target, pair.truth, seed)


def otda(pair: Pair, seed: int, *, method: Dpda = METHOD) -> float:
    """Optimal transport of the source's own records, of at most 2,000 drawn at random; no privacy."""
    extractor, classifier = start(pair, seed)
    own = np.random.default_rng(seed).permutation(len(pair.source))[:_MOST]
    with torch.no_grad():
        source, target = extractor(pair.source[own]).double().numpy(), extractor(pair.target).double().numpy()
    order = np.argsort(pair.labels[own].numpy(), kind="stable")
    labels = pair.labels[own].numpy()[order]
    points = Points(source[order], labels, np.full(len(own), 1.0 / len(own)))
    reached, _ = moved(points, target, np.full(len(target), UNLABELLED), method, seed)
    places = torch.from_numpy(reached.places).float()
    kinds = torch.from_numpy(reached.labels)
    return _taught(classifier, places, kinds, reached.masses, torch.from_numpy(target).float(), pair.truth, seed)


def pate(pair: Pair, epsilon: float, seed: int) -> float:
    """Noised votes of teachers on parts of the source, which teach the classifier."""
    extractor, classifier = start(pair, seed)
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        source, target = extractor(pair.source), extractor(pair.target)
    teachers = min(100, max(5, len(source) // 50))
    asked = rng.permutation(len(target))[:_QUERIES]
    votes = np.zeros((len(asked), pair.classes))
    for own in np.array_split(rng.permutation(len(source)), teachers):
        kinds = functional.one_hot(pair.labels[own], pair.classes).double()
        counts = kinds.sum(dim=0).clamp(min=1e-9)
        means = kinds.T @ source[own].double() / counts[:, None]
        away = torch.cdist(target[asked].double(), means) + torch.where(counts < 1, 1e9, 0.0)
        votes[np.arange(len(asked)), away.argmin(dim=1).numpy()] += 1.0

    def event(sigma: float) -> RunEvent:
        part = BoundedSum(len(asked) * pair.classes, math.sqrt(2.0 * len(asked)), 2 * len(asked), sigma)
        return RunEvent(StepEvent(len(source), len(source), (part,)), 1)

    sigma = calibrate_sigma(event, epsilon=epsilon, delta=_DELTAS[pair.kind])
    answers = torch.from_numpy((votes + sigma * rng.normal(size=votes.shape)).argmax(axis=1))
    return _taught(classifier, target[asked], answers, None, target, pair.truth, seed)


def _taught(
    classifier: nn.Module,
    records_: Tensor,
    labels: Tensor,
    masses: npt.NDArray[np.float64] | None,
    target: Tensor,
    truth: Tensor,
    seed: int,
) -> float:
    """As the method trains it; accuracy on the target."""
    optimizer = torch.optim.Adam(classifier.parameters(), lr=METHOD.learning_rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, METHOD.updates)
    rng = np.random.default_rng(seed)
    for _ in range(METHOD.updates):
        chosen = torch.from_numpy(rng.choice(len(labels), size=128, p=masses))
        loss = functional.cross_entropy(classifier(records_[chosen]), labels[chosen])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return 100.0 * float((classifier(target).argmax(dim=1) == truth).double().mean())


def jobs(folder: Path, *, seeds: Sequence[int]) -> Iterator[records.Job]:
    """All runs."""
    private: dict[str, Callable[[Pair, float, int], float]] = {
        "DPDA": dpda,
        "DPDA, few labels": functools.partial(dpda, labelled=_LABELLED),
        "no transport": without_transport,
        "PATE": pate,
    }

    def measured(pair: Pair, reach: Callable[[], float]) -> records.Row:
        return {"accuracy": round(reach(), 2), "records": len(pair.labels), "targets": len(pair.truth)}

    for seed, pair in itertools.product(seeds, pairs(folder)):
        own = {"pair": pair.name, "epsilon": None, "seed": seed}
        for name, plain in (("source only", source_only), ("OTDA", otda)):
            yield own | {"method": name}, functools.partial(measured, pair, functools.partial(plain, pair, seed))
        for epsilon, (name, way) in itertools.product(EPSILONS, private.items()):
            reach = functools.partial(way, pair, epsilon, seed)
            yield own | {"method": name, "epsilon": epsilon}, functools.partial(measured, pair, reach)


def choose() -> None:
    """Accuracy on scikit-learn's digits behind a turn, half of them the labelled source."""
    task = load_task("digits")
    pair = Pair("digits", "digits", task.source.images, task.source.labels, task.target.images, task.target.labels)
    print(f"source only {source_only(pair, 0):.1f}, OTDA {otda(pair, 0):.1f}")
    for penalty in (0.1, 0.03):
        for group in (0.0, 0.3, 1.0, 3.0):
            method = Dpda(penalty=penalty, group_penalty=group)
            reached = [dpda(pair, epsilon, 0, method=method) for epsilon in (300.0, 8.0)]
            print(f"penalty {penalty:g}, groups {group:g}: {reached[0]:.1f} and {reached[1]:.1f}", flush=True)


def large() -> None:
    """A hospital of 50,000 and a target of 50,000, from release to classifier."""
    rng, n, d, classes = np.random.default_rng(0), 50_000, 50, 10
    means = rng.normal(size=(classes, d))
    labels = rng.integers(classes, size=2 * n)
    values = torch.from_numpy((means[labels] + 1.5 * rng.normal(size=(2 * n, d))).astype(np.float32))
    kinds = torch.from_numpy(labels)
    pair = Pair("made", "digits", values[:n], kinds[:n], values[n:] + 0.5, kinds[n:])
    start_s = time.process_time()
    reached = dpda(pair, 1.0, 0)
    seconds, most = time.process_time() - start_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"n = m = 50,000: {seconds:.0f} s of one core, {most:.1f} GiB at most, accuracy {reached:.1f}")


def table(runs: list[dict[str, Any]]) -> str:
    """Of the runs on file, in Markdown."""
    names = sorted({run["pair"] for run in runs}, key=lambda name: [r["pair"] for r in runs].index(name))
    columns = [("source only", None), ("OTDA", None)]
    columns += [(name, e) for name in ("DPDA", "DPDA, few labels", "no transport", "PATE") for e in EPSILONS]
    heads = [name if epsilon is None else f"{name}, {epsilon:g}" for name, epsilon in columns]
    lines = [f"| source -> target | n | {' | '.join(heads)} |", "|---" * (2 + len(columns)) + "|"]
    for name in names:
        own = [run for run in runs if run["pair"] == name]
        cells = []
        for method, epsilon in columns:
            values = [run["accuracy"] for run in own if (run["method"], run["epsilon"]) == (method, epsilon)]
            cells.append(records.mean_and_deviation(values, 1) if values else "")
        lines.append(f"| {name} | {own[0]['records']:,} | {' | '.join(cells)} |")
    seeds = len({run["seed"] for run in runs})
    return "\n".join([*lines, "", f"{seeds} seeds."])


def page_table(runs: list[dict[str, Any]]) -> str:
    """Means of what docs/ml-team/labelled-sources.md shows, of Office-Caltech10 over each source's three targets."""
    columns = [("source only", None), ("OTDA", None), ("DPDA", 8.0), ("DPDA", 1.0), ("DPDA, few labels", 8.0)]
    columns += [("no transport", 8.0), ("PATE", 8.0)]
    heads = [name if epsilon is None else f"{name}, {epsilon:g}" for name, epsilon in columns]
    lines = [f"| source -> target | n | {' | '.join(heads)} |", "|---" * (2 + len(columns)) + "|"]
    of: dict[str, list[dict[str, Any]]] = {}
    for one in runs:
        source = one["pair"].split(" -> ")[0]
        of.setdefault(one["pair"] if source.isupper() else f"{source} -> the other three", []).append(one)
    for name, own in of.items():
        reached = [[r["accuracy"] for r in own if (r["method"], r["epsilon"]) == column] for column in columns]
        means = " | ".join(f"{statistics.mean(values):.1f}" for values in reached)
        lines.append(f"| {name} | {own[0]['records']:,} | {means} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "choose", "large", "summary"))
    parser.add_argument("--data-dir", type=Path)
    records.options(parser, RESULTS, seeds=SEEDS)
    parser.add_argument("--format", choices=("json", "text"), default="text")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "run":
        if arguments.data_dir is None:
            parser.error("--data-dir is needed")
        records.Rows(RESULTS, arguments.results).run(jobs(arguments.data_dir, seeds=arguments.seeds))
        return
    if arguments.command in ("choose", "large"):
        (choose if arguments.command == "choose" else large)()
        return
    runs = records.read(arguments.results or RESULTS)
    print(json.dumps(runs) if arguments.format == "json" else table(runs))


if __name__ == "__main__":
    main()
