"""The benchmarks of labelled statistics: features travel, noise is the stated relation's, the page is current."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch.nn import functional

from benchmarks import (
    labelled_digits,
    labelled_gradients,
    labelled_hearts,
    labelled_occupations,
    optimal_transport,
    records,
)
from benchmarks.labelled import ADD, REPLACE, Site, SizeFacts, declaration_of, record_norm, released
from benchmarks.labelled_hearts import Clinical, textbook
from dpswd.public_client.extractor.tracing import trace
from dpswd.public_client.methods.statistics import Statistics

PAGE = Path(__file__).parents[3] / "docs" / "ml-team" / "labelled.md"


@pytest.mark.long
def test_both_feature_maps_travel_as_data():
    assert trace(labelled_digits.Scattering().eval(), (1, 28, 28)).feature_dimension == 3969
    assert trace(Clinical().eval(), (10,)).feature_dimension == 10


def test_a_scattering_is_the_absolute_value_of_its_wavelets():
    model, x = labelled_digits.Scattering(), torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    raw = model.first(x)  # real parts, then imaginary ones
    one = raw[:, :16].abs() + raw[:, 16:].abs()
    twice = model.second(one[:, :8]).reshape(2, 8, 2, 8, 28, 28)
    two = (twice[:, :, 0].abs() + twice[:, :, 1].abs()).reshape(2, 64, 28, 28)
    torch.testing.assert_close(model(x), model.blur(torch.cat([x, one, two], dim=1)).flatten(1))


def test_clinical_columns_have_size_one_and_what_was_not_measured_is_zero():
    patient = torch.tensor([[65.0, 1.0, 4.0, 150.0, 0.0, 1.0, 2.0, 125.0, 1.0, 2.0]])
    scaled = Clinical()(patient) * labelled_hearts._CLIP / 0.5
    torch.testing.assert_close(scaled, torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, -1.0, 1.0, 1.0]]))
    assert float(Clinical()(1e4 * patient).detach().norm()) <= 2 * 10**0.5 / labelled_hearts._CLIP / 2 + 1e-6


def _delta(shift, epsilon):
    below = math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)
    return float(norm.cdf(shift / 2 - epsilon / shift) - below)


@pytest.mark.parametrize("relation", [REPLACE, ADD])
@pytest.mark.long
def test_a_release_has_the_noise_of_its_relation(relation):
    """40 releases of 22 noised values: a variance off by 30% has a chance below 1e-7."""
    rng = np.random.default_rng(0)
    site = Site(np.zeros((30, 10), np.float32) + 1.0, rng.integers(2, size=30))
    method = Statistics(prior="none")
    facts = SizeFacts(30, 10, 2)
    declared = declaration_of(method, relation=relation, epsilon=1.0, delta=1e-4, facts=facts)
    moved = declared.weights.sensitivity() if relation == REPLACE else record_norm(declared.weights)
    # The analytic Gaussian mechanism (Balle and Wang 2018) at epsilon 1 and delta 1e-4, by its own formula.
    assert _delta(moved / declared.sigma, 1.0) == pytest.approx(1e-4, rel=1e-2)
    drawn = []
    for seed in range(40):
        statistics, price = released(
            site, Clinical().eval(), classes=2, epsilon=1.0, delta=1e-4, seed=seed, method=method, relation=relation
        )  # fmt: skip
        assert (0.999 < price <= 1.0) == (relation == REPLACE)
        assert statistics.feature_variance == pytest.approx(declared.sigma**2 / 2)
        drawn.append(statistics.features[0] - statistics.features[1])
    spread = np.stack(drawn).var(axis=0).mean()
    assert spread == pytest.approx(2.0 * declared.sigma**2, rel=0.45)
    same, _ = released(
        site, Clinical().eval(), classes=2, epsilon=1.0, delta=1e-4, seed=39, method=method, relation=relation
    )  # fmt: skip
    np.testing.assert_array_equal(same.features[0] - same.features[1], drawn[-1])


def by_definition(model, x):
    """All groups have the same filters, so that each is a record more: no grouped convolution, no reshape of groups."""
    b, turns, second = len(x), labelled_digits.TURNS, model.second.weight[: 2 * labelled_digits.TURNS]
    parts = functional.conv2d(x, model.first.weight, padding=5).abs()
    one = parts[:, : 2 * turns] + parts[:, 2 * turns :]
    parts = functional.conv2d(one[:, :turns].reshape(b * turns, 1, *x.shape[2:]), second, padding=5).abs()
    two = (parts[:, :turns] + parts[:, turns:]).reshape(b, -1, *x.shape[2:])
    every = torch.cat([x, one, two], dim=1).reshape(-1, 1, *x.shape[2:])
    return functional.conv2d(every, model.blur.weight[:1], padding=4, stride=4).reshape(b, -1)


def test_the_scattering_is_its_definition():
    model, x = labelled_digits.Scattering(), torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(by_definition(model, x), model(x), rtol=0, atol=1e-6)


def test_the_signs_speak_of_the_class_that_is_ill():
    healthy, ill = textbook()
    assert (healthy == -ill).all()
    assert ill[7] < 0.0 < ill[0]


def _shows_rows_of(table: str, page: str) -> None:
    """The page has the table's head, and below it rows of the table, in their order: those that a reader acts upon."""
    every = table.splitlines()
    shown = page[page.index("\n".join(every[:2])) :].split("\n\n")[0].splitlines()
    assert len(shown) > 5
    assert shown == [line for line in every if line in shown]


def test_the_page_says_what_is_on_file():
    page = PAGE.read_text(encoding="utf-8")
    hearts, digits = (records.read(module.RESULTS) for module in (labelled_hearts, labelled_digits))
    _shows_rows_of(labelled_hearts.table(hearts), page)
    _shows_rows_of(labelled_digits.table(digits), page)
    _shows_rows_of(labelled_gradients.table(records.read(labelled_gradients.RESULTS)), page)
    _shows_rows_of(labelled_occupations.page(records.read(labelled_occupations.RESULTS)), page)
    transport = (PAGE.parents[1] / "privacy" / "optimal-transport.md").read_text(encoding="utf-8")
    _shows_rows_of(optimal_transport.table(records.read(optimal_transport.RESULTS)), transport)
    assert set(labelled_hearts.summary(hearts)) == {"epsilon 1", "epsilon 0.1"}
