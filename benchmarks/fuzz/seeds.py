"""Valid requests of every RPC, made against a live site: what the mutations start from."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import torch
from google.protobuf.message import Message
from torch import nn

from benchmarks.fuzz.site import CLASSES, RECORD_SHAPE, RECORDS, Site
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.mechanisms.class_statistics.mechanism import StatisticsDeclaration, StatisticsRequest
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration, EvaluationRequest
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.mechanisms.score_statistics.mechanism import ScoresDeclaration, ScoresRequest
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedRequest
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientDeclaration, GradientRequest
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import (
    LabelledGradientDeclaration,
    LossGradientRequest,
)

Seeds = dict[str, list[Message]]

_STEPS = 100_000
"""Steps of each seed run: more than the accepted mutations use up."""

_DIRECTIONS, _BATCH = 6, 16


def make(site: Site) -> Seeds:
    """Uploads, opens one run of each kind, and returns valid requests by kind: an RPC, and of steps the run."""
    torch.manual_seed(0)
    pixels = RECORD_SHAPE[1] * RECORD_SHAPE[2]
    dense = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 5), nn.ReLU())
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4))
    seeds: Seeds = {"Describe": [pb.DescribeRequest(), site.describe_with_receipt()]}
    extractor, _, model = (
        _upload(site, seeds, module)
        for module in (dense, convolution, nn.Sequential(nn.Flatten(), nn.Linear(pixels, CLASSES)))
    )
    features = np.random.default_rng(1).standard_normal((_BATCH, 5), dtype=np.float32)
    names = ("1.weight", "1.bias")
    adapted = module_weights(dense, trace(dense, RECORD_SHAPE))
    flat = np.concatenate([np.asarray(adapted[name], dtype=np.float32).ravel() for name in names])
    sigma = 60_000.0  # a run of 100,000 steps then costs some epsilon of 1
    summed = ClippedSum(names, clip_norm=1.0, sigma=sigma)
    public_map = FeatureMap(center=torch.full((5,), 0.1), scale=torch.full((5,), 0.2))
    rows = SlicedDeclaration(_DIRECTIONS, sigma)
    mapped = SlicedDeclaration(_DIRECTIONS, sigma, feature_map=public_map)
    quantiles = SlicedDeclaration(_DIRECTIONS, sigma, coefficients=3)
    common = {"batch_size": _BATCH, "steps": _STEPS}
    evaluated = EvaluationDeclaration(CLASSES, 2e3, confusion_sigma=2e3, bins=5, calibration_sigma=2e3)
    runs: dict[str, tuple[dict[str, Any], Payload, list[Payload]]] = {
        "rows": (extractor | common, rows, [SlicedRequest()]),
        "quantiles": (extractor | common, quantiles, [SlicedRequest(), SlicedRequest(public_map)]),
        "gradient of rows": (
            extractor | common,
            GradientDeclaration("rows", mapped, summed, _BATCH),
            [GradientRequest(features, flat, public_map), GradientRequest(features, flat)],
        ),
        "gradient of quantiles": (
            extractor | common,
            GradientDeclaration("quantiles", quantiles, summed, _BATCH),
            [GradientRequest(features, flat)],
        ),
        "evaluation": (model | {"batch_size": RECORDS, "steps": 1000}, evaluated, [EvaluationRequest()]),
        "class_statistics": (
            extractor | {"batch_size": RECORDS, "steps": 1000},
            StatisticsDeclaration(CLASSES, 0.7, 0.7, 0.0, 4e3, public_map),
            [StatisticsRequest()],
        ),
        "score_statistics": (
            model | {"batch_size": RECORDS, "steps": 1000},
            ScoresDeclaration(CLASSES, 1.0, 1.2, 8e3, np.full(1, 2.0, dtype=np.float32)),
            [ScoresRequest(np.zeros((CLASSES, 1), dtype=np.float32))],
        ),
        "labelled_gradient": (
            model | common,
            LabelledGradientDeclaration(CLASSES, summed),
            [LossGradientRequest(), LossGradientRequest(np.zeros(CLASSES * (pixels + 1), dtype=np.float32))],
        ),
    }  # fmt: skip
    seeds["RequestBudget"] = [pb.RequestBudgetRequest(), pb.RequestBudgetRequest(epsilon=1.0, purpose="a site more")]
    seeds["OpenRun"] = []
    for name, (sizes, declaration, payloads) in runs.items():
        parameters = pb.RunParameters(
            **sizes, mechanism=name.partition(" ")[0], declaration=declaration.to_bytes()
        )  # fmt: skip
        request = pb.OpenRunRequest(request_id=str(uuid.uuid4()), parameters=parameters)
        run_id = site.call("OpenRun", request).run_id  # type: ignore[attr-defined]
        seeds["OpenRun"] += [request, pb.OpenRunRequest(parameters=parameters, validate_only=True)]
        seeds[f"DrawStep {name}"] = [
            pb.DrawStepRequest(run_id=run_id, request_id=str(uuid.uuid4()), payload=payload.to_bytes())
            for payload in payloads
        ]
    return seeds


def _upload(site: Site, seeds: Seeds, module: nn.Module) -> dict[str, str]:
    graph = trace(module, RECORD_SHAPE)
    request = pb.UploadExtractorRequest(graph=graph.to_bytes(), weights=weights_to_bytes(module_weights(module, graph)))
    seeds.setdefault("UploadExtractor", []).append(request)
    reply = site.call("UploadExtractor", request)
    return {
        "graph_digest": reply.graph_digest,  # type: ignore[attr-defined]
        "weights_digest": reply.weights_digest,  # type: ignore[attr-defined]
    }
