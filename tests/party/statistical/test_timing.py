"""A record's value does not show in the time of an evaluation, nor in that of a reply.

Every comparison is a sign test on pairs: two kinds of requests are timed one directly after the other, in random order,
and it is counted how often the second kind took longer. Where the kinds do not differ, each pair is a fair coin,
however busy the machine is and whatever the law of its delays: a test fails by chance with probability at most 1e-6,
exactly. What a test can see is shown by planting a delay, which must be found with no more pairs than the comparison of
the records gets.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest
import torch
from declarations import gradient, quantiles
from made_home import made_home
from raw_client import RawClient
from signs import ALPHA, Signs, in_random_order
from torch import nn

from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.sandbox.pool import WorkerPool
from dpswd.private_curator.sandbox.process import WorkerSettings
from dpswd.private_curator.serving import server
from dpswd.private_curator.settings import tree as settings
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.mechanisms.interface import ModelFacts
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientRequest

pytestmark = pytest.mark.statistical

INPUTS, BATCH = 48, 32
HOSTILE = {"zero": 0.0, "denormal": 1e-41, "huge": 3e38, "tiny product": 1e-20}
"""Values of the one record in which two neighbouring data sets differ."""


def extractor():
    """What a hostile client would choose: operations that are known to be slow for some numbers."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(INPUTS, 256), nn.Tanh(), nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Softplus(),
        nn.Linear(256, 128), nn.Sigmoid(), nn.Linear(128, 64),
    )  # fmt: skip


# -- without padding: the evaluation in its worker ----------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluated():
    """Seconds that a worker takes for the features and gradients of some records."""
    module = extractor()
    graph = trace(module, (INPUTS,))
    weights = weights_to_bytes(module_weights(module, graph))
    facts = ModelFacts(graph.input_shape, graph.feature_dimension, graph.parameter_shapes)
    source = ExtractorSource("timed", facts, lambda: (graph.to_bytes(), weights))
    pool = WorkerPool(WorkerSettings(device="cpu", threads=1, memory_bytes=1 << 29, seconds=120.0), workers=1)

    def seconds(records, *, delay=0.0):
        begun = time.perf_counter()
        with pool.session(source) as session:
            features = session.features(records, names=("8.weight",))
            if delay:
                time.sleep(delay)
            session.gradients(torch.ones_like(features))
        return time.perf_counter() - begun

    yield seconds
    pool.close()


@pytest.mark.parametrize("least", [200, pytest.param(30_000, marks=pytest.mark.exhaustive)])
@pytest.mark.long
def test_an_evaluation_takes_no_longer_for_one_value_of_a_record_than_for_another(evaluated, least):
    """False alarm: 1e-6. Power: a delay of a quarter of an evaluation is found with as many pairs, or fewer."""
    rng = np.random.default_rng()
    ordinary = rng.normal(size=(BATCH, INPUTS)).astype(np.float32)
    neighbours = []
    for value in HOSTILE.values():
        neighbours.append(ordinary.copy())
        neighbours[-1][0] = value
    evaluated(ordinary)
    delay = 0.25 * statistics.median(evaluated(ordinary) for _ in range(20))
    records, planted = Signs(), Signs()
    while records.pairs < max(3000, least) and (records.pairs < least or planted.pvalue > ALPHA):
        for _ in range(40):
            neighbour = neighbours[records.pairs % len(neighbours)]
            records.add(*in_random_order(rng, lambda: evaluated(ordinary), lambda: evaluated(neighbour)))  # noqa: B023
            planted.add(*in_random_order(rng, lambda: evaluated(ordinary), lambda: evaluated(ordinary, delay=delay)))
    print(f"\n{1000 * delay:.2f} ms planted: {planted}; one record changed: {records}")
    assert planted.pvalue < ALPHA, "the machine is too unsteady for this test to see anything"
    assert records.pvalue > ALPHA


# -- with padding: replies of the whole service ---------------------------------------------------------------------

QUANTUM_S = 0.15
HIDDEN_S = 0.03
"""A delay that padding must hide: a fifth of the quantum."""
SHOWN_S = 0.16
"""A delay that padding cannot hide."""
PAIRS = 60


class Site:
    """A curator with records of its own that can be made slow, and a client of it."""

    def __init__(self, directory, records):
        directory.mkdir()
        made = made_home(directory, records, epsilon=1e4)
        chosen = settings.load(
            made.path,
            {
                "listen.host": "localhost",
                "listen.port": "0",
                "compute.device": "cpu",
                "compute.isolation": "in-process",
                "limits.reply_quantum_ms": str(1000 * QUANTUM_S),
            },
        )
        self.delay = 0.0
        self.server = server.CuratorServer(made, chosen, checkpoint=self._checkpoint)
        self.client = RawClient(self.server.start(), credentials=directory / "credentials")
        name, declaration = gradient(quantiles(4, 50.0, directions=50), ClippedSum(("8.bias",), 0.1, 50.0))
        self.run = self.client.open_run(
            RunParameters(
                **self.client.upload(extractor()),
                mechanism=name,
                declaration=declaration.to_bytes(),
                batch_size=BATCH,
                steps=2000,
            )
        ).run_id
        self.source = np.ones((16, 64), np.float32)

    def _checkpoint(self, name):
        if name == "extracted":
            time.sleep(self.delay)

    def pad(self, quantum_s):
        self.server._service.pacer._quantum_s = quantum_s

    def seconds(self):
        pending = self.client.prepare_step(self.run, GradientRequest(self.source))
        begun = time.perf_counter()
        self.client.send(pending)
        return time.perf_counter() - begun

    def close(self):
        self.client.close()
        self.server.stop()


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Neighbouring data sets: every sample holds the one record in which they differ."""
    directory = tmp_path_factory.mktemp("timing")
    records = np.random.default_rng(8).normal(size=(BATCH, INPUTS)).astype(np.float32)
    other = records.copy()
    other[0] = HOSTILE["denormal"]
    made = []
    try:
        made += [Site(directory / "ordinary", records), Site(directory / "hostile", other)]
        for site in made:
            site.seconds()
        yield made
    finally:
        for site in made:
            site.close()


def compared(sites, pairs, *, until=0.0):
    """Signs of paired replies; ends early when the p-value is below `until`."""
    rng, signs = np.random.default_rng(), Signs()
    while signs.pairs < pairs and (signs.pairs == 0 or signs.pvalue >= until):
        signs.add(*in_random_order(rng, sites[0].seconds, sites[1].seconds))
    return signs


@pytest.mark.long
@pytest.mark.parametrize("pairs", [PAIRS, pytest.param(10 * PAIRS, marks=pytest.mark.exhaustive)])
def test_padding_hides_a_delay_and_the_records_with_it(sites, pairs):
    """False alarm: 1e-6. A fifth of a quantum is hidden; the same delay is found at once where nothing is padded."""
    sites[1].delay = HIDDEN_S
    hidden = compared(sites, pairs)
    for site in sites:
        site.pad(0.0)
    open_to_see = compared(sites, 10 * PAIRS, until=ALPHA)
    for site in sites:
        site.pad(QUANTUM_S)
    sites[1].delay = SHOWN_S
    too_long = compared(sites, PAIRS, until=ALPHA)
    print(f"\nhidden: {hidden}; without padding: {open_to_see}; longer than a quantum: {too_long}")
    assert hidden.pvalue > ALPHA
    assert open_to_see.pvalue < ALPHA
    assert too_long.pvalue < ALPHA
