"""Flower's own simulation: two sites of its FedAvg, each behind its curator, until both budgets are used up."""

from __future__ import annotations

import logging
import os
import sys

import numpy as np
import pytest
from curated_sites import EPSILON, ROUNDS, accuracy, charged, made_model, site, sites

pytest.importorskip("flwr", reason="Flower is installed beside dpswd by hand: docs/ml-team/federated.md")
pytest.importorskip("ray", reason="Flower's simulation runs on ray")
__all__ = ["sites"]


def test_a_federation_of_flower_ends_with_the_budgets(sites, monkeypatch, caplog):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # of ray's workers
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from dpswd.public_client.federated.flower import client_app

    where = [place for _, place in sites]
    server, results = ServerApp(), []

    @server.main()
    def main(grid, context):
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
        models = []

        def keep(number, arrays):
            models.append({name: array.numpy() for name, array in arrays.items()})

        done = strategy.start(grid, ArrayRecord(made_model().state_dict()), num_rounds=ROUNDS + 2, evaluate_fn=keep)
        results.append((models, done.train_metrics_clientapp))

    def site_of(context):
        return site(*where[int(context.node_config["partition-id"])])

    with caplog.at_level(logging.INFO, logger="flwr"):
        logging.getLogger("flwr").propagate = True
        backend = {"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server, client_app(site_of), num_supernodes=2, backend_config=backend)
    ((models, metrics),) = results
    assert sorted(metrics) == list(range(1, ROUNDS + 1))
    assert metrics[ROUNDS]["epsilon_spent"] == pytest.approx(EPSILON, abs=1e-5)
    assert [charged(home) for home, _ in sites] == [(1, ROUNDS, ROUNDS, EPSILON)] * 2
    assert accuracy(models[0]) < 0.5 < 0.75 < accuracy(models[ROUNDS])
    for after in models[ROUNDS + 1 :]:
        assert all(np.array_equal(after[name], models[ROUNDS][name]) for name in after)
    assert caplog.text.count("RunFinished: all 4 steps of this run are used") == 2 * 2
