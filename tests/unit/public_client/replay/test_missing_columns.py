"""Tables with gaps: what is found, what is left alone, and what tuning does with it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from benchmarks.local import released
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.linear_evidence import LinearModel
from dpswd.public_client.replay import fit as replay
from dpswd.public_client.replay.missing_columns import TableView
from dpswd.public_client.replay.tuning import tune
from dpswd.public_client.replay.verdict import Fitted
from dpswd.public_client.replay.views import FeatureView, MixedViews
from dpswd.shared.core.errors import InvalidValue

COLUMNS = 5


def table(count: int, seed: int) -> Labelled:
    """Correlated columns, the last two of which say the same of the label, and flags of 0."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    noise = torch.randn(count, COLUMNS, generator=generator)
    records = noise + 0.5 * noise[:, :1] + labels[:, None] * torch.tensor([0.0, 0.0, 0.3, 1.2, 1.2])
    return Labelled(with_flags(records, torch.zeros(count, COLUMNS)), labels)


def with_flags(values: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:
    return torch.cat((values, missing.to(values)), dim=1)


class FlagsThrice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x[:, :COLUMNS], 3.0 * x[:, COLUMNS:]), dim=1)


def fit_view(
    target: torch.Tensor, source: Labelled, *, epsilon: float, seed: int = 0, view: TableView | None = None
) -> Fitted:
    extractor = FlagsThrice()
    features = extractor(source.images)
    residuals = released(
        extractor(target), features, epsilon=epsilon, delta=1e-3, seed=bytes([seed, *range(31)]), along=60
    )
    with reporting("", 1, shown=False) as bar:
        return replay.find_view(
            extractor, source, residuals, learning_rate=0.03, generator=torch.Generator().manual_seed(seed), bar=bar,
            view=view or TableView(torch.zeros(COLUMNS)),
        )  # fmt: skip


def tuned(classifier: nn.Module, view: object, source: Labelled, steps: int = 300) -> nn.Linear:
    with reporting("", 1, shown=False) as bar:
        return tune(
            nn.Identity(), classifier, view, source,
            steps=steps, generator=torch.Generator().manual_seed(0), bar=bar,
        )[1]  # fmt: skip


def source_classifier(source: Labelled) -> nn.Linear:
    torch.manual_seed(0)
    classifier = nn.Linear(2 * COLUMNS, 2)
    optimizer = torch.optim.Adam(classifier.parameters(), lr=0.05)
    for _ in range(200):
        loss = nn.functional.cross_entropy(classifier(source.images), source.labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return classifier


@pytest.mark.long
@pytest.mark.parametrize("together", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_gaps_are_seen_where_patients_differ_as_well(together):
    source, target = table(500, 0), table(400, 1).images[:, :COLUMNS] + torch.tensor([0.3, -0.2, 0.0, 0.0, 0.0])
    uniforms = torch.rand(400, 1 if together else COLUMNS, generator=torch.Generator().manual_seed(2))
    missing = uniforms < torch.tensor([0.0, 0.0, 0.0, 0.5, 1.0])
    result = fit_view(with_flags(torch.where(missing, 0.0, target), missing), source, epsilon=1.0)
    view = result.view
    assert isinstance(view, TableView)
    assert result.convinced
    assert float(view.rates[4]) > 0.8
    assert 0.2 < float(view.rates[3]) < 0.8
    assert view.rates[:3].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("targets", [1, pytest.param(4, marks=pytest.mark.exhaustive)])
@pytest.mark.long
def test_other_patients_alone_are_no_gaps_and_change_nothing(targets):
    """A gap has prior odds of 1 to 19 in each column: of these targets none should be seen with one."""
    source = table(500, 0)
    for seed in range(targets):
        generator = torch.Generator().manual_seed(seed)
        shift = torch.cat((0.3 * torch.randn(COLUMNS, generator=generator), torch.zeros(COLUMNS)))
        result = fit_view(table(300, 10 + seed).images + shift, source, epsilon=1.0, seed=seed)
        assert not result.convinced, seed
        assert isinstance(result.view, TableView)
        assert float(result.view.rates.sum()) == 0.0


def test_the_identity_leaves_a_classifier_that_keeps_its_scores_as_it_was():
    source = table(300, 0)
    classifier = source_classifier(source)
    after = tuned(classifier, TableView(torch.zeros(COLUMNS)), source)
    torch.testing.assert_close(after.weight, classifier.weight, rtol=0.0, atol=2e-3)


def test_tuning_moves_weight_from_a_column_that_is_missing():
    source = table(2000, 0)
    classifier = source_classifier(source)
    view = TableView(torch.zeros(COLUMNS))
    view.rates[4] = 1.0
    after = tuned(classifier, view, source)
    before, now = (abs(float((c.weight[1, 3] - c.weight[0, 3]).detach())) for c in (classifier, after))
    assert now > 1.05 * before


def test_gaps_fall_on_the_same_records_only_if_they_should():
    view = TableView(torch.full((2,), -7.0))
    view.rates.fill_(0.5)
    records = torch.zeros(4000, 4)
    shares = []
    for together in (True, False):
        view.together = together
        features = view(nn.Identity(), records, torch.Generator().manual_seed(0))
        seen = features[:, :2] == -7.0
        assert torch.equal(features[:, 2:] == 1.0, seen)
        assert float(seen.float().mean()) == pytest.approx(0.5, abs=0.05)
        shares.append(float((seen[:, 0] & seen[:, 1]).float().mean()))
    assert shares == [pytest.approx(0.5, abs=0.05), pytest.approx(0.25, abs=0.05)]


@pytest.mark.parametrize("fill", [torch.zeros(2, 2), torch.tensor([0.0, float("nan")])])
def test_what_fills_a_gap_is_one_number_for_each_column(fill):
    with pytest.raises(InvalidValue, match="one finite number for each column"):
        TableView(fill)


def test_records_without_flags_are_refused():
    source = table(50, 0)
    with pytest.raises(InvalidValue, match="values and then flags of gaps"):
        fit_view(source.images, source, epsilon=1.0, view=TableView(torch.zeros(3)))


def test_several_sites_keep_scores_if_all_do():
    gaps, gains = TableView(torch.zeros(2)), FeatureView(torch.ones(2))
    assert MixedViews([gaps, copy.deepcopy(gaps)], [1.0, 1.0], seed=0).keeps_scores
    assert not MixedViews([gaps, gains], [1.0, 1.0], seed=0).keeps_scores


@pytest.mark.long
def test_a_release_without_a_shift_speaks_for_no_gains_and_biases():
    """The guard of the default view: below 20 to 1 the model stays as it is."""
    source = Labelled(*_normal(500, 0))
    with reporting("", 1, shown=False) as bar:
        for moved, expected in ((0.0, False), (1.0, True)):
            target = _normal(400, 1)[0] + moved
            residuals = released(target, source.images, epsilon=1.0, delta=1e-3, seed=bytes(32), along=60)
            fitted = replay.find_view(
                nn.Identity(), source, residuals,
                learning_rate=0.03, generator=torch.Generator().manual_seed(0), bar=bar,
            )  # fmt: skip
            assert fitted.convinced is expected
            changed = (fitted.view(nn.Identity(), source.images) - source.images).abs().max()
            assert (float(changed.detach()) > 0.0) is expected


def _normal(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator), torch.randint(2, (count,), generator=generator)


def test_the_mode_of_a_linear_model_is_the_true_one():
    """Ridge regression: with one group of width a and variance v the mode solves (J^T J + v / a^2) t = J^T r."""
    generator = torch.Generator().manual_seed(0)
    J, truth = torch.randn(80, 6, generator=generator), torch.randn(6, generator=generator)
    linear = LinearModel.at_identity(lambda t: J @ (t - truth), (6,), J)
    widths = linear.widths(caution=0.0)
    ridge = widths.variance / widths.factors[0] ** 2
    expected = torch.linalg.solve(J.T @ J + ridge * torch.eye(6), J.T @ (J @ truth))
    torch.testing.assert_close(
        linear.under(widths.factors, widths.variance).mean.float(), expected, rtol=1e-3, atol=1e-3
    )


def test_the_evidence_is_a_normal_density_up_to_a_constant():
    generator = torch.Generator().manual_seed(0)
    J, r = torch.randn(20, 4, generator=generator), torch.randn(20, generator=generator)
    linear = LinearModel.at_identity(lambda t: r + J @ t, (4,), J)
    widths = linear.widths(caution=0.0)
    covariance = widths.variance * torch.eye(20) + widths.factors[0] ** 2 * J @ J.T
    density = torch.distributions.MultivariateNormal(torch.zeros(20).double(), covariance.double())
    constant = 10 * torch.log(torch.tensor(2 * torch.pi))
    assert widths.log_posterior == pytest.approx(float(density.log_prob(r.double()) + constant), rel=1e-4)
    twice = linear.explaining(-2 * r).under(widths.factors, widths.variance)
    assert float(twice.log_evidence) == pytest.approx(float(density.log_prob(2 * r.double()) + constant), rel=1e-4)
