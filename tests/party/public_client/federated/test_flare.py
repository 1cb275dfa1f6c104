"""NVFlare's own simulator: two sites of its FedAvg, each behind its curator, until the budgets are used up."""

from __future__ import annotations

import json
import os
import sys

import pytest
from curated_sites import EPSILON, ROUNDS, accuracy, charged, made_model, sites

pytest.importorskip("nvflare", reason="of the extra 'nvflare'")
__all__ = ["sites"]

HELPER = """
import json, os
from curated_sites import site

def site_of(name):
    return site(*json.loads(os.environ["SITES_OF_THE_TEST"])[name])
"""


def test_a_job_of_nvflare_ends_with_the_budgets(sites, tmp_path, monkeypatch):
    (tmp_path / "nodes_of_the_test.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("SITES_OF_THE_TEST", json.dumps({f"site-{k}": where for k, (_, where) in enumerate(sites, 1)}))
    from nvflare.app_common.decomposers import common_decomposers as decomposers
    from nvflare.app_common.workflows.fedavg import FedAvg
    from nvflare.fuel.utils import fobs
    from nvflare.job_config.api import FedJob

    from dpswd.public_client.federated.flare import CuratedExecutor

    job = FedJob("curated")
    weights = {name: value.tolist() for name, value in made_model().state_dict().items()}
    job.to_server(FedAvg(num_clients=2, num_rounds=ROUNDS + 2, model=weights, persistor_id="", save_filename="model"))
    for name in ("site-1", "site-2"):
        job.to(CuratedExecutor("nodes_of_the_test:site_of"), name, tasks=["train"])
    job.simulator_run(str(tmp_path / "work"), threads=2)
    assert [charged(home) for home, _ in sites] == [(1, ROUNDS, ROUNDS, EPSILON)] * 2
    log = (tmp_path / "work" / "server" / "log.txt").read_text()
    assert f"Round {ROUNDS} started" in log  # the first that nothing is left for: rounds are counted from 0
    assert "Aborting current RUN" in log
    assert f"Round {ROUNDS + 1} started" not in log
    logs = [(tmp_path / "work" / name / "log.txt").read_text() for name in ("site-1", "site-2")]
    assert any("no update: RunFinished: all 4 steps of this run are used" in log for log in logs)
    decomposers.register()
    reached = fobs.loadf(str(tmp_path / "work" / "server" / "simulate_job" / "model"))
    assert accuracy(weights) < 0.5 < 0.75 < accuracy(reached.params)
