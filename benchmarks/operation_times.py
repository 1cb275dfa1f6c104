"""Does the time of any operation of the vocabulary depend on what numbers it meets, or on its parameters' values?

    python -m benchmarks.operation_times [--check] [--only elu tanh] [--planted 1.05] [--results FILE]

Every operation is evaluated as an extraction worker evaluates it (under vmap, one thread, denormals flushed) on numbers
of one kind at a time: constant, random, of one sign, huge, denormal, NaN and others; and, where it has parameters, on
random numbers with parameters of one kind at a time: identity, turned, skewed, huge, tiny and others. Forward passes,
and forward and backward passes together, are timed apart; incoming gradients are of the same kind as the inputs.

Each kind is compared with random numbers, which every trial of a step has, in a fixed number of pairs: four passes of
each (fewer of long ones) in random order, one directly after the other, of which the shortest count, since other work
on the machine slows now these and now those; four times as many where that leaves a case uncertain. The figure is the
median of the pairs' ratios, with bounds between which it lies with a confidence of 1 - 1e-7 whatever the law of the
ratios (order statistics, as in the sign test). Processor time of the thread is counted.

With --check the exit status is 1 unless every upper bound is within the limit: what is not certain is not passed. With
--planted each operation takes so many times as long for one kind of numbers, and every one must be found. The worst
stands last. Half an hour to two hours. Takes no seeds: the order of a pair is drawn anew, and figures are ratios.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from scipy.stats import binom
from torch import Tensor
from torch.func import vmap

from benchmarks.records import Row, Rows, options
from dpswd.private_curator.core.steps.denormals import flushed_denormals
from dpswd.shared.sandbox.attributes import Attributes
from dpswd.shared.sandbox.operations import Operation, Shape
from dpswd.shared.sandbox.steady import LARGEST_RATIO
from dpswd.shared.sandbox.vocabulary import VOCABULARY

RESULTS = Path(__file__).parent / "results" / "operation-times.json"
RECORDS = 4
PAIRS = 250  # of each kind: the median's bounds are about 1 % away on a quiet machine
_TRIES = 4  # of each side of a pair, of the shortest passes: of single ones the ratios spread four times as wide
_LONG_S = 0.0008  # of as many tries together: of longer passes fewer are needed
_AGAIN = 4  # times as many tries where the first look decides nothing; each look is certain by itself
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_UNCERTAIN = 1e-7  # that the median of the ratios is outside of its bounds

Fill = Callable[[Tensor], Tensor]
"""Turns standard normal numbers into numbers of one kind, of the same shape."""


def _alternating(value: float) -> Fill:
    return lambda z: torch.where(z > 0, value, -value)


KINDS: Mapping[str, Fill] = {
    "random": lambda z: z,
    "random, positive": torch.abs,
    "random, negative": lambda z: -z.abs(),
    "zero": torch.zeros_like,
    "one": torch.ones_like,
    "minus one": lambda z: -torch.ones_like(z),
    "constant 0.3": lambda z: torch.full_like(z, 0.3),
    "rising": lambda z: torch.linspace(-4, 4, z.numel()).reshape(z.shape),
    "falling": lambda z: torch.linspace(4, -4, z.numel()).reshape(z.shape),
    "saturating": lambda z: 60 * z,
    "saturating, positive": lambda z: 60 + 60 * z.abs(),
    "saturating, negative": lambda z: -60 - 60 * z.abs(),
    "huge": _alternating(1e30),
    "huge, positive": lambda z: torch.full_like(z, 3e38),
    "huge, negative": lambda z: torch.full_like(z, -3e38),
    "infinite": _alternating(float("inf")),
    "tiny": lambda z: 1e-20 * z,
    "smallest normal": lambda z: 1.2e-38 * (1 + z.abs()),
    "denormal": lambda z: 1e-41 * z,
    "denormal among others": lambda z: torch.where(z > 0.5, 1e-41, z),
    "every magnitude": lambda z: z * 10 ** (25 * z.roll(1)).clamp(-42, 37),
    "not a number": lambda z: torch.full_like(z, float("nan")),
    "NaN among others": lambda z: torch.where(z > 0.5, float("nan"), z),
}
"""Kinds of numbers that a record, or what an extractor computes of it, may consist of."""


Values = Callable[[Tensor], Tensor]


def _matrix(fill: Callable[[int, int], Tensor]) -> Values:
    """Parameters whose last two sides, or whose only one and another of one, are filled as a matrix."""
    return lambda w: fill(math.prod(w.shape[:-1]), w.shape[-1]).reshape(w.shape)


def _turned(rows: int, columns: int) -> Tensor:
    """A quarter turn of the first two sides, and so on."""
    return torch.eye(rows, columns)[torch.arange(rows) ^ 1 if rows % 2 == 0 else slice(None)] * torch.where(
        torch.arange(rows)[:, None] % 2 == 0, 1.0, -1.0
    )


PARAMETERS: Mapping[str, Values] = {
    "identity": _matrix(torch.eye),
    "turned": _matrix(_turned),
    "skewed": _matrix(lambda r, c: torch.eye(r, c) + 0.7 * torch.ones(r, c).triu(1) - 0.3 * torch.ones(r, c).tril(-1)),
    "zero parameters": torch.zeros_like,
    "random parameters": lambda w: torch.randn(w.shape, generator=torch.Generator().manual_seed(3)),
    "huge parameters": lambda w: torch.where(w > 0, 3e38, -3e38),
    "large parameters": lambda w: torch.where(w > 0, 60.0, -60.0),
    "tiny parameters": lambda w: 1e-38 * w,
}
"""Kinds of values that a run may adapt an operation's parameters to: public, but no trial knows them all."""


@dataclass(frozen=True)
class Case:
    """One way to use an operation.

    Attributes:
        operation: its name.
        shapes: of its inputs, for one record.
        attributes: as in a graph.
        label: tells several cases of one operation apart.
    """

    operation: str
    shapes: tuple[Shape, ...]
    attributes: Attributes = field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        """For a person."""
        return f"{self.operation} {self.label}".strip()


_VECTOR, _IMAGE, _SIGNAL = ((16384,),), ((16, 32, 32),), ((16, 1024),)


def _window(dimensions: int, **attributes: object) -> Attributes:
    sides = {"kernel_size": (3,) * dimensions, "stride": (2,) * dimensions, "padding": (1,) * dimensions}
    return {**sides, **attributes}


def _convolution(dimensions: int, shape: Shape, channels: int) -> Case:
    at = {"in_channels": shape[0], "out_channels": channels, "groups": 1, "bias": True}
    rest = _window(dimensions, stride=(1,) * dimensions, dilation=(1,) * dimensions)
    return Case(f"conv{dimensions}d", (shape,), at | dict(rest), label=f"of {shape[0]} channels")


_RECURRENT = {"input_size": 32, "hidden_size": 32, "layer": 0, "reverse": False, "bias": True}
_PLAIN = (
    "relu",
    "selu",
    "gelu",
    "gelu_tanh",
    "silu",
    "mish",
    "tanh",
    "sigmoid",
    "cos",
    "exp",
    "log",
    "hardswish",
    "hardsigmoid",
)

CASES: tuple[Case, ...] = (
    *(Case(name, _VECTOR) for name in _PLAIN),
    Case("leaky_relu", _VECTOR, {"negative_slope": 0.01}),
    Case("elu", _VECTOR, {"alpha": 1.0}),
    Case("softplus", _VECTOR, {"beta": 1.0, "threshold": 20.0}),
    Case("hardtanh", _VECTOR, {"min_val": -1.0, "max_val": 1.0}),
    *(Case(f"max_pool{n}d", s, _window(n, dilation=(1,) * n, ceil_mode=False)) for n, s in ((1, _SIGNAL), (2, _IMAGE))),
    Case(
        "max_pool2d",
        ((1, 128, 128),),
        {"kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "ceil_mode": True},
        label="of one channel",
    ),
    *(
        Case(f"avg_pool{n}d", s, _window(n, ceil_mode=False, count_include_pad=False))
        for n, s in ((1, _SIGNAL), (2, _IMAGE))
    ),
    *(
        Case(f"adaptive_{form}_pool{n}d", s, {"output_size": (5,) * n})
        for form in ("avg", "max")
        for n, s in ((1, _SIGNAL), (2, _IMAGE))
    ),
    Case("reshape", _IMAGE, {"shape": (16384,)}),
    Case("add", _VECTOR * 2),
    Case("multiply", _VECTOR * 2),
    Case("multiply", ((16, 32, 32), (16, 1, 1)), label="by a gate"),
    Case("concat", _VECTOR * 3),
    Case("scale_shift", _VECTOR, {"gain": 0.5, "shift": 0.25}),
    _convolution(1, (8, 512), 8),
    Case(
        "conv1d",
        ((3000, 1),),
        {"in_channels": 3000, "out_channels": 3200, "groups": 100, "bias": True}
        | dict(_window(1, kernel_size=(1,), stride=(1,), padding=(0,), dilation=(1,))),
        label="of groups",
    ),
    _convolution(2, (1, 32, 32), 8),
    _convolution(2, (8, 16, 16), 8),
    Case("linear", ((512,),), {"in_features": 512, "out_features": 256, "bias": True}),
    Case("batch_norm", _IMAGE, {"num_features": 16, "eps": 1e-5, "affine": True}),
    Case("group_norm", _IMAGE, {"num_channels": 16, "num_groups": 4, "eps": 1e-5, "affine": True}),
    Case("layer_norm", _VECTOR, {"normalized_shape": (16384,), "eps": 1e-5, "elementwise_affine": True, "bias": True}),
    Case(
        "group_norm", ((4096, 4),), {"num_channels": 4096, "num_groups": 4096, "eps": 1e-5, "affine": True}, "of fours"
    ),
    Case(
        "layer_norm",
        ((8192, 2),),
        {"normalized_shape": (2,), "eps": 1e-5, "elementwise_affine": True, "bias": True},
        label="of pairs",
    ),
    Case("affine_warp2d", _IMAGE),
    Case("channel_affine", _IMAGE, {"channels": 16}),
    Case("feature_affine", _VECTOR, {"features": 16384}),
    Case("divide", _VECTOR * 2),
    Case("divide", ((16, 32, 32), (16, 1, 1)), label="by a channel's"),
    Case("less", _VECTOR * 2),
    Case("less", ((512, 30), (512, 1)), label="than a column"),
    Case("equal", _VECTOR * 2),
    Case("less_than", _VECTOR, {"constant": 0.5}),
    Case("equal_to", _VECTOR, {"constant": 0.0}),
    Case("nan_to_num", _VECTOR, {"nan": 0.0}),
    Case("permute", _IMAGE, {"order": (2, 0, 1)}),
    Case("rearrange", _IMAGE, {"sides": (16, 4, 8, 4, 8), "order": (1, 3, 2, 4, 0)}),
    Case("slice", _IMAGE, {"axis": 1, "begin": 3, "end": 30}),
    Case("matmul", ((4, 64, 32), (4, 32, 64))),
    Case("softmax", ((4, 64, 64),)),
    Case("softmax", ((4096, 4),), label="of fours"),
    Case("normalize", _VECTOR, {"axis": 0, "eps": 1e-12}),
    Case("normalize", ((8192, 2),), {"axis": 1, "eps": 1e-12}, label="of pairs"),
    Case("add", ((64, 256), (1, 256)), label="of a row"),
    Case("embedding", ((32,),), {"num_embeddings": 1000, "embedding_dim": 32}),
    Case("look_up", ((500, 8), (64,))),
    Case("pad", _IMAGE, {"axis": 2, "before": 1, "after": 2, "value": 0.0}),
    Case("in_projection", ((64, 64),), {"embed_dim": 64, "bias": True}),
    Case("rnn", ((24, 32),), _RECURRENT),
    Case("rnn_relu", ((24, 32),), _RECURRENT),
    Case("prelu", _IMAGE, {"num_parameters": 16}),
    Case("gru", ((24, 32),), _RECURRENT),
    Case("lstm", ((24, 32),), _RECURRENT),
)
"""Every operation that takes a value at least once, at sizes of which a pass takes tenths of a millisecond and more."""


@dataclass(frozen=True)
class Bounds:
    """The median ratio of a kind's times to those of random numbers.

    Attributes:
        low: it is at least so much.
        median: of the pairs.
        high: it is at most so much.
    """

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, ratios: list[float]) -> Bounds:
        """Distribution-free bounds."""
        ordered = sorted(ratios)
        rank = max(0, int(binom.ppf(_UNCERTAIN / 2, len(ordered), 0.5)) - 1)
        return cls(ordered[rank], statistics.median(ordered), ordered[-1 - rank])

    def away(self) -> Bounds:
        """The same of the slower over the faster."""
        return self if self.median >= 1.0 else Bounds(1.0 / self.high, 1.0 / self.median, 1.0 / self.low)


@dataclass(frozen=True)
class Figure:
    """What was measured of one case and pass.

    Attributes:
        name: of the case.
        backward: whether gradients were computed as well.
        kinds: each kind of numbers or parameters against random numbers.
        seconds: that a pass over random numbers took.
    """

    name: str
    backward: bool
    kinds: Mapping[str, Bounds]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether it is certain that no kind differs by more than the limit."""
        return all(kind.away().high <= LARGEST_RATIO for kind in self.kinds.values())

    @property
    def failed(self) -> bool:
        """Whether it is certain that some kind does."""
        return any(kind.away().low > LARGEST_RATIO for kind in self.kinds.values())

    @property
    def worst(self) -> str:
        """The kind whose median is furthest away."""
        return max(self.kinds, key=lambda kind: self.kinds[kind].away().median)

    @property
    def row(self) -> Row:
        """To be written; `of` reads it."""
        kinds = {name: [kind.low, kind.median, kind.high] for name, kind in self.kinds.items()}
        worst = self.kinds[self.worst].away()
        return {"pass_s": self.seconds, "worst": self.worst, "worst_ratio": worst.median, "kinds": kinds}

    @classmethod
    def of(cls, row: Row) -> Figure:
        """What was written."""
        kinds = {name: Bounds(*values) for name, values in row["kinds"].items()}
        return cls(row["case"], row["backward"], kinds, row["pass_s"])

    def __str__(self) -> str:
        """One line for a person."""
        passes, worst = "forward and backward" if self.backward else "forward", self.kinds[self.worst]
        high = max(kind.away().high for kind in self.kinds.values())
        return (
            f"{self.name:26} {passes:22}{1e6 * self.seconds:6.0f} us  {worst.median:5.3f} ({worst.low:.3f} to "
            f"{worst.high:.3f}) for {self.worst}; all within {high:.3f}"
        )


def weights_of(case: Case, generator: torch.Generator, operation: Operation | None = None) -> dict[str, Tensor]:
    """Plausible weights: increasing knots, positive variances, the identity warp, small numbers elsewhere."""
    made = {}
    operation = operation or VOCABULARY[case.operation]
    for name, shape in operation.tensors(case.attributes).items():
        made[name] = 0.1 * torch.randn(shape, generator=generator)
        if name == "knots":
            made[name] = torch.linspace(-2, 2, shape[1]).repeat(shape[0], 1)
        elif name in ("running_var", "gain", "weight") and len(shape) == 1:
            made[name] = 1 + made[name].abs()
        elif name == "theta":
            made[name] = torch.tensor([[1.0, 0.1, 0.0], [0.0, 0.9, 0.1]])
    return made


@dataclass(frozen=True)
class Pass:
    """A pass over records of one kind.

    Attributes:
        put: puts the numbers where all kinds have them, in the same memory, as a worker has: where numbers lie in a
            cache makes differences of several percent that are no difference between numbers.
        run: what is timed.
    """

    put: Callable[[], None]
    run: Callable[[], object]


def passes(case: Case, *, backward: bool, operation: Operation, records: int = RECORDS) -> dict[str, Pass]:
    """One pass over records of each kind of numbers, and with parameters of each, ready to be timed."""
    generator = torch.Generator().manual_seed(0)
    weights = weights_of(case, generator, operation)
    trained = {name: weights[name] for name in operation.parameters(case.attributes)}
    fixed = {name: tensor for name, tensor in weights.items() if name not in trained}
    normal = [torch.randn(records, *shape, generator=generator) for shape in case.shapes]

    def one(inputs: list[Tensor], own: dict[str, Tensor]) -> Tensor:
        return operation.apply(inputs, case.attributes, {**fixed, **own})

    def forward(inputs: list[Tensor], values: dict[str, Tensor]) -> Tensor:
        return vmap(lambda record: one(record, values))(inputs)

    cotangent = torch.randn(forward(normal, trained).shape, generator=generator)

    places = [torch.empty_like(z) for z in normal]
    incoming = torch.empty_like(cotangent)
    placed = {name: torch.empty_like(tensor) for name, tensor in trained.items()}

    def run() -> object:
        if not backward:
            with torch.no_grad():
                return forward(places, placed)
        own = {name: tensor.expand(records, *tensor.shape).detach().requires_grad_() for name, tensor in placed.items()}
        leaves = [place.detach().requires_grad_() for place in places]
        out = vmap(one)(leaves, own)
        if not operation.differentiable and not own:
            return out
        # An embedding has no gradient in the words.
        return torch.autograd.grad(out, [*leaves, *own.values()], incoming, allow_unused=True)

    def make(fill: Fill, values: Values) -> Pass:
        new = [*(fill(z) for z in normal), fill(cotangent), *(values(tensor) for tensor in trained.values())]
        stay = [*places, incoming, *placed.values()]

        def put() -> None:
            for place, tensor in zip(stay, new, strict=True):
                place.copy_(tensor)

        return Pass(put, run)

    made = {kind: make(fill, lambda w: w) for kind, fill in KINDS.items()}
    return made | ({kind: make(KINDS["random"], values) for kind, values in PARAMETERS.items()} if trained else {})


def measured(
    case: Case,
    *,
    backward: bool,
    operation: Operation | None = None,
    only: Collection[str] = (),
    pairs: int = PAIRS,
    planted: float = 1.0,
    patience: int = 1,
) -> Figure:
    """Times a case.

    Args:
        case: the operation and its sizes.
        backward: whether gradients are computed as well.
        operation: in the place of the vocabulary's.
        only: some kinds; by default all.
        pairs: how often each kind is compared with random numbers.
        planted: how many times as long a pass takes on records of NaN.
        patience: times as many tries of each side of a pair; the fastest counts.
    """
    usual, *others = ready = passes(case, backward=backward, operation=operation or VOCABULARY[case.operation])
    usually = min(_timed(ready[usual]) for _ in range(3))
    tries = patience * max(1, min(_TRIES, round(_LONG_S / usually)))
    kinds, reference = {}, []
    for kind in others:
        if only and kind not in only:
            continue
        factors = {usual: 1.0, kind: planted if kind == "not a number" else 1.0}
        _timed(ready[kind])
        ratios = []
        for _ in range(pairs):
            seconds = {usual: math.inf, kind: math.inf}
            for _ in range(tries):
                for name in random.sample([usual, kind], 2):
                    seconds[name] = min(seconds[name], _timed(ready[name], factors[name]))
            ratios.append(seconds[kind] / seconds[usual])
            reference.append(seconds[usual])
        kinds[kind] = Bounds.of(ratios)
    return Figure(case.name, backward, kinds, statistics.median(reference))


def _timed(each: Pass, factor: float = 1.0) -> float:
    """Processor time of this thread: all that a pass on one thread takes, and nothing while others had the machine."""
    each.put()
    begun = time.thread_time()
    each.run()
    ends = begun + factor * (time.thread_time() - begun)
    while (now := time.thread_time()) < ends:
        pass
    return now - begun


def _keep_memory() -> None:
    """Freed memory stays in this process, as in a worker: pages that come anew from the system take time."""
    library = ctypes.CDLL(None)
    for parameter, most in ((_M_TRIM_THRESHOLD, 1 << 30), (_M_MMAP_THRESHOLD, 1 << 25)):
        if not library.mallopt(parameter, most):
            raise OSError("mallopt")


def main() -> int:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help=f"exit with 1 unless all are certainly below {LARGEST_RATIO}"
    )
    parser.add_argument("--only", nargs="+", choices=sorted(VOCABULARY), help="some operations only")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of each operation; more on a busy machine")
    parser.add_argument("--planted", type=float, default=1.0, help="make records of NaN take so many times as long")
    options(parser, RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    _keep_memory()
    asked = {"pairs": arguments.pairs, "planted": arguments.planted}
    jobs = [
        ({"case": case.name, "backward": backward, **asked}, functools.partial(_row, case, backward=backward, **asked))
        for case in CASES
        if not arguments.only or case.operation in arguments.only
        for backward in (False, True)
    ]
    with flushed_denormals():
        rows = Rows(RESULTS, arguments.results).run(jobs, again=True)
    figures = sorted(map(Figure.of, rows), key=lambda figure: figure.kinds[figure.worst].away().median)
    sys.stdout.write("from best to worst:\n")
    for figure in figures:
        sys.stdout.write(f"{figure}\n")
    passed, failed = sum(figure.passed for figure in figures), sum(figure.failed for figure in figures)
    median = statistics.median(kind.median for figure in figures for kind in figure.kinds.values())
    sys.stdout.write(
        f"of {len(figures)}, {passed} certainly within {LARGEST_RATIO} for all kinds, {failed} certainly not for some; "
        f"median of all ratios {median:.3f}\n"
    )
    wrong = passed if arguments.planted > 1.0 else len(figures) - passed
    return 1 if arguments.check and wrong else 0


def _row(case: Case, *, backward: bool, pairs: int, planted: float) -> Row:
    figure = measured(case, backward=backward, pairs=pairs, planted=planted)
    if not (figure.passed or figure.failed):
        figure = measured(case, backward=backward, pairs=pairs, planted=planted, patience=_AGAIN)
    return figure.row


if __name__ == "__main__":
    sys.exit(main())
