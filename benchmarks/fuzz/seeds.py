"""Valid requests of every RPC, made against a live site: what the mutations start from."""

from __future__ import annotations

import uuid

import numpy as np
import torch
from google.protobuf.message import Message
from torch import nn

from benchmarks.fuzz.site import CLASSES, RECORD_SHAPE, RECORDS, Site
from shared.extractor.tracing import trace
from shared.extractor.weights import module_weights, weights_to_bytes
from shared.protocol import arrays
from shared.protocol.v1 import curator_pb2 as pb

Seeds = dict[str, list[Message]]

_STEPS = 100_000
"""Steps of each seed run: more than the accepted mutations use up."""

_DIRECTIONS, _BATCH = 6, 16


def make(site: Site) -> Seeds:
    """Uploads, opens one run of each kind, and returns valid requests by the RPC's name."""
    torch.manual_seed(0)
    pixels = RECORD_SHAPE[1] * RECORD_SHAPE[2]
    dense = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 5), nn.ReLU())
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4))
    seeds: Seeds = {"Describe": [pb.DescribeRequest()]}
    extractor, _, model, critic = (
        _upload(site, seeds, module)
        for module in (dense, convolution, nn.Sequential(nn.Flatten(), nn.Linear(pixels, CLASSES)),
                       nn.Sequential(nn.Flatten(), nn.Linear(pixels, 1)))
    )  # fmt: skip
    features = arrays.encode_floats(np.random.default_rng(1).standard_normal((_BATCH, 5)).astype(np.float32))
    seeds["UploadSource"] = [pb.UploadSourceRequest(features=features)]
    digest = site.call("UploadSource", seeds["UploadSource"][0]).source_digest  # type: ignore[attr-defined]
    names = ["1.weight", "1.bias"]
    adapted = module_weights(dense, trace(dense, RECORD_SHAPE))
    flat = b"".join(np.ascontiguousarray(adapted[name], dtype="<f4").tobytes() for name in names)
    linear = pixels + 1
    sigma = 60_000.0  # a run of 100,000 steps then costs some epsilon of 1
    gradient = pb.GradientDeclaration(parameters=names, clip_norm=1.0, sigma=sigma)
    common = {"directions": _DIRECTIONS, "batch_size": _BATCH, "steps": _STEPS, **extractor}
    open_map = pb.FeatureMap(center=_vector(5, 0.1), scale=_vector(5, 0.2))
    rows = pb.RowsDeclaration(sigma=sigma)
    quantiles = pb.QuantilesDeclaration(coefficients=3, sigma=sigma)
    runs = {
        "ReleaseProjections": pb.RunParameters(**common, rows=rows),
        "AlignTarget": pb.RunParameters(**common, rows=rows, gradient=gradient, feature_map=open_map),
        "ReleaseQuantiles": pb.RunParameters(**common, quantiles=quantiles, gradient=gradient),
        "EvaluateModel": pb.RunParameters(
            **model, batch_size=RECORDS, steps=1000,
            evaluation=pb.EvaluationDeclaration(
                classes=CLASSES, bins=5, correct_sigma=2e3, confusion_sigma=2e3, calibration_sigma=2e3
            ),
        ),
        "ReleaseCriticGradient": pb.RunParameters(
            **critic, batch_size=_BATCH, steps=_STEPS, critic=pb.CriticDeclaration(),
            gradient=pb.GradientDeclaration(parameters=names, clip_norm=1.0, sigma=sigma),
        ),
    }  # fmt: skip
    seeds["OpenRun"] = []
    source = pb.SourceFeatures(inline=features)
    for method, parameters in runs.items():
        request = pb.OpenRunRequest(request_id=str(uuid.uuid4()), parameters=parameters)
        run_id = site.call("OpenRun", request).run_id  # type: ignore[attr-defined]
        seeds["OpenRun"] += [request, pb.OpenRunRequest(parameters=parameters, validate_only=True)]
        step = pb.StepInput(run_id=run_id, request_id=str(uuid.uuid4()))
        if method == "AlignTarget":
            step.adapted_parameters = flat
            step.feature_map.CopyFrom(open_map)
            seeds[method] = [
                pb.AlignTargetRequest(input=step, source=source),
                pb.AlignTargetRequest(input=step, source=pb.SourceFeatures(digest=digest)),
            ]
        elif method == "ReleaseQuantiles":
            step.adapted_parameters = flat
            seeds[method] = [pb.ReleaseQuantilesRequest(input=step, source=source)]
        elif method == "ReleaseCriticGradient":
            step.adapted_parameters = np.zeros(linear, dtype="<f4").tobytes()
            seeds[method] = [pb.ReleaseCriticGradientRequest(input=step)]
        else:
            seeds[method] = [getattr(pb, f"{method}Request")(input=step)]
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


def _vector(length: int, value: float) -> pb.FloatArray:
    return arrays.encode_floats(np.full(length, value, dtype=np.float32))
