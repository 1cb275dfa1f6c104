"""Labelled statistics end to end on a mock curator with real labels: what is learned, from whom, and at what price."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpswd import DomainAdaptation, Federation, Hospital, MockCurator, Statistics, mock_description
from dpswd.public_client.methods.statistics_head import ClassSums, Prior, discriminant, shares_of
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.core.errors import BudgetExhausted, InvalidValue, RunFinished
from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights

D, CLASSES = 6, 3
MEANS = np.random.default_rng(2).normal(size=(CLASSES, D))


def made(count, seed, *, shares=None, means=MEANS):
    """Records (count, d) of classes around their means, and labels (count,)."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(means), size=count, p=shares)
    return (means[labels] + rng.normal(size=(count, D))).astype(np.float32), labels


def hospital(records, labels, *, epsilon=50.0, classes=CLASSES):
    description = mock_description(records=len(labels), record_shape=(D,), epsilon=epsilon, delta=1e-5, classes=classes)
    held = torch.from_numpy(records)
    randomness = np.random.default_rng(0).bytes  # the same noise every time
    return Hospital(MockCurator(description, records=lambda count: held[:count], labels=labels, randomness=randomness))


def source(seed=9, means=MEANS):
    records, labels = made(600, seed, means=means)
    data = torch.utils.data.TensorDataset(torch.from_numpy(records), torch.from_numpy(labels))
    return torch.utils.data.DataLoader(data, batch_size=100)


def adapted(where, plan, *, shared=False, classes=CLASSES, loader=None):
    torch.manual_seed(0)
    extractor = nn.Linear(D, D)
    with torch.no_grad():
        extractor.weight.copy_(torch.eye(D) + 0.1)
    model = DomainAdaptation(
        extractor, nn.Linear(D, classes), hospital=where, plan=plan, shared=shared, device="cpu", source_epochs=0
    )
    return model.fit(loader or source(), progress=False)


def accuracy(model, records, labels, **site):
    return model.score(torch.from_numpy(records), torch.from_numpy(labels), **site)


def test_the_head_learns_what_the_labels_say_and_nothing_else_is_charged(tmp_path):
    """The hospital's classes are the source's turned round: only its own labels can tell."""
    turned = MEANS[[1, 2, 0]]
    with hospital(*made(3000, 0, means=turned)) as where:
        plan = where.plan(Statistics(), epsilon=1.0, extractor=nn.Linear(D, D))
        assert plan.admitted
        assert "counts and sums of 6 features for each of 3 classes" in str(plan)
        model = adapted(where, plan)
        (charge,) = where.curator.charges
        assert 0.95 < charge.epsilon <= 1.0
    fresh = made(2000, 1, means=turned)
    best = best_possible(turned, *fresh)
    assert accuracy(model, *fresh) > best - 0.03
    assert model.predict_proba(torch.from_numpy(fresh[0])).sum(dim=1).numpy() == pytest.approx(1.0, abs=1e-5)
    (path,) = model.save(tmp_path / "model.safetensors")
    again = load_adapted(path, device="cpu")
    assert (again.predict(torch.from_numpy(fresh[0])) == model.predict(torch.from_numpy(fresh[0]))).all()
    assert again.plan["method"]["name"] == "statistics"


def best_possible(means, records, labels):
    """The accuracy of the true model: equal shares, unit covariance."""
    distances = ((records[:, None] - means) ** 2).sum(axis=2)
    return float((distances.argmin(axis=1) == labels).mean())


def test_with_hardly_any_budget_the_source_is_what_remains():
    """200 records at epsilon 0.02: the release is noise, and the head stays near the source's."""
    with hospital(*made(200, 0)) as where:
        model = adapted(where, where.plan(Statistics(), epsilon=0.02))
    fresh = made(2000, 1)
    assert accuracy(model, *fresh) > best_possible(MEANS, *fresh) - 0.05


def test_hospitals_that_share_a_model_learn_together_and_keep_their_own_shares():
    """Each hospital has two of the classes in plenty and few records; alone none knows the third."""
    shares = {"north": (0.8, 0.15, 0.05), "south": (0.05, 0.15, 0.8)}
    held = {name: made(400, i, shares=own) for i, (name, own) in enumerate(shares.items())}
    with Federation({name: hospital(*own) for name, own in held.items()}) as sites:
        model = adapted(sites, sites.plan(Statistics(prior="none"), epsilon=2.0), shared=True)
        for site in sites.hospitals.values():
            assert len(site.curator.charges) == 1
    biases = {name: model.model(name).classifier.bias.detach().numpy() for name in shares}
    weights = {name: model.model(name).classifier.weight.detach().numpy() for name in shares}
    np.testing.assert_array_equal(weights["north"], weights["south"])
    assert (biases["north"] - biases["south"])[0] > 1.0 > -1.0 > (biases["north"] - biases["south"])[2]
    for i, (name, own) in enumerate(shares.items()):
        fresh = made(2000, 10 + i, shares=own)
        right, other = (accuracy(model, *fresh, site=site) for site in (name, next(s for s in shares if s != name)))
        assert right > other


def test_two_classes_are_learned_from_few_records_too():
    """30 records of two classes: what is released is their difference alone, with the root of 2 less noise."""
    method = Statistics(prior="none")
    few = method.weights(3.0, records=30, dimension=D, classes=2)
    assert few.centring == 1.0
    assert few.moment == 0.0
    assert few.sensitivity() < 1.5
    many = method.weights(3.0, records=100_000, dimension=D, classes=2)
    assert many == Weights(2, many.count, many.moment, 0.0)
    assert many.sensitivity() == pytest.approx(2.0)
    assert many.moment > 0.7
    assert many.count > 0.0
    two = np.stack([MEANS[0], -MEANS[0]])
    with hospital(*made(300, 0, means=two), classes=2) as where:
        plan = where.plan(method, epsilon=1.0)
        model = adapted(where, plan, classes=2, loader=source(means=two))
    fresh = made(2000, 1, means=two)
    assert accuracy(model, *fresh) > best_possible(two, *fresh) - 0.05


def test_a_run_that_does_not_fit_is_refused_before_anything_is_trained():
    with hospital(*made(300, 0), epsilon=0.5) as where:
        with pytest.raises(BudgetExhausted):
            adapted(where, where.plan(Statistics(), epsilon=0.8))
        assert where.curator.charges == []


def test_a_hospital_without_labels_says_what_is_missing():
    description = mock_description(records=100, record_shape=(D,), epsilon=1.0, delta=1e-5)
    with Hospital(MockCurator(description)) as where, pytest.raises(InvalidValue, match=r"records\.classes"):
        where.plan(Statistics(), epsilon=0.5)


def test_a_source_without_some_class_is_no_prior():
    with hospital(*made(300, 0)) as where:
        plan = where.plan(Statistics(), epsilon=1.0)
        with pytest.raises(InvalidValue, match="prior='none'"):
            adapted(where, plan, loader=two_class_source())
        model = adapted(where, where.plan(Statistics(prior="none"), epsilon=1.0), loader=two_class_source())
    assert model.model().classifier.out_features == CLASSES


def two_class_source():
    records, labels = made(300, 4)
    chosen = labels < 2
    data = torch.utils.data.TensorDataset(torch.from_numpy(records[chosen]), torch.from_numpy(labels[chosen]))
    return torch.utils.data.DataLoader(data, batch_size=50)


def test_a_run_of_ones_own_is_read_once():
    with hospital(*made(500, 0)) as where:
        plan = where.plan(Statistics(), epsilon=5.0)
        with where.open(plan, nn.Linear(D, D).eval()) as run:
            released = run.sums()
            assert released.records == 500
            assert abs(released.counts.sum()) < 1e-9
            assert (run.sums().counts == released.counts).all()  # what was drawn is kept
            with pytest.raises(RunFinished):
                run.draw()


# ---- the head --------------------------------------------------------------------------------------------------------


def sums_of(features, labels, *, noise=0.0, moments=True, seed=0):
    """Statistics with noise of one deviation on every number."""
    rng, classes = np.random.default_rng(seed), int(labels.max()) + 1
    d = features.shape[1]
    counts = np.bincount(labels).astype(float) + noise * rng.normal(size=classes)
    sums = np.stack([features[labels == c].sum(axis=0) for c in range(classes)]) + noise * rng.normal(size=(classes, d))
    second = features.T @ features
    wobble = noise * rng.normal(size=(d, d))
    own = noise**2 * (1 - 1 / classes)
    return ClassSums(
        counts - counts.mean(),
        sums - sums.mean(axis=0),
        sums.sum(axis=0),
        second + (wobble + wobble.T) / np.sqrt(2) if moments else None,
        len(labels),
        own,
        own,
        classes * noise**2,
        noise**2,
    )


def unit(records):
    return records / np.maximum(1.0, np.linalg.norm(records, axis=1, keepdims=True))


def test_without_noise_the_head_is_the_linear_discriminant():
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    records, labels = made(20_000, 0)
    u = 0.1 * records.astype(np.float64)
    head = discriminant(sums_of(u, labels))
    reference = LinearDiscriminantAnalysis(solver="lsqr").fit(u, labels)
    scores = u @ head.weight.T + head.bias
    expected = u @ reference.coef_.T + reference.intercept_
    gap = (scores - scores.mean(axis=1, keepdims=True)) - (expected - expected.mean(axis=1, keepdims=True))
    assert np.abs(gap).max() < 0.05 * np.abs(expected).max()
    assert (scores.argmax(axis=1) == reference.predict(u)).mean() > 0.995


def test_a_spread_covariance_is_used_where_it_is_certain_and_not_where_it_is_noise():
    """A direction of little spread decides; with second moments it is found, and their noise must not invent any."""
    rng = np.random.default_rng(3)
    labels = rng.integers(2, size=20_000)
    u = rng.normal(size=(len(labels), 8)) * np.array([0.25, *[0.1] * 6, 0.02])
    u[:, 0] += 0.1 * labels
    u[:, 7] += 0.03 * labels
    u = unit(u)

    def reached(head):
        return float(((u @ head.weight.T + head.bias).argmax(axis=1) == labels).mean())

    plain, exact = reached(discriminant(sums_of(u, labels, moments=False))), reached(discriminant(sums_of(u, labels)))
    assert exact > plain + 0.05
    for seed in range(5):  # noise that drowns the covariance costs next to nothing
        assert reached(discriminant(sums_of(u, labels, noise=300.0, seed=seed))) > 0.5
        noisy = reached(discriminant(sums_of(u, labels, noise=30.0, seed=seed)))
        assert noisy > reached(discriminant(sums_of(u, labels, noise=30.0, moments=False, seed=seed))) - 0.02


def test_noise_never_takes_the_head_far_from_its_prior():
    """Noise of fifty times the records' sum, with a prior: twenty draws, all near what the source says."""
    records, labels = made(20_000, 0)
    u = unit(0.2 * records.astype(np.float64))
    prior = Prior.from_source(u, labels, classes=CLASSES)

    def reached(head):
        return float(((u @ head.weight.T + head.bias).argmax(axis=1) == labels).mean())

    best = reached(discriminant(sums_of(u, labels), prior))
    for seed in range(20):
        assert reached(discriminant(sums_of(u[:200], labels[:200], noise=1e4, seed=seed), prior)) > best - 0.06


def test_noise_below_zero_is_no_direction_without_spread():
    """A draw of noise that lies far below zero along some direction: no variance does, so it must not decide."""
    rng = np.random.default_rng(3)
    labels = rng.integers(2, size=4000)
    u = 0.1 * rng.normal(size=(len(labels), 60))
    u[:, 0] += 0.2 * labels
    u = unit(u)

    def reached(head):
        return float(((u @ head.weight.T + head.bias).argmax(axis=1) == labels).mean())

    for seed in range(5):
        drawn = sums_of(u, labels, noise=10.0, seed=seed)  # eigenvalues of the noise reach 155, the head's band 175
        direction = np.zeros(60)
        direction[1 + seed] = 1.0
        odd = replace(drawn, moments=drawn.moments - 300.0 * np.outer(direction, direction))
        assert reached(discriminant(odd)) > reached(discriminant(drawn)) - 0.02


def test_a_hospital_whose_noise_drowns_its_records_counts_less():
    records, labels = made(300, 0)
    u = unit(0.2 * records.astype(np.float64))
    clear, noisy = sums_of(u, labels, noise=1.0), sums_of(u[:30], labels[:30], noise=100.0)
    both = ClassSums.together([clear, noisy])
    assert 300 < both.records < 301
    assert both.feature_variance < 1.01 * clear.feature_variance
    alike = ClassSums.together([clear, clear])
    assert alike.records == 600
    np.testing.assert_allclose(alike.features, 2 * clear.features)
    with pytest.raises(InvalidValue, match="one shape"):
        ClassSums.together([clear, sums_of(u[:, :3], labels)])


def test_shares_are_positive_and_shrink_with_the_noise():
    records, labels = made(400, 0, shares=(0.9, 0.08, 0.02))
    u = unit(records.astype(np.float64))
    exact = shares_of(sums_of(u, labels))
    np.testing.assert_allclose(exact, np.bincount(labels) / 400, atol=0.02)
    for seed in range(20):
        drowned = shares_of(sums_of(u, labels, noise=2000.0, seed=seed))
        assert drowned.min() > 0.0
        assert drowned.sum() == pytest.approx(1.0)
        np.testing.assert_allclose(drowned, 1 / 3, atol=0.15)


def test_a_prior_is_what_the_source_says():
    records, labels = made(20_000, 0)
    prior = Prior.from_source(records.astype(np.float64), labels, classes=CLASSES)
    np.testing.assert_allclose(prior.means, MEANS, atol=0.1)
    np.testing.assert_allclose(prior.covariance, np.eye(D), atol=0.05)
    with pytest.raises(InvalidValue, match="some of each"):
        Prior.from_source(records.astype(np.float64), labels, classes=CLASSES + 1)
