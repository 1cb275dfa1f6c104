"""Score statistics: the sensitivity against a search over pairs of records, and sums against their own definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from dpswd.shared.core.mechanisms.score_statistics.geometry import ROUNDED, released_values, sensitivity
from dpswd.shared.core.mechanisms.score_statistics.sums import ScoreSums, parts

BETAS = (0.1, 0.5**0.5, 1.2, 2.0)
FEW = ((2, 0.1), (2, 0.5**0.5), (3, 1.2))


def vectors(outputs, labels, scale, *, count_weight, square_weight):
    """What each record adds (m, ...), by the code, before it is rounded."""
    correction = np.zeros((outputs.shape[1] + 1 - len(scale), len(scale)))
    gradients, squares = parts(outputs, np.array(labels), scale, correction)
    counts = np.eye(len(correction))[list(labels)]
    flat = gradients.reshape(len(outputs), -1)
    return np.concatenate([count_weight * counts, flat, square_weight * squares], axis=1)


def vector(outputs, label, scale, **weights):
    return vectors(outputs[None], (label,), scale, **weights)[0]


def test_outputs_that_are_no_numbers_count_as_zero():
    """So that a record whose score overflows is worth no more than another."""
    made = []
    for bad in (0.0, math.nan, math.inf, -math.inf):
        sums = ScoreSums(classes=2, scale=np.full(3, 10.0), correction=np.zeros((2, 3)))
        sums.add(torch.tensor([[0.5, bad, 0.3, -0.2], [bad, 0.1, -0.4, 0.6]]), np.array([0, 1]))
        made.append(sums.sums)
    for own in made[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(own, made[0], strict=True))


@pytest.mark.parametrize(
    ("classes", "beta"),
    [
        pytest.param(*case, marks=() if case in FEW else pytest.mark.exhaustive)
        for case in itertools.product((2, 3), BETAS)
    ],
)
@pytest.mark.long
def test_no_pair_of_records_is_further_apart_than_is_said(classes, beta):
    """Climbs from random pairs; with two classes the furthest one is found."""
    d, a = 3, 1.0
    scale = np.array([1e3, 1e3, 1e3])
    values = released_values(classes, d)
    stated = sensitivity(count_weight=a, square_weight=beta, values=values)
    rng = np.random.default_rng(1)
    worst = 0.0
    for labels in ((0, 0), (0, 1)):

        def distance(flat, labels=labels):
            one, other = vectors(flat.reshape(2, -1), labels, scale, count_weight=a, square_weight=beta)
            return float(np.linalg.norm(one - other))

        for size in (0.3, 3.0, 30.0):
            for _ in range(60):
                start = size * rng.normal(size=2 * (d - 1 + classes))
                worst = max(worst, distance(start))
            climbed = minimize(lambda flat: -distance(flat), start, method="Nelder-Mead", options={"maxiter": 1500})
            worst = max(worst, -climbed.fun)
    assert 0.8 * stated < worst <= stated


def test_the_worst_pair_of_the_proof_is_attained():
    """Sure of the wrong class, and undecided under the opposite label: gradients are opposite, one square is whole."""
    scale = np.array([1e3])
    sure = vector(np.array([-60.0, 60.0]), 0, scale, count_weight=1.0, square_weight=0.9)
    undecided = vector(np.zeros(2), 1, scale, count_weight=1.0, square_weight=0.9)
    exact = math.sqrt(2.0 + 4.0 + 0.9**2)
    assert np.linalg.norm(sure - undecided) == pytest.approx(exact, rel=1e-9)
    stated = sensitivity(count_weight=1.0, square_weight=0.9, values=released_values(2, 1))
    assert exact < stated < exact + 1e-5


def test_every_record_stays_within_its_norms_whatever_it_computes():
    rng = np.random.default_rng(2)
    for size in (1e-20, 1e-3, 1.0, 1e4, 1e30, 3e38):
        outputs = size * rng.normal(size=(400, 6))
        gradients, squares = parts(outputs, rng.integers(0, 3, 400), np.array([1.5, 1.0, 0.5, 2.0]), np.zeros((3, 4)))
        assert np.isfinite(gradients).all()
        assert np.linalg.norm(gradients.reshape(400, -1), axis=1).max() <= 1.0
        assert np.linalg.norm(squares, axis=1).max() <= 1.0


def test_small_records_add_the_gradient_and_the_curvature_of_the_log_loss():
    """Below the clip the sums are those of autograd, for a correction that is not 0, and any division into parts."""
    rng = np.random.default_rng(3)
    n, classes, d = 50, 4, 3
    outputs = torch.from_numpy(rng.normal(size=(n, d - 1 + classes)))
    labels = rng.integers(-1, classes, n)
    correction = rng.normal(size=(classes, d)).astype(np.float32)
    scale = np.full(d, 0.05, dtype=np.float32)
    whole, halves = (ScoreSums(classes=classes, scale=scale, correction=correction) for _ in range(2))
    whole.add(outputs, labels)
    halves.add(outputs[:17], labels[:17])
    halves.add(outputs[17:], labels[17:])
    for one, other in zip(whole.sums, halves.sums, strict=True):
        np.testing.assert_array_equal(one, other)
    counts, gradient, square = whole.sums
    np.testing.assert_array_equal(counts, np.bincount(labels[labels >= 0], minlength=classes))

    labelled = torch.from_numpy(labels >= 0)
    basis = torch.cat([torch.ones(n, 1), outputs[:, : d - 1]], dim=1)[labelled]
    own = torch.from_numpy(correction).double().requires_grad_()
    scores = outputs[labelled][:, d - 1 :] + basis @ own.T
    loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels)[labelled], reduction="sum")
    (slope,) = torch.autograd.grad(loss, own)
    near = n * 2.0**-ROUNDED  # half a unit for each record, twice
    np.testing.assert_allclose(gradient * 2.0**-ROUNDED, -0.05 * slope.numpy() / math.sqrt(2.0), atol=near)
    chance = torch.softmax(scores, dim=1).detach()
    weight = 0.5 * 0.05**2 * (1.0 - chance.square().sum(dim=1))
    exact = (basis * weight[:, None]).T @ basis
    rows, columns = np.triu_indices(d)
    twice = np.where(rows == columns, 1.0, math.sqrt(2.0))
    np.testing.assert_allclose(square * 2.0**-ROUNDED, exact.numpy()[rows, columns] * twice, atol=near)
