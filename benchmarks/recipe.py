"""How the default recipe of replayed releases was chosen without a label of the target (docs/studies.md).

    python -m benchmarks.recipe run --data-dir ../shared/data        # anew, beside what is on file
    python -m benchmarks.recipe summary

The recipes are compared on targets whose labels are public, for the same sources: scikit-learn's digits brought to
28 x 28 (a third way of writing digits, a natural shift), and held-out source images behind a random warp, contrast,
stroke and blur, with random class frequencies and noise (a made shift; the view cannot express all of it). Releases
are made in this process (`benchmarks.local`), with noise for as many records as the real target has.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks import local
from benchmarks.digits import DELTA, SOURCE_EPOCHS
from benchmarks.records import Job, Row, Rows, options, read
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Labelled, Task, load_task
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.experiments.file import read_experiment
from dpswd.public_client.experiments.start import SourceModel, train_source_model
from dpswd.public_client.replay import fit as replay
from dpswd.public_client.replay.augmentation import Variation, Warps, draw_variation
from dpswd.public_client.replay.tuning import tune
from dpswd.public_client.replay.verdict import Fitted
from dpswd.public_client.replay.views import SEARCH, VARIATION, ImageView, view_for

RESULTS = Path(__file__).parent / "results" / "recipe.json"
RECORDS = {"mnist-usps": 7_291, "usps-mnist": 60_000}
EPSILONS = {"mnist-usps": 0.5, "usps-mnist": 0.1}
_HELD_OUT = 2_000
_STILL = Variation(warps=Warps(0.0, 0.0, 0.0, 0.0, 0.0), elastic=0.0, stroke=0.0, gamma=0.0)
_SMALL = Variation(warps=VARIATION.warps, elastic=0.0, stroke=0.0, gamma=0.0)
_ELASTIC = replace(_SMALL, elastic=VARIATION.elastic)


@dataclass(frozen=True)
class Recipe:
    """How to tune.

    Attributes:
        title: for the reader.
        variation: of each image.
        steps: of tuning.
        fitted: whether the view is the fitted one; otherwise the identity, and the release is not used.
    """

    title: str
    variation: Variation
    steps: int
    fitted: bool = True


RECIPES = {
    "still": Recipe("fitted view, no variation, 600 steps", _STILL, 600),
    "small": Recipe("small warps, 600 steps", _SMALL, 600),
    "elastic": Recipe("small warps and elastic fields, 600 steps", _ELASTIC, 600),
    "full": Recipe("and stroke and gamma of each image, 600 steps", VARIATION, 600),
    "default": Recipe("the same, 1,500 steps (as `--method replay` does)", VARIATION, 1500),
    "unfitted": Recipe("the same without a release (the control)", VARIATION, 1500, fitted=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measures, and compares with what is on file")
    run.add_argument("--data-dir", type=Path, default=None, help="folder with mnist.npz and usps16.npz; or OpenML")
    run.add_argument("--tasks", default="usps-mnist,mnist-usps")
    run.add_argument("--proxies", default="digits,made-0")
    run.add_argument("--recipes", default=",".join(RECIPES))
    options(run, RESULTS, seeds=(0,))
    options(commands.add_parser("summary", help="the table of what is on file"), RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "run":
        torch.set_num_threads(1)
        for seed, name in itertools.product(arguments.seeds, arguments.tasks.split(",")):
            Rows(RESULTS, arguments.results).run(_jobs(name, seed, arguments))
        return
    print(table(read(arguments.results or RESULTS)))


def _jobs(name: str, seed: int, arguments: argparse.Namespace) -> Iterator[Job]:
    everything = load_task(name, data_dir=arguments.data_dir).source
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(0))
    held, rest = order[:_HELD_OUT], order[_HELD_OUT:]
    task = Task(name, source=everything.part(rest), target=everything.part(held))
    source = task.source.part(slice(replay.MOST_RECORDS))

    @functools.cache
    def team() -> SourceModel:
        training = read_experiment(None, {"device": "cpu", "source.epochs": SOURCE_EPOCHS[name]})
        return train_source_model(training, task, seed=seed, progress=False)

    @functools.cache
    def frozen() -> nn.Module:
        return copy.deepcopy(team().extractor).requires_grad_(False)

    @functools.cache
    def fit_view(proxy: str) -> Fitted:
        return local.fitted(
            frozen(), source, _target(proxy, task.target).images,
            epsilon=EPSILONS[name], delta=DELTA, seed=seed, records=RECORDS[name],
        )  # fmt: skip

    def measured(proxy: str, recipe: Recipe) -> Row:
        view = fit_view(proxy).view if recipe.fitted else view_for(source.images, torch.ones(2, 1))
        assert isinstance(view, ImageView)
        view.variation = recipe.variation
        model, target = team(), _target(proxy, task.target)
        with reporting("", recipe.steps, shown=False) as bar:
            tuned = tune(
                frozen(), model.classifier, view, source,
                steps=recipe.steps, generator=torch.Generator().manual_seed(seed), bar=bar,
            )  # fmt: skip
        before = accuracy(model.extractor, model.classifier, target)
        return {"accuracy": accuracy(*tuned, target), "source_only": before}

    for proxy, recipe in itertools.product(arguments.proxies.split(","), arguments.recipes.split(",")):
        settings = {"task": name, "proxy": proxy, "recipe": recipe, "seed": seed, "epsilon": EPSILONS[name]}
        yield settings, functools.partial(measured, proxy, RECIPES[recipe])


def _target(proxy: str, held_out: Labelled) -> Labelled:
    if proxy == "digits":
        digits = load_task("digits").source
        images = functional.interpolate(digits.images, size=(28, 28), mode="bilinear", align_corners=False)
        return Labelled(images, digits.labels)
    return _made(held_out, seed=int(proxy.removeprefix("made-")))


@torch.no_grad()
def _made(held_out: Labelled, *, seed: int) -> Labelled:
    """Held-out images behind a random shift."""
    generator = torch.Generator().manual_seed(1000 + seed)

    def normal(width: float) -> float:
        return width * float(torch.randn((), generator=generator))

    view = ImageView(1, -1.0)
    view.warp.theta.copy_(SEARCH.draw(1, generator)[0] * 0.6 + 0.4 * torch.eye(2, 3))
    view.stroke.fill_(normal(0.4))
    view.gamma.fill_(normal(0.3))
    view.blur.fill_(normal(0.4))
    view.affine.gain.fill_(1.0 + normal(0.15))
    view.affine.bias.fill_(normal(0.1))
    often = torch.exp(0.4 * torch.randn(10, generator=generator))
    chosen = torch.multinomial(often[held_out.labels], len(held_out), replacement=True, generator=generator)
    images = held_out.images[chosen]
    apart = Variation(warps=Warps(0.05, 0.05, 0.05, 0.05, 0.03), elastic=0.06, stroke=0.2, gamma=0.2)
    images = view.see(images, draw_variation(apart, images, generator))
    images = images + 0.05 * torch.randn(images.shape, generator=generator)
    return Labelled(images.clamp(-1.0, 1.0), held_out.labels[chosen])


def table(runs: list[dict[str, Any]]) -> str:
    """Each recipe on each kind of target."""
    columns = sorted({(run["task"], run["proxy"]) for run in runs})
    heads = [f"{task.upper().split('-')[0]} to {proxy}, epsilon {EPSILONS[task]}" for task, proxy in columns]
    lines = ["| recipe | " + " | ".join(heads) + " |", "|---" * (len(columns) + 1) + "|"]
    lines.append("| source only | " + " | ".join(_cell(runs, column, None) for column in columns) + " |")
    lines += [
        f"| {recipe.title} | " + " | ".join(_cell(runs, column, key) for column in columns) + " |"
        for key, recipe in RECIPES.items()
    ]
    return "\n".join(lines)


def _cell(runs: list[dict[str, Any]], column: tuple[str, str], recipe: str | None) -> str:
    own = [run for run in runs if (run["task"], run["proxy"]) == column]
    if recipe is None:
        values = [run["source_only"] for run in own][:1]
    else:
        values = [run["accuracy"] for run in own if run["recipe"] == recipe]
    return f"{statistics.mean(values):.1f}" if values else "not run"


if __name__ == "__main__":
    main()
