"""Sends random graphs of the whole vocabulary to a whole curator: uploaded, opened as a run, drawn a step of.

    python -m benchmarks.fuzz.graphs [--graphs 5000] [--seeds 0] [--isolation in-process]

Each graph has up to a dozen nodes of any words that fit one another, weights of ordinary, huge, tiny or no size, and a
run that adapts some of its parameters, whether a gradient reaches them or not. Whatever is wrong with it must be said
at the upload or before the charge: an answer or a refusal in words, never an incident, and none of a charged step. Each
that breaks this is written to --findings, and the exit status is then 1.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.fuzz.site import CLASSES, RECORD_SHAPE, Finding, Site
from benchmarks.records import Row, Rows, options
from dpswd.public_client.extractor.tracing import weights_to_bytes
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import (
    LabelledGradientDeclaration,
    LossGradientRequest,
)
from dpswd.shared.sandbox.graph import ExtractorGraph, Node, infer
from dpswd.shared.sandbox.operations import Shape
from dpswd.shared.sandbox.vocabulary import VOCABULARY

RESULTS = Path(__file__).parents[1] / "results" / "fuzz-graphs.json"
BATCH = 16
MOST_VALUES = 4096
"""Numbers of one value: shapes decide, not sizes."""
_MOST_NODES = 12
_SCALES = (1.0, 1.0, 0.1, 1e30, 1e-30, 0.0)


def _divisor(rng: random.Random, number: int) -> int:
    return rng.choice([n for n in range(1, number + 1) if number % n == 0])


def _some_shape(rng: random.Random, shape: Shape) -> Shape:
    """Another shape of as many numbers."""
    left, sides = math.prod(shape), []
    for _ in range(rng.randrange(3)):
        sides.append(_divisor(rng, left))
        left //= sides[-1]
    sides.append(left)
    rng.shuffle(sides)
    return tuple(sides)


def _order(rng: random.Random, sides: int) -> tuple[int, ...]:
    return tuple(rng.sample(range(sides), sides))


def _window(rng: random.Random, dimensions: int) -> dict[str, tuple[int, ...]]:
    def each(*choices: int) -> tuple[int, ...]:
        return tuple(rng.choice(choices) for _ in range(dimensions))

    return {
        "kernel_size": each(1, 2, 3), "stride": each(1, 1, 2, 3), "padding": each(0, 0, 1), "dilation": each(1, 1, 2),
    }  # fmt: skip


def _flag(rng: random.Random) -> bool:
    return rng.random() < 0.5


def _convolution(rng: random.Random, s: Shape) -> dict[str, Any]:
    groups = _divisor(rng, s[0])
    out = groups * rng.randint(1, 3)
    own = {"in_channels": s[0], "out_channels": out, "groups": groups, "bias": _flag(rng)}
    return own | _window(rng, len(s) - 1)


def _pool(other: str) -> Callable[[random.Random, Shape], dict[str, Any]]:
    def attributes(rng: random.Random, s: Shape) -> dict[str, Any]:
        own = _window(rng, len(s) - 1)
        dilation = own.pop("dilation")
        return own | {"ceil_mode": _flag(rng), other: dilation if other == "dilation" else _flag(rng)}

    return attributes


def _recurrent(rng: random.Random, s: Shape) -> dict[str, Any]:
    layer = {"layer": rng.randrange(3), "reverse": _flag(rng), "bias": _flag(rng)}
    return {"input_size": s[-1], "hidden_size": rng.randint(1, 6), **layer}


def _places(rng: random.Random, s: Shape) -> dict[str, int]:
    axis = rng.randrange(len(s))
    begin = rng.randrange(s[axis])
    return {"axis": axis, "begin": begin, "end": rng.randint(begin + 1, s[axis])}


ATTRIBUTES: Mapping[str, Callable[[random.Random, Shape], dict[str, Any]]] = {
    **{f"conv{n}d": _convolution for n in (1, 2)},
    **{f"max_pool{n}d": _pool("dilation") for n in (1, 2)},
    **{f"avg_pool{n}d": _pool("count_include_pad") for n in (1, 2)},
    **{
        f"adaptive_{form}_pool{n}d": lambda r, s: {"output_size": tuple(r.randint(1, 7) for _ in s[1:])}
        for form in ("avg", "max")
        for n in (1, 2)
    },
    **dict.fromkeys(("rnn", "rnn_relu", "gru", "lstm"), _recurrent),
    "linear": lambda r, s: {"in_features": s[-1], "out_features": r.randint(1, 8), "bias": _flag(r)},
    "batch_norm": lambda r, s: {"num_features": s[0], "eps": 1e-5, "affine": _flag(r)},
    "group_norm": lambda r, s: {
        "num_channels": s[0], "num_groups": _divisor(r, s[0]), "eps": 1e-5, "affine": _flag(r),
    },
    "layer_norm": lambda r, s: {
        "normalized_shape": s[r.randrange(len(s)) :], "eps": 1e-5, "elementwise_affine": _flag(r), "bias": _flag(r),
    },
    "prelu": lambda r, s: {"num_parameters": r.choice((1, s[0]))},
    "channel_affine": lambda _, s: {"channels": s[0]},
    "feature_affine": lambda _, s: {"features": s[-1]},
    "leaky_relu": lambda r, _: {"negative_slope": r.random()},
    "elu": lambda r, _: {"alpha": r.uniform(0.1, 3.0)},
    "softplus": lambda r, _: {"beta": r.choice((1e-3, 1.0, 1e3)), "threshold": r.choice((1.0, 20.0, 1e3))},
    "hardtanh": lambda r, _: {"min_val": r.uniform(-2, 1), "max_val": r.uniform(-1, 2)},
    "reshape": lambda r, s: {"shape": _some_shape(r, s)},
    "scale_shift": lambda r, _: {"gain": r.choice((-1e6, 0.0, 0.5, 1e6)), "shift": r.choice((0.0, 1.0, 1e6))},
    "less_than": lambda r, _: {"constant": r.gauss(0.0, 1.0)},
    "equal_to": lambda r, _: {"constant": float(r.randrange(3))},
    "nan_to_num": lambda r, _: {"nan": r.choice((0.0, 1.0, -1e6))},
    "permute": lambda r, s: {"order": _order(r, len(s))},
    "rearrange": lambda r, s: (
        lambda sides: {"sides": sides, "order": _order(r, len(sides))}
    )(_some_shape(r, s)),
    "slice": _places,
    "normalize": lambda r, s: {"axis": r.randrange(len(s)), "eps": 1e-12},
    "embedding": lambda r, _: {"num_embeddings": r.randint(1, 9), "embedding_dim": r.randint(1, 5)},
    "pad": lambda r, s: {
        "axis": r.randrange(len(s)), "before": r.randrange(3), "after": r.randrange(3), "value": r.choice((0.0, 1e6)),
    },
    "in_projection": lambda r, s: {"embed_dim": s[-1], "bias": _flag(r)},
    "parameter": lambda _, s: {"shape": s},
    "buffer": lambda _, s: {"shape": s},
}  # fmt: skip
"""For words that have attributes: some that may fit an input of this shape."""


def random_graph(rng: random.Random, shape: Shape) -> ExtractorGraph:
    """A valid graph of records of this shape."""
    nodes: list[Node] = []
    shapes = [shape]

    def add(operation: str, inputs: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
        own = VOCABULARY[operation].tensors(attributes)
        path = ""
        if own:  # sometimes a layer that is there already, once more
            alike = [node.path for node in nodes if (node.operation, node.attributes) == (operation, attributes)]
            path = rng.choice(alike) if alike and _flag(rng) else f"n{len(nodes)}"
        node = Node(operation, inputs, path, dict(attributes))
        shapes.append(infer(node, shapes))
        nodes.append(node)
        return len(nodes)

    names, most = sorted(VOCABULARY), rng.randint(1, _MOST_NODES)
    if rng.random() < 0.7:
        add("reshape", (0,), {"shape": _some_shape(rng, shape)})
    for _ in range(40 * most):
        if len(nodes) >= most:
            break
        name = rng.choice(names)
        fewest, _most = VOCABULARY[name].inputs
        recent = [max(0, len(shapes) - 1 - int(rng.expovariate(0.7))) for _ in range(fewest)]
        like = shapes[recent[0]] if recent else rng.choice(shapes)
        inputs = tuple(recent)
        if fewest == 2:
            fitting = [i for i, other in enumerate(shapes) if len(other) == len(like) or name == "look_up"]
            inputs = (recent[0], rng.choice(fitting))
        try:
            attributes = ATTRIBUTES[name](rng, like) if name in ATTRIBUTES else {}
            add(name, inputs, attributes)
        except (InvalidValue, IndexError):
            continue
        if math.prod(shapes[-1]) > MOST_VALUES:
            nodes.pop(), shapes.pop()
    used = {number for node in nodes for number in node.inputs}
    ends = [number for number in range(len(shapes)) if number not in used]
    flat = [add("reshape", (end,), {"shape": (math.prod(shapes[end]),)}) for end in ends]
    last = flat[0] if len(flat) == 1 else add("concat", tuple(flat), {})
    size = shapes[last][0]
    if _flag(rng) or size < CLASSES:
        add("linear", (last,), {"in_features": size, "out_features": CLASSES, "bias": True})
    else:
        add("slice", (last,), {"axis": 0, "begin": size - CLASSES, "end": size})
    return ExtractorGraph(tuple(nodes), shape)


def random_weights(rng: random.Random, graph: ExtractorGraph) -> dict[str, torch.Tensor]:
    """Finite weights of the graph, variances positive and knots increasing."""
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    made = {}
    for name, shape in graph.tensor_shapes.items():
        made[name] = rng.choice(_SCALES) * torch.randn(shape, generator=generator)
        end = name.rpartition(".")[2]
        if end == "running_var":
            made[name] = made[name].abs()
        elif end == "knots":
            made[name] = torch.linspace(-2.0, 2.0, shape[1]).repeat(shape[0], 1)
    return made


class Campaign:
    """Random graphs against one site."""

    def __init__(self, site: Site, rng: random.Random, findings: Path | None = None) -> None:
        self._site = site
        self._rng = rng
        self._directory = findings
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.words: Counter[str] = Counter()
        self.findings: list[str] = []

    def run(self, graphs: int, *, tell: Callable[[str], object] = lambda _: None) -> None:
        """Sends as many graphs."""
        for number in range(graphs):
            graph = random_graph(self._rng, RECORD_SHAPE)
            self.words.update(node.operation for node in graph.nodes)
            try:
                self._one(graph)
            except Finding as finding:
                self.findings.append(f"{finding}: {[(n.operation, n.inputs, n.attributes) for n in graph.nodes]}")
                if self._directory is not None:
                    self._directory.mkdir(exist_ok=True)
                    (self._directory / f"{len(self.findings):04d}-graph.json").write_bytes(graph.to_bytes())
                tell(f"finding {len(self.findings)}: {self.findings[-1][:600]}")
            if (number + 1) % 500 == 0:
                tell(f"{number + 1:,} of {graphs:,}, {len(self.findings)} findings")

    def _one(self, graph: ExtractorGraph) -> None:
        packed = weights_to_bytes(random_weights(self._rng, graph))
        upload = pb.UploadExtractorRequest(graph=graph.to_bytes(), weights=packed)
        if not self._sent("UploadExtractor", upload):
            return
        digests = self._site.call("UploadExtractor", upload)
        names = sorted(graph.parameter_shapes)
        chosen = tuple(self._rng.sample(names, self._rng.randint(1, min(3, len(names))))) if names else ("none",)
        run = pb.RunParameters(
            graph_digest=digests.graph_digest,  # type: ignore[attr-defined]
            weights_digest=digests.weights_digest,  # type: ignore[attr-defined]
            mechanism="labelled_gradient",
            declaration=LabelledGradientDeclaration(CLASSES, ClippedSum(chosen, 1.0, 6e5)).to_bytes(),
            batch_size=BATCH,
            steps=2,
        )
        opening = pb.OpenRunRequest(request_id=str(uuid.UUID(int=self._rng.getrandbits(128))), parameters=run)
        if not self._sent("OpenRun", opening):
            return
        run_id = self._site.call("OpenRun", opening).run_id  # type: ignore[attr-defined]
        step = pb.DrawStepRequest(
            run_id=run_id, request_id=str(uuid.UUID(int=self._rng.getrandbits(128))),
            payload=LossGradientRequest().to_bytes(),
        )  # fmt: skip
        if not self._sent("DrawStep", step):
            raise Finding("a step that was paid for was refused")

    def _sent(self, method: str, message: Any) -> bool:
        reason = self._site.send(method, message.SerializeToString()).reason
        self.outcomes[method, reason] += 1
        return reason == "OK"


def measured(chosen: argparse.Namespace, *, seed: int, graphs: int, isolation: str) -> Row:
    """One campaign against a curator of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="dpswd-graphs-", dir=chosen.directory) as directory,
        Site(Path(directory), isolation=isolation, storage_objects=100_000) as site,
    ):
        campaign = Campaign(site, random.Random(seed), chosen.findings)
        campaign.run(graphs, tell=lambda text: print(text, file=sys.stderr, flush=True))
    outcomes = {f"{method}: {reason}": count for (method, reason), count in sorted(campaign.outcomes.items())}
    return {"words": len(campaign.words), "findings": campaign.findings, "outcomes": outcomes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=5000, help="of each seed")
    parser.add_argument("--isolation", choices=("in-process", "process"), default="in-process")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm") if Path("/dev/shm").is_dir() else None)
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    options(parser, RESULTS, seeds=(0,))
    chosen = parser.parse_args()
    every = [{"seed": seed, "graphs": chosen.graphs, "isolation": chosen.isolation} for seed in chosen.seeds]
    rows = Rows(RESULTS, chosen.results).run([(asked, functools.partial(measured, chosen, **asked)) for asked in every])
    return 1 if any(row["findings"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
