"""Time of per-record features and gradients: one vmapped pass against a loop over the records.

    python -m benchmarks.extractor [--records 512] [--threads 1] [--device cpu] [--seeds 0]

The extractor is the DP-SWD paper's digits network (28 x 28, 320 features), all its weights declared. Each figure is the
best of five, in seconds for the whole batch: processor time on a CPU, so that other work on the machine does not count,
and wall time on a GPU. Seeds draw weights and records. A minute.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.records import Job, Row, Rows, options
from dpswd.public_client.extractor.tracing import trace
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.weights import module_weights

RESULTS = Path(__file__).parent / "results" / "extractor.json"
SHAPE = (1, 28, 28)


class Digits(nn.Module):
    """Convolution, pool, ReLU, twice: 320 features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 20, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        return F.relu(F.max_pool2d(self.conv2(x), 2)).flatten(1)


def best(function: Callable[[], object], *, device: str, repeats: int = 5) -> float:
    """Shortest time in seconds."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    times = []
    for _ in range(repeats):
        started = clock()
        function()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(clock() - started)
    return min(times)


def loop(module: nn.Module, records: Tensor, cotangents: Tensor, names: list[str]) -> Tensor:
    """The plain way: one backward pass for each record."""
    parameters = [dict(module.named_parameters())[name] for name in names]
    rows = []
    for record, cotangent in zip(records, cotangents, strict=True):
        out = module(record.unsqueeze(0))
        gradients = torch.autograd.grad(out, parameters, cotangent.unsqueeze(0))
        rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    return torch.stack(rows)


def measured(*, count: int, device: str, seed: int) -> Row:
    """Seconds of each way, and the largest relative error of the first eight records' gradients."""
    torch.manual_seed(seed)
    records = torch.rand(count, *SHAPE).to(device)
    module: nn.Module = Digits().to(device)
    names = [name for name, _ in module.named_parameters()]
    graph = trace(module, SHAPE)
    extractor = Extractor.from_graph(graph, module_weights(module, graph), device=device)
    features = extractor.features(records)

    def step() -> Tensor:
        forward = extractor.begin(records, names)
        return forward.gradients(forward.outputs)

    expected = loop(module, records[:8], features[:8], names)
    actual = step()
    gradients = best(step, device=device)  # begin, gradients: one forward pass
    looped = best(lambda: loop(module, records, features, names), device=device, repeats=2)
    return {
        "parameters": actual.shape[1],
        "relative_error": float((actual[:8] - expected).abs().max() / expected.abs().max()),
        "features_s": best(lambda: extractor.features(records), device=device),
        "features_and_gradients_s": gradients,
        "loop_over_records_s": looped,
        "loop_over_gradients": looped / gradients,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options(parser, RESULTS, seeds=(0,))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    count, device = arguments.records, arguments.device

    def job(seed: int) -> Job:
        settings = {"records": count, "threads": arguments.threads, "device": device, "seed": seed}
        return settings, functools.partial(measured, count=count, device=device, seed=seed)

    jobs = [job(seed) for seed in arguments.seeds]
    Rows(RESULTS, arguments.results).run(jobs, again=True)


if __name__ == "__main__":
    main()
