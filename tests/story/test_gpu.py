"""A real curator process on a GPU, worker and all; skipped, visibly, where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from declarations import quantiles
from scipy.stats import chi2
from torch import nn

from dpswd.public_client.curator.values import PendingStep, new_request_id
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.shared.core.mechanisms.quantiles.coefficients import project
from dpswd.shared.core.mechanisms.sliced import SlicedReply, SlicedRequest
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.published_mechanisms.gradient.cotangents import source_coefficients

RECORDS, SHAPE, SIGMA = 400, (1, 12, 12), 0.5


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_curator_on_a_gpu_releases_the_records_coefficients_with_its_noise() -> None:
    """Against coefficients computed here, on the CPU; fails by chance with probability 1e-6 a step."""
    torch.manual_seed(2)
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(300, 6), nn.Tanh())
    graph = trace(module, SHAPE)
    weights = weights_to_bytes(module_weights(module, graph))
    records = np.random.default_rng(1).random((RECORDS, *SHAPE), dtype=np.float32)
    mechanism, declared = quantiles(3, SIGMA, directions=200)
    with LocalHospital(records, epsilon=1e4, delta=1e-5, device="cuda") as running, running.connect() as hospital:
        curator = hospital.curator
        uploaded = curator.upload_extractor(graph.to_bytes(), weights)
        parameters = RunParameters(
            uploaded.graph_digest, uploaded.weights_digest, mechanism, declared.to_bytes(), RECORDS, 2
        )
        run = curator.open_run(parameters)
        for _ in range(2):
            answer = curator.send(PendingStep(run.run_id, new_request_id(), SlicedRequest().to_bytes()))
            reply = SlicedReply.from_bytes(answer.payload)
            with torch.no_grad():
                features = FeatureMap.identity(6).clipped(module(torch.from_numpy(records)))
            projected = project(features, reply.directions(features))
            exact = source_coefficients(projected, batch=RECORDS, coefficients=3)
            noise = (reply.values.to_numpy() - exact.numpy()) / SIGMA
            squares = float((noise**2).sum())
            assert chi2.ppf(5e-7, noise.size) < squares < chi2.isf(5e-7, noise.size)
