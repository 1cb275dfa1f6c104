"""Pseudo-labelled sums on a mock curator: classes that moved are followed, and everything else keeps the model."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from made_home import made_home
from scipy import stats
from serving_here import serving
from torch import nn

from dpswd import DomainAdaptation, Federation, Hospital, MockCurator, PseudoLabels, mock_description
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.published_methods import pseudo_labels
from dpswd.public_client.published_methods.pseudo_label_fit import (
    Observed,
    Source,
    component_axes,
    fitted,
    whole,
)
from dpswd.public_client.published_methods.pseudo_label_head import Gain
from dpswd.public_client.published_methods.pseudo_labels import UNCHANGED
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.public_client.training.sites import ADAPTED
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.feature_sums.mechanism import FEATURE_SUMS, SumsDeclaration
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts
from dpswd.shared.core.mechanisms.linear import Shard, ShardSum
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.seeded_noise import SeededNoise

PAGE = Path(__file__).resolve().parents[4] / "docs" / "ml-team" / "pseudo-labels.md"
D, CLASSES = 8, 4
MEANS = 3.0 * torch.eye(CLASSES, D)
MOVES = torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(3))
MOVES = 1.6 * MOVES / MOVES.norm(dim=1, keepdim=True)


def made(count, seed, *, moved=0.0, classes=CLASSES):
    """Records whose first numbers tell their class; each class moves its own way."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    return Labelled((MEANS + moved * MOVES)[labels] + torch.randn(count, D, generator=generator), labels)


def hospital(data, epsilon):
    description = mock_description(records=len(data), record_shape=(D,), epsilon=epsilon, delta=1e-5)
    randomness = np.random.default_rng(0).bytes
    return Hospital(MockCurator(description, records=lambda count: data.images[:count], randomness=randomness))


@pytest.fixture(scope="module")
def source():
    """A fixed extractor, a classifier trained on the source, and its loader."""
    torch.manual_seed(0)
    extractor, classifier = nn.Linear(D, D).requires_grad_(False), nn.Linear(D, CLASSES)
    with torch.no_grad():
        extractor.weight.copy_(torch.eye(D))
        extractor.bias.zero_()
    loader = source_loader(made(1500, 0), batch_size=100)
    train_source(extractor, classifier, loader, epochs=20, learning_rate=1e-2)
    return extractor, classifier, loader


def trained(source, where, plan, **settings):
    extractor, classifier, loader = source
    model = DomainAdaptation(extractor, classifier, hospital=where, plan=plan, device="cpu", seed=1, source_epochs=0)
    return model.fit(loader, progress=False, **settings)


def of_target(source, data, epsilon):
    """What a hospital with such records is given, and its report."""
    with hospital(data, epsilon) as where:
        plan = where.plan(PseudoLabels(), epsilon=epsilon, extractor=source[0], classifier=source[1])
        model = trained(source, where, plan)
        (charge,) = where.curator.charges
        assert charge.epsilon == pytest.approx(epsilon, rel=1e-2)
        assert charge.run.mechanism.name == "feature_sums"
    return model, model.reports[0]


@pytest.mark.long
def test_classes_that_moved_are_followed(source, tmp_path):
    """The model gains what the report says, about; it is saved, and a run that is taken up again costs nothing more."""
    data, fresh = made(1500, 1, moved=1.0), made(4000, 2, moved=1.0)
    with hospital(data, 3.0) as where:
        plan = where.plan(PseudoLabels(), epsilon=3.0, extractor=source[0], classifier=source[1])
        assert "too little" not in str(plan)
        model = trained(source, where, plan, checkpoint=tmp_path / "run")
        before = 100.0 * float((source[1](fresh.images).argmax(dim=1) == fresh.labels).double().mean())
        after = 100.0 * model.score(fresh.images, fresh.labels)
        (report,) = model.reports
        assert report["outcome"] == ADAPTED
        assert "accuracy goes from" in report["finding"]
        assert after > before + 2.0
        again = trained(source, where, plan, checkpoint=tmp_path / "run")  # the loader brings another order
        assert again.reports[0]["outcome"] == ADAPTED
        assert 100.0 * again.score(fresh.images, fresh.labels) == pytest.approx(after, abs=2.0)
        assert len(where.curator.charges) == 1
    (path,) = model.save(tmp_path / "model.safetensors")
    assert torch.equal(load_adapted(path, device="cpu").predict(fresh.images), model.predict(fresh.images))


@pytest.mark.parametrize(
    ("data", "epsilon", "why"),
    [
        (made(1500, 1), 3.0, "what the public source would give"),
        (made(1500, 1, classes=2), 3.0, "frequencies have changed"),
        (made(1500, 1, classes=2, moved=1.0), 3.0, "frequencies"),
        (Labelled(2.5 * made(1500, 1).images, torch.zeros(1500)), 8.0, "which is no clear gain"),
        (Labelled(torch.full((1500, D), 9.0), torch.zeros(1500)), 8.0, "which is no clear gain|does not fit classes"),
    ],
    ids=[
        "nothing moved",
        "half of the classes",
        "half of the classes, moved",
        "other units",
        "one record, again and again",
    ],
)
@pytest.mark.long
def test_what_does_not_help_keeps_the_model(source, data, epsilon, why):
    model, report = of_target(source, data, epsilon)
    assert report["outcome"] == UNCHANGED
    assert re.search(why, report["finding"])
    records = made(50, 3).images
    assert torch.equal(model.model().classifier(records), source[1](records))


@pytest.mark.long
def test_where_nothing_is_left_to_gain_the_model_stays(source, monkeypatch):
    """Of 100.0 to 100.0 nobody says "adapted": there the least gain is none, and so is its error."""
    monkeypatch.setattr(pseudo_labels, "expected_gain", lambda *given, **named: Gain(100.0, 100.0, 0.0, 0.0))
    _, report = of_target(source, made(1500, 1, moved=1.0), 3.0)
    assert report["outcome"] == UNCHANGED
    assert "which is no clear gain" in report["finding"]


def test_what_training_for_longer_brings_is_not_the_release_s_gain(source):
    """A classifier that a little more training would mend, and classes that moved along what tells none from others."""
    extractor, classifier, loader = source
    spoiled = copy.deepcopy(classifier)
    with torch.no_grad():
        spoiled.bias[0] += 4.0
    data = made(1500, 1)
    data.images[:, -1] += 0.5
    _, report = of_target((extractor, spoiled, loader), data, 8.0)
    before, after = map(float, re.search(r"source alone, from ([\d.]+) to ([\d.]+) %", report["finding"]).groups())
    assert after > before + 5.0
    assert report["outcome"] == UNCHANGED
    assert "which is no clear gain" in report["finding"]


@pytest.mark.long
def test_too_few_records_are_refused_before_anything_is_charged(source, tmp_path):
    """The plan says so, a training refuses, and beside a larger hospital the small one is set aside; all unpaid."""
    with hospital(made(280, 1), 9.0) as where:
        plan = where.plan(PseudoLabels(), epsilon=1.0, extractor=source[0], classifier=source[1])
        assert re.search(r"will be refused: 280 records with noise of .* at epsilon 1 it takes \d+ records", str(plan))
        for asked in (plan, where.plan(PseudoLabels(), epsilon=1.0)):  # the second knows no noise yet
            with pytest.raises(InvalidValue, match=r"280 records with noise .* replay\. Nothing was spent") as refusal:
                trained(source, where, asked, checkpoint=tmp_path / "run")
        assert where.curator.charges == []
        assert where.describe().spent == 0.0
        # What the message says would do is admitted, and charged.
        enough = float(re.search(r"Ask for epsilon ([\d.]+)", str(refusal.value))[1])
        trained(source, where, where.plan(PseudoLabels(), epsilon=enough))
        assert len(where.curator.charges) == 1
        small, large = hospital(made(280, 1), 1.0), hospital(made(1500, 1), 1.0)
        with Federation({"small": small, "large": large}) as sites:
            model = trained(source, sites, sites.plan(PseudoLabels(), epsilon=1.0))
        assert [report["state"] for report in model.reports] == ["refused", "finished"]
        assert model.reports[0]["outcome"] == ""  # nothing was done with its model
        assert (len(small.curator.charges), len(large.curator.charges)) == (0, 1)


def test_a_plan_is_of_a_classifier_of_three_classes(source):
    with hospital(made(280, 1), 1.0) as where:
        plan = where.plan(PseudoLabels(), epsilon=1.0, extractor=source[0], classifier=source[1])
        with pytest.raises(InvalidValue, match="plan with extractor and classifier"):
            where.plan(PseudoLabels(), epsilon=1.0, extractor=source[0])
        with pytest.raises(InvalidValue, match="tells 2 classes apart; pseudo-labels needs 3 at least: take replay"):
            where.plan(PseudoLabels(), epsilon=1.0, extractor=source[0], classifier=nn.Linear(D, 2))
        with pytest.raises(InvalidValue, match="plan with extractor and classifier"):
            where.open(plan, source[0])
        assert where.curator.charges == []


@pytest.mark.long
def test_dead_units_are_no_components(source):
    """A unit that is off for the source, or nearly so, is not stretched: what wakes it at the hospital is not seen."""
    dead = nn.Sequential(nn.Linear(D, D + 2), nn.ReLU()).requires_grad_(False)
    with torch.no_grad():
        dead[0].weight.copy_(torch.cat([torch.eye(D), torch.zeros(2, D)]))
        dead[0].bias.copy_(torch.tensor([9.0] * D + [-1.0, -1.0]))
        dead[0].weight[-1, 0] = 0.17  # on for the few with 5.9 or more; the other is on for none
    classifier = nn.Linear(D + 2, CLASSES)
    with torch.no_grad():
        classifier.weight.copy_(torch.cat([source[1].weight, torch.zeros(CLASSES, 2)], dim=1))
        classifier.bias.copy_(source[1].bias - 9.0 * source[1].weight.sum(dim=1))
    records = made(1500, 0).images
    spread = dead(records).std(dim=0)
    assert spread[-2] == 0.0
    assert 0.0 < spread[-1] < 0.01 * spread[:D].min()
    with hospital(made(1500, 1), 3.0) as where:
        plan = where.plan(PseudoLabels(), epsilon=3.0, extractor=dead, classifier=classifier)
        sums = trained((dead, classifier, source[2]), where, plan).sites["curator"].run.sums
    assert sums.axes.out_features == 1 + D
    asleep, awake = dead(records), dead(records)
    awake[:, D:] += 5.0
    unmoved, moved = sums.axes(asleep), sums.axes(awake)
    assert float((moved - unmoved).abs().max()) < 0.1 * float(unmoved[:, 1:].std())
    with pytest.raises(InvalidValue, match="units are alive"):
        component_axes(torch.ones(50, D), 4)


@pytest.mark.long
def test_the_page_s_block_runs(source, capsys):
    """docs/ml-team/pseudo-labels.md."""
    (code,) = re.findall(r"```python\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    data = made(1500, 1)
    names = dict(zip(("extractor", "classifier", "loader"), copy.deepcopy(source), strict=True))
    with hospital(data, 3.0) as where:
        exec(compile(code, str(PAGE), "exec"), names | {"hospital": where})
        assert len(where.curator.charges) == 1
    assert capsys.readouterr().out.startswith("kept the release is what the public source would give")


@pytest.mark.long
def test_each_of_several_hospitals_gets_its_own_classifier(source, tmp_path):
    """One graph and one map for a real curator and mock ones; what the real one's noise decides is not foreseen."""
    extractor, classifier, loader = source
    moved, same = hospital(made(1500, 1, moved=1.0), 8.0), hospital(made(1500, 1), 3.0)
    home = made_home(tmp_path, made(1500, 1, moved=1.0).images.numpy(), epsilon=3.0)
    with serving(home) as address, Hospital.connect(address, credentials=tmp_path / "credentials") as real:
        with Federation({"real": real, "moved": moved, "same": same}) as sites:
            plan = sites.plan(PseudoLabels(), epsilon=2.5)
            model = DomainAdaptation(
                extractor, classifier, hospital=sites, plan=plan, device="cpu", seed=1, source_epochs=0, shared=True
            )
            model.fit(loader, progress=False)
            assert real.describe().spent == pytest.approx(2.5, rel=1e-2)
        outcomes = {report["site"]: report["outcome"] for report in model.reports}
        assert outcomes.pop("real") in (ADAPTED, UNCHANGED)
        assert outcomes == {"moved": ADAPTED, "same": UNCHANGED}
        files = model.save(tmp_path / "model.safetensors")
    assert [file.name for file in files] == [f"model-{site}.safetensors" for site in ("real", "moved", "same")]


def test_what_is_observed_is_the_mean_and_the_declared_noise():
    """Two steps of the mechanism's own release; fixed seeds, and bounds that one draw in 10^6 would leave."""
    records = torch.randn(500, D, generator=torch.Generator().manual_seed(0)) / 6.0
    data = DataSetFacts(500, (D,))
    facts = Facts(data, ModelFacts((D,), D, {}))
    declared = SumsDeclaration(sigma=0.3)
    accumulator = FEATURE_SUMS.accumulator(declared, facts, torch.device("cpu"))
    accumulator.add(records, None)
    replies = [
        FEATURE_SUMS.released(
            declared, facts, ShardSum(Shard(0, 500), accumulator.sums), SeededNoise(seed * 32, purpose="a test")
        )
        for seed in (b"1", b"2")
    ]
    observed = Observed.of(replies, sigma=0.3, records=500)
    assert observed.deviation == pytest.approx(0.3 / 500 / 2**0.5)
    clipped = FeatureMap.identity(D).clipped(records).double()
    left = (observed.values - clipped.mean(dim=0)) / observed.deviation
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], df=D)
    assert low < float(left.square().sum()) < high


def test_moves_and_gains_are_seen_where_little_noise_hides_them(source):
    """Known moves of the public source itself; seeds are fixed, and nothing here is left to chance."""
    public = made(800, 0)  # no more than a fit takes
    _, sums = whole(nn.Identity(), source[1], component_axes(public.images, D))
    sums = sums.double()
    features = public.images.double()
    with torch.no_grad():
        like = Source(features, public.labels, sums, map_from_source(sums(features), target_norm=0.35))
    generator = torch.Generator().manual_seed(0)
    sizes = torch.cat([torch.full((n,), t).double() for n, t in zip(like.kinds, (0.1, 0.2, 0.05, 0.0), strict=True)])
    true = sizes * torch.randn(len(sizes), generator=generator, dtype=torch.float64)
    means = like.added(like.moved(true)).mean(dim=0)
    shifts = fitted(like, Observed(means, 1e-3, 1000), generator)
    assert (shifts.priors.frequencies, shifts.priors.misfit) == (0.0, 0.0)
    assert shifts.evidence > 100.0
    # 36 numbers tell of 76; the sums themselves are met, and most of what moved them is found.
    met, before = (like.added(moved).mean(dim=0) - means for moved in (like.moved(shifts.mean), features))
    assert met.norm() < 0.2 * before.norm()  # as far as the chance of 1,000 records asks for
    left, there = like.moved(shifts.mean) - like.moved(true), like.moved(true) - features
    assert left.norm() < 0.5 * there.norm()
    same = Observed(like.added(features).mean(dim=0), 1e-3, 1000)
    alone = fitted(like, same, generator)
    assert alone.mean.abs().max() == 0.0
    assert torch.equal(like.moved(alone.mean), features)
