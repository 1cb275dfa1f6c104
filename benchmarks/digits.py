"""MNIST and USPS over the real service: what each method reaches, at what epsilon, over seeds.

    python -m benchmarks.digits run --data-dir ../shared/data --tasks mnist-usps --seeds 0,1,2,3,4
    python -m benchmarks.digits summary              # every seed of what is on file

Each private run has a rehearsal hospital of its own: a curator process with a fresh ledger whose whole budget is the
run's epsilon, mutual TLS on loopback, the same client as anyone's. Every finished run is written at once, so a stopped
benchmark goes on where it was; a run that is on file with the same settings is not repeated. The target's labels are
looked at for the accuracy alone.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.baselines import trained_locally
from benchmarks.records import Job, Row, Rows, mean_and_deviation, options, read
from dpswd import adapt
from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Task, load_task
from dpswd.public_client.data.networks import digits_network
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.experiments.approaches import method_of
from dpswd.public_client.experiments.file import read_experiment
from dpswd.public_client.experiments.start import SourceModel, train_source_model
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.replay.control import control
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.public_client.training.sites import Model
from dpswd.shared.devices import resolve_device

DELTA = 1e-5
RESULTS = Path(__file__).parent / "results" / "digits.json"
SOURCE_EPOCHS = {"mnist-usps": 2, "usps-mnist": 16}  # about 900 updates each
PUBLISHED = {"mnist-usps": (94.0, 95.5), "usps-mnist": (83.4, None)}
"""DP-SWD at nominal epsilon 10, and non-private SWD, as the DP-SWD paper prints them."""


METHODS = {
    "source-only": "source-only",
    "varied": "source-only, tuned as a replay but without a release",
    "non-private": "non-private SWD, all weights, both branches",
    "ladder": "the ladder (`adapt`)",
    "replay": "one release replayed (`--method replay`)",
    "rows": "the paper's rows, all weights",
}
"""Title of each, for the reader."""


LOCAL = ("source-only", "varied", "non-private")
"""Methods that need no curator."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measures, and compares with what is on file")
    run.add_argument("--data-dir", type=Path, default=None, help="folder with mnist.npz and usps16.npz; or OpenML")
    run.add_argument("--tasks", default="mnist-usps,usps-mnist")
    run.add_argument("--geometry", choices=["stretched", "framed"], default="stretched")
    run.add_argument("--methods", default=",".join(METHODS))
    run.add_argument("--epsilons", default="1,0.5", help="of the private methods")
    run.add_argument("--steps", type=int, default=None, help="of an iterated method; the method's if not given")
    run.add_argument("--batch", type=int, default=None, help="b of an iterated method; the method's if not given")
    run.add_argument("--directions", type=int, default=200)
    run.add_argument("--settings", default="{}", help="JSON: others of the method, such as clip_norm")
    run.add_argument("--device", default="auto")
    run.add_argument("--sources", type=Path, default=None, help="folder that keeps the source-trained models")
    options(run, RESULTS, seeds=(0, 1, 2))
    options(commands.add_parser("summary", help="every seed of what is on file"), RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "run":
        for name in arguments.tasks.split(","):
            _run_task(name, arguments)
        return
    print(table(read(arguments.results or RESULTS)))


def _run_task(name: str, arguments: argparse.Namespace) -> None:
    task = load_task(name, geometry=arguments.geometry, data_dir=arguments.data_dir)
    methods = arguments.methods.split(",")
    epsilons = [float(epsilon) for epsilon in arguments.epsilons.split(",")]
    own = {"directions": arguments.directions, **json.loads(arguments.settings)}
    size = {"steps": arguments.steps, "batch_size": arguments.batch}
    size = {name: value for name, value in size.items() if value is not None}
    jobs: list[Job] = []
    for seed in arguments.seeds:
        model = functools.cache(functools.partial(_source_model, name, task, seed, arguments))
        for key in methods:
            private = key not in LOCAL
            for epsilon in epsilons if private else [math.inf]:
                settings = {"task": name, "geometry": arguments.geometry, "method": key, "seed": seed}
                if private:
                    settings |= {"epsilon": epsilon, "settings": own, "size": size}
                elif key == "non-private":
                    settings["steps"] = arguments.steps or 2000
                jobs.append((settings, functools.partial(_measured, settings, model, task, arguments.device)))
    Rows(RESULTS, arguments.results).run(jobs)


def _measured(settings: Row, source: Callable[[], SourceModel], task: Task, device: str) -> Row:
    begun = time.monotonic()
    model = source()
    figures = _train(settings, model, task, source_seconds=time.monotonic() - begun, device=device)
    return figures | {"source_only": model.accuracy} | _machine()


def _train(
    settings: dict[str, Any], model: SourceModel, task: Task, *, source_seconds: float, device: str
) -> dict[str, Any]:
    if settings["method"] == "source-only":
        return {"accuracy": model.accuracy, "seconds": source_seconds}
    begun = time.monotonic()
    if settings["method"] == "varied":
        return {"accuracy": _varied(model, task, settings["seed"], device), "seconds": time.monotonic() - begun}
    if settings["method"] == "non-private":
        trained = trained_locally(
            "swd", Model(model.extractor, model.classifier), model.loader, task.target.images,
            steps=settings["steps"], seed=settings["seed"], device=device,
        )  # fmt: skip
        reached = accuracy(trained.extractor, trained.classifier, task.target.to(resolve_device(device)))
        return {"accuracy": reached, "seconds": time.monotonic() - begun}
    epsilon = settings["epsilon"]
    records = task.target.images.numpy()
    with (
        LocalHospital(records, epsilon=epsilon, delta=DELTA, name=settings["task"], device=device) as hospital,
        hospital.connect() as connected,
    ):
        extractor, classifier = copy.deepcopy((model.extractor, model.classifier))
        if settings["method"] == "ladder":
            adapted = adapt(
                nn.Sequential(extractor, classifier), model.loader, connected,
                epsilon=epsilon, seed=settings["seed"], device=device, progress=False,
            )  # fmt: skip
            seconds, ledger = time.monotonic() - begun, hospital.budget()
            return {
                "accuracy": accuracy(
                    adapted.model.extractor, adapted.model.classifier, task.target.to(resolve_device(device))
                ),
                "asked": [[one.rung, one.outcome, one.plain, one.finding] for one in adapted.answers],
                "delta": DELTA,
                "seconds": seconds,
                "spent": ledger["epsilon_spent"],
                "steps_charged": ledger["steps_charged"],
            }
        method = method_of(settings["method"], settings["settings"])
        adaptation = DomainAdaptation(
            extractor,
            classifier,
            hospital=connected,
            plan=connected.plan(method, **settings["size"], epsilon=epsilon),
            device=device,
            seed=settings["seed"],
            source_epochs=0,
        )
        adaptation.fit(model.loader, progress=False)
        seconds = time.monotonic() - begun
        ledger = hospital.budget()  # the operator's view: what was really charged
    adapted = adaptation.model()
    return {
        "accuracy": accuracy(adapted.extractor, adapted.classifier, task.target.to(adaptation.device)),
        "seconds": seconds,
        "steps": adaptation.plan.steps,
        "delta": DELTA,
        "spent": ledger["epsilon_spent"],
        "steps_charged": ledger["steps_charged"],
    }


def _varied(model: SourceModel, task: Task, seed: int, device: str) -> float:
    """The control: the default's tuning, with its random variation, but with nothing known of the target."""
    place = resolve_device(device)
    steps = Replay().tuning_steps
    tuned = control(model.extractor, model.classifier, model.loader, steps=steps, seed=seed, device=place)
    return accuracy(*tuned, task.target.to(place))


def _source_model(name: str, task: Task, seed: int, arguments: argparse.Namespace) -> SourceModel:
    """The source-trained model of a seed, from the folder that keeps them if one is given."""
    file = None if arguments.sources is None else arguments.sources / f"{name}-{arguments.geometry}-{seed}.pt"
    if file is None or not file.exists():
        training = read_experiment(None, {"device": arguments.device, "source.epochs": SOURCE_EPOCHS[name]})
        model = train_source_model(training, task, seed=seed, progress=False)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save((model.extractor.state_dict(), model.classifier.state_dict(), model.accuracy), file)
        return model
    extractor, classifier = digits_network(task.image_shape)
    weights = torch.load(file, weights_only=True)
    extractor.load_state_dict(weights[0])
    classifier.load_state_dict(weights[1])
    return SourceModel(extractor.eval(), classifier.eval(), source_loader(task.source, seed=seed), accuracy=weights[2])


def _machine() -> dict[str, Any]:
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Of all runs, by task and method; *gap* is the share of the way from source-only to non-private SWD."""
    groups = sorted({(run["task"], run["geometry"]) for run in runs})
    parts = [_section(*group, [run for run in runs if (run["task"], run["geometry"]) == group]) for group in groups]
    return "\n".join(line for part in parts for line in part).rstrip()


def _section(task: str, geometry: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    private, plain = PUBLISHED[task]
    published = f"Published: DP-SWD {private} at nominal epsilon 10"
    published += f", non-private SWD {plain}." if plain is not None else "."
    source, target = task.upper().split("-")
    lines = [
        f"## {source} to {target}, {geometry}",
        "",
        published,
        "",
        "| method | epsilon | settings | accuracy | gap | each seed | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    ceilings = _by_seed(runs, "non-private")
    for key in sorted({_row_key(run) for run in runs}):
        group = sorted((run for run in runs if _row_key(run) == key), key=lambda run: run["seed"])
        accuracies = [run["accuracy"] for run in group]
        gaps = [
            (run["accuracy"] - run["source_only"]) / (ceilings[run["seed"]] - run["source_only"])
            for run in group
            if run["seed"] in ceilings
        ]
        first = group[0]
        private = first["method"] not in LOCAL
        cells = [
            METHODS[first["method"]],
            f"{max(run['spent'] for run in group):.4g}" if private else "",
            _settings(first),
            mean_and_deviation(accuracies),
            _gap(gaps) if private and len(gaps) == len(group) else "",
            ", ".join(f"{value:.1f}" for value in accuracies),
            f"{statistics.mean(run['seconds'] for run in group):.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _gap(gaps: Sequence[float]) -> str:
    mean = statistics.mean(gaps)
    return "all of it" if mean > 1 else f"{100 * mean:.0f}%"


def _row_key(run: dict[str, Any]) -> tuple[int, float, str]:
    return list(METHODS).index(run["method"]), -run.get("epsilon", math.inf), _settings(run)


def _by_seed(runs: Sequence[dict[str, Any]], method: str) -> dict[int, float]:
    return {run["seed"]: run["accuracy"] for run in runs if run["method"] == method}


def _settings(run: dict[str, Any]) -> str:
    """The method's settings and the run's size in words; the rest is the method's own choice."""
    shown = {**run.get("settings", {}), **run.get("size", {})}
    shown.setdefault("steps", run.get("steps"))
    return ", ".join(f"{name} {value}" for name, value in sorted(shown.items()) if value is not None)


if __name__ == "__main__":
    main()
