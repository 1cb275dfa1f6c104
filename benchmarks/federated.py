"""Two hospitals in a federation that Flower runs: updates from curators, beside the frameworks' own ways.

    python -m benchmarks.federated run --data-dir ../shared/data       # anew, beside what is on file
    python -m benchmarks.federated choose --data-dir ../shared/data    # clips and rates, on other images
    python -m benchmarks.federated summary

needs mnist.npz in the folder, Flower and ray (docs/ml-team/federated.md). Each hospital has 10,000 images of MNIST, of
14 x 14 means of pixels, and the model is linear. FedAvg over 20 rounds is planned and 25 are asked for, so that who
halts is seen. Accuracy is on MNIST's test images. `choose` takes training images that no run has: two hospitals of
10,000 and 10,000 to look at.

In Flower's ways the node holds the records and trains one epoch a round (SGD, batches of 100, rate 0.1). `server`: its
fixed clipping and noise there, with its accountant, for epsilon 1 in all or with its least recommended multiplier, 1;
`client`: its LocalDpMod with epsilon 1, which is each round's.

NVFlare's ways (NVFlare alone needs to be there) are its filters on the same updates, as differences of weights, in this
process and not in its simulator: `percentile` and `svt` with their default settings, `svt, epsilon 0.05` with half of
that for the choice of weights and half for their release, so that NVFlare counts 1 in 20 rounds. `unfiltered` is the
same loop with no filter, to compare with `none`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import nn
from torch.nn import functional

from benchmarks import records
from dpswd import Finetune, Hospital, LocalHospital
from dpswd.public_client.federated.site import CuratedSite

RESULTS = Path(__file__).parent / "results" / "federated.json"
EPSILON, DELTA, ROUNDS, ASKED, SIZE, BATCH = 1.0, 1e-5, 20, 25, 10_000, 100
RATE, CLIP = 0.3, 0.3
"""Of Adam on the released gradients; of an update, in Flower's ways (`choose`)."""
CHOICES = {"curator": (0.03, 0.1, 0.3), "server, noise 1": (0.03, 0.1, 0.3, 1.0, 3.0)}
FILTERS: dict[str, tuple[str, dict[str, float]] | None] = {
    "percentile": ("PercentilePrivacy", {}),
    "svt": ("SVTPrivacy", {}),
    "svt, epsilon 0.05": ("SVTPrivacy", {"epsilon": 0.025, "epsilon_release": 0.025}),
    "unfiltered": None,
}
"""NVFlare's class and its settings, by way."""
WAYS = ("curator", "server", "server, noise 1", "client", "none", *FILTERS)
SHOWN = {
    "curator": ("the curators", "record"),
    "server": ("Flower's `DifferentialPrivacyServerSideFixedClipping`", "hospital"),
    "server, noise 1": ("the same, noise multiplier 1", "hospital"),
    "client": ("Flower's `LocalDpMod`, epsilon 1 a round", "hospital"),
    "svt": ("NVFlare's `SVTPrivacy()`", "weight"),
    "svt, epsilon 0.05": ("`SVTPrivacy(epsilon=0.025, epsilon_release=0.025)`", "weight"),
    "percentile": ("nobody: NVFlare's `PercentilePrivacy()`", ""),
    "none": ("nobody", ""),
}
"""What the page calls a way, and the unit it protects."""
Part = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run, choose, summary = (commands.add_parser(name) for name in ("run", "choose", "summary"))
    for command in (run, choose):
        command.add_argument("--data-dir", type=Path, required=True)
    run.add_argument("--only", nargs="+", choices=WAYS, default=WAYS)
    records.options(run, RESULTS, seeds=(0, 1, 2))
    records.options(summary, RESULTS)
    arguments = parser.parse_args()
    os.environ |= {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    torch.set_num_threads(1)
    if arguments.command == "run":
        jobs = [
            ({"way": way, "seed": seed}, functools.partial(measured, way, arguments.data_dir, seed=seed))
            for seed in arguments.seeds
            for way in arguments.only
        ]
        records.Rows(RESULTS, arguments.results).run(jobs)
    elif arguments.command == "choose":
        for way, values in CHOICES.items():
            for value in values:
                row = measured(way, arguments.data_dir, seed=0, value=value, first=40_000)
                print(f"{way} {value:g}: {row['accuracy']:.3f}", flush=True)
    else:
        print(table(records.read(arguments.results or RESULTS)))


def table(runs: list[records.Row]) -> str:
    """The page's: a row for each way that has runs and a name there."""
    lines = ["| noise by | unit | epsilon, counted by | accuracy | halted by |", "|---|---|---|---|---|"]
    for way, (name, unit) in SHOWN.items():
        rows = [row for row in runs if row["way"] == way]
        if not rows:
            continue
        reached = [100 * row["accuracy"] for row in rows]
        last = rows[-1]
        counter = last["counted_by"].removeprefix("the ").replace("each curator", "each ledger")
        counted = "" if last["epsilon"] is None else f"{last['epsilon']:.3g}, {counter}"
        after = "" if last["rounds"] == last["of_asked"] else f", after {last['rounds']}"
        lines.append(
            f"| {name} | {unit} | {counted} | {records.mean_and_deviation(reached)} | {last['halted_by']}{after} |"
        )
    return "\n".join(lines)


def measured(way: str, data_dir: Path, *, seed: int, value: float | None = None, first: int = 0) -> records.Row:
    """One federation: accuracy at its end, rounds that moved the model, who ended it, and epsilon by each count."""
    data = np.load(data_dir / "mnist.npz")
    pixels, labels = pooled(data["x_train"]), data["y_train"].astype(np.int64)
    parts = [(pixels[k : k + SIZE], labels[k : k + SIZE]) for k in (first, first + SIZE)]
    test = (pooled(data["x_test"]), data["y_test"].astype(np.int64))
    if first:
        test = (pixels[first - SIZE : first], labels[first - SIZE : first])
    if way == "curator":
        with curators(parts, rate=value or RATE) as (app, spent):
            end = federated(app, seed=seed)
            assert end["rounds"] == ROUNDS, "the curators did not halt it"
            end["halted_by"] = "each curator"
            figures = {"epsilon": spent(), "of": "a record", "counted_by": "each curator"}
    elif way in FILTERS:
        end = filtered(FILTERS[way], parts, seed=seed)
        counted = end.pop("filter_epsilon")
        figures = {"epsilon": counted, "of": "a weight of an update", "counted_by": "the filter"}
        if counted is None:
            figures = {"epsilon": None, "of": None, "counted_by": "nobody"}
    else:
        clip, noise = value or CLIP, {"server": noise_of(EPSILON), "server, noise 1": 1.0}.get(way)
        app = trainers(parts, local=clip if way == "client" else None, seed=seed)
        end = federated(app, seed=seed, clip=clip, noise=noise)
        figures = {"epsilon": end.pop("server_epsilon", None), "of": "a hospital", "counted_by": "the server"}
        if noise is None:
            proved = together(end["rounds"]) if way == "client" else None
            figures = {"epsilon": proved, "of": "a hospital", "counted_by": "nobody"}
    return {"accuracy": accuracy(end.pop("weights"), test), **end, "of_asked": ASKED, **figures}


def pooled(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(n, 28, 28) bytes to (n, 196) in [0, 1]."""
    return (images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)) / 255.0).reshape(-1, 196).astype(np.float32)


def linear() -> nn.Module:
    model = nn.Sequential(nn.Linear(196, 10))
    for own in model.parameters():
        nn.init.zeros_(own)
    return model


def accuracy(weights: dict[str, np.ndarray[Any, Any]], test: Part) -> float:
    scores = test[0] @ weights["0.weight"].T + weights["0.bias"]
    return float((scores.argmax(axis=1) == test[1]).mean())


def together(rounds: int) -> float:
    """What so many of Flower's local releases prove together: Gaussian, each by the classical formula for EPSILON."""
    mu = rounds**0.5 * EPSILON / (2.0 * np.log(1.25 / DELTA)) ** 0.5
    return float(
        brentq(lambda e: norm.cdf(mu / 2 - e / mu) - np.exp(e + norm.logcdf(-mu / 2 - e / mu)) - DELTA, 1e-3, 1e3)
    )


def accountant(most: float | None = None) -> Any:
    from flwr.serverapp import NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod

    return RdpAccountant(
        PrivacyConfig(DELTA, 2, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION, most)
    )


def noise_of(epsilon: float) -> float:
    """Flower's noise multiplier for ROUNDS rounds, by its own accountant."""
    from flwr.supercore.privacy_accounting import GaussianPrivacyEvent

    def left(noise: float) -> float:
        own = accountant()
        own.compose(GaussianPrivacyEvent(noise, 2, 2), ROUNDS)
        return own.get_epsilon(DELTA) - epsilon

    return float(brentq(left, 0.5, 200.0)) * 1.0001


@contextlib.contextmanager
def curators(parts: list[Part], *, rate: float) -> Iterator[Any]:
    """A client app of curated sites, and the most that a ledger says was spent."""
    from dpswd.public_client.federated.flower import client_app

    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        local = [
            opened.enter_context(
                LocalHospital(
                    x, epsilon=EPSILON, delta=DELTA, labels=y, classes=10, value_range=(0.0, 1.0), device="cpu"
                )
            )
            for x, y in parts
        ]
        where = [(one.address, one.credentials, folder / str(number)) for number, one in enumerate(local)]

        def site_of(context: Any) -> CuratedSite:
            address, credentials, directory = where[int(context.node_config["partition-id"])]
            hospital = Hospital.connect(address, credentials=credentials)
            plan = hospital.plan(Finetune(clip_norm=1.0), epsilon=EPSILON, steps=ROUNDS, batch_size=SIZE)
            descent = functools.partial(torch.optim.Adam, lr=rate)
            return CuratedSite(hospital, plan, linear(), directory=directory, optimizer=descent)

        def spent() -> float:
            with contextlib.ExitStack() as connected:
                return max(connected.enter_context(one.connect()).describe().spent for one in local)

        yield client_app(site_of), spent


def trainers(parts: list[Part], *, local: float | None, seed: int) -> Any:
    """A client app whose nodes hold the records; with a clip, Flower's own local noise after it."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.clientapp.mod import LocalDpMod

    app = ClientApp(mods=[] if local is None else [LocalDpMod(local, local, EPSILON, DELTA)])

    @app.train()
    def train(message: Any, context: Any) -> Any:
        number = int(context.node_config["partition-id"])
        weights = message.content["arrays"].to_torch_state_dict()
        after = epoch(weights, parts[number], seed=1000 * seed + number)
        arrays = ArrayRecord({name: Array(own.numpy()) for name, own in after.items()})
        metrics = MetricRecord({"num-examples": len(parts[number][0])})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def epoch(weights: dict[str, torch.Tensor], part: Part, *, seed: int) -> dict[str, torch.Tensor]:
    """A node's weights after one epoch on its own records."""
    x, y = map(torch.from_numpy, part)
    model = linear()
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(seed)
    for batch in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return model.state_dict()


def filtered(kind: tuple[str, dict[str, float]] | None, parts: list[Part], *, seed: int) -> dict[str, Any]:
    """Averages of the nodes' updates, each through a filter of NVFlare of its own.

    Returns:
        The weights at the end, rounds that moved them, who halted, and the most that a filter counts for one node.
    """
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
    from nvflare.app_common.filters.svt_privacy import SVTPrivacy

    classes = {"PercentilePrivacy": PercentilePrivacy, "SVTPrivacy": SVTPrivacy}
    filters = [] if kind is None else [classes[kind[0]](**kind[1]) for _ in parts]
    np.random.seed(seed)  # noqa: NPY002 - the filters' noise is the global generator's
    weights = {name: own.clone() for name, own in linear().state_dict().items()}
    taken = {MetaKey.NUM_STEPS_CURRENT_ROUND: SIZE // BATCH}  # by which the filters divide, as trainers state it
    moved = 0
    for _ in range(ASKED):
        updates = []
        for number, part in enumerate(parts):
            after = epoch(weights, part, seed=1000 * seed + number)
            update = {name: (own - weights[name]).numpy() for name, own in after.items()}
            if filters:
                sent = DXO(DataKind.WEIGHT_DIFF, data=update, meta=taken).to_shareable()
                update = from_shareable(filters[number].process(sent, FLContext())).data
            updates.append(update)
        step = {name: sum(update[name] for update in updates) / len(updates) for name in weights}
        weights = {name: own + torch.from_numpy(step[name]).float() for name, own in weights.items()}
        moved += any(np.any(own) for own in step.values())
    spent = [one.get_privacy_spent() for one in filters if isinstance(one, SVTPrivacy)]
    ended = {name: own.numpy() for name, own in weights.items()}
    return {"weights": ended, "rounds": moved, "halted_by": "nobody", "filter_epsilon": max(spent, default=None)}


def federated(app: Any, *, seed: int, clip: float = 1.0, noise: float | None = None) -> dict[str, Any]:
    """One federation of two nodes in Flower's simulation; with noise, its server clips and adds it.

    Returns:
        The weights at the end, rounds that moved them, who halted, and the epsilon that the server counts.
    """
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.exception import PrivacyBudgetExhausted
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
    from flwr.simulation import run_simulation

    server, models, halted = ServerApp(), [], []
    counts = None if noise is None else accountant(EPSILON if noise > 1.0 else None)

    @server.main()
    def run(grid: Any, _: Any) -> None:
        np.random.seed(seed)  # noqa: NPY002 - Flower's noise on the server is the global generator's
        strategy: Any = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
        if noise is not None:
            strategy = DifferentialPrivacyServerSideFixedClipping(strategy, noise, clip, 2, accountant=counts)

        def keep(_: int, arrays: Any) -> None:
            models.append({name: array.numpy() for name, array in arrays.items()})

        try:
            strategy.start(grid, ArrayRecord(linear().state_dict()), num_rounds=ASKED, evaluate_fn=keep)
        except PrivacyBudgetExhausted:
            halted.append("the server")

    backend = {"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, app, num_supernodes=2, backend_config=backend)
    moved = sum(
        any(not np.array_equal(one[name], after[name]) for name in one) for one, after in itertools.pairwise(models)
    )
    spent = None if counts is None else counts.get_privacy_spent().epsilon
    return {"weights": models[-1], "rounds": moved, "halted_by": halted[0] if halted else "nobody"} | (
        {} if spent is None else {"server_epsilon": spent}
    )


if __name__ == "__main__":
    main()
