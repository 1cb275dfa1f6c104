"""What a hospital declares of its records' values, held against a team's source before anything is charged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_methods import small
from torch import nn

from dpswd import AllWeights, DomainAdaptation, Hospital
from dpswd.private_curator.records.contract import check_contract, contract_of
from dpswd.private_curator.records.target import Target
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.public_client.data.checks import require_features
from dpswd.public_client.replay.augmentation import Variation, Warps
from dpswd.public_client.replay.views import ImageView, view_for
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.shared.core.errors import DataInvalid, InvalidValue, SettingsError
from dpswd.shared.protocol.contract import DataContract
from dpswd.shared.records.problems import RecordsRefused

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PIXELS = DataContract(value_range=(0.0, 1.0), channel_mean=MEAN, channel_std=STD)
STILL = Variation(warps=Warps(turn=0, scale=0, aspect=0, shear=0, shift=0), elastic=0, stroke=0, gamma=0)


def normalised(count, side=8):
    generator = torch.Generator().manual_seed(count)
    images = torch.rand(count, 3, side, side, generator=generator)
    return (images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def loader(records):
    labels = torch.arange(len(records)) % 2
    return [(records[i : i + 32], labels[i : i + 32]) for i in range(0, len(records), 32)]


def refused(records, contract, *, own=None, extractor=None, match):
    shape = tuple(records.shape[1:])
    facts = mock_description(records=200, record_shape=shape, epsilon=2.0, delta=1e-5, contract=contract)
    hospital = Hospital(MockCurator(facts))
    torch.manual_seed(0)
    extractor = extractor or nn.Sequential(nn.Flatten(), nn.Linear(records[0].numel(), 4), nn.Tanh())
    model = DomainAdaptation(
        extractor, nn.Linear(4, 2), hospital=hospital, plan=hospital.plan(small("replay"), epsilon=1.0),
        source_epochs=0, contract=own,
    )  # fmt: skip
    with pytest.raises((DataInvalid, InvalidValue), match=match):
        model.fit(loader(records), progress=False)
    assert hospital.curator.charges == []


def test_another_scale_other_columns_and_dead_features_are_refused_before_a_charge():
    images = normalised(64)
    refused(images * 255, PIXELS, match=r"values reach from .* the hospital declares -2.118 to 2.64, normalised by")
    refused(images / 255, PIXELS, match="lie between .* only")
    raw = torch.rand(64, 3, 8, 8)
    refused(raw, PIXELS, match="fill the scale from 0 to 1 in each channel, .* declare the same value_range")
    refused(raw * 2 - 1, PIXELS, match="fill the scale from -1 to 1 in each channel")
    refused(raw * 255, PIXELS, match="values reach from")
    rows = torch.randn(64, 3)
    columns = DataContract(column_names=("age", "pressure", "sugar"), units=("years", "mmHg", "mg/dl"))
    refused(rows, columns, own=replace(columns, units=("years", "mmHg", "mmol/l")), match="'mmol/l' for 'mg/dl'")
    refused(rows, columns, own=DataContract(column_names=("sugar", "age", "pressure")), match="'sugar' for 'age'")
    classes = DataContract(class_names=("healthy", "ill"))
    refused(rows, classes, own=DataContract(class_names=("ill", "healthy")), match="first 'ill' for 'healthy'")
    dead = nn.Sequential(nn.Linear(3, 4), nn.Hardtanh(5.0, 6.0))
    refused(rows, DataContract(), extractor=dead, match=r"4 of the extractor's 4 features are the same .* Nothing was")
    require_features(torch.randn(8, 4) * torch.tensor([1.0, 1.0, 0.0, 0.0]))  # some dead ReLUs are usual


def test_the_identity_of_an_image_view_leaves_images_of_any_scale_alone():
    for images in (
        normalised(16),
        torch.rand(16, 1, 8, 8) * 255,
        torch.rand(16, 2, 8, 8),
        torch.rand(4, 1, 8, 8) * 2 - 1,
    ):
        view = view_for(images, torch.zeros(len(images), 4))
        assert isinstance(view, ImageView)
        seen = view(nn.Identity(), images).detach()
        width = float(images.max() - images.min())
        # The power of gamma begins at 1/1000 of the range.
        torch.testing.assert_close(seen, images, atol=1.1e-3 * width, rtol=0)
        (inverted,) = [v for v in view.candidates(0, torch.Generator()) if float(v.sign) < 0]
        low, high = float(images.amin()), float(images.amax())
        assert float(inverted(nn.Identity(), images).amax()) <= high + 0.01 * width + 1e-6
        assert float(inverted(nn.Identity(), images).amin()) >= low - 0.01 * width - 1e-6


def departs(images, contract=PIXELS, own=None):
    low, high = (end.double().numpy() for end in (images.amin(dim=(0, 2, 3)), images.amax(dim=(0, 2, 3))))
    return contract.differences(low, high, tuple(images.shape[1:]), own or DataContract())


def test_dark_bright_and_low_contrast_sources_on_the_declared_scale_are_let_through():
    pixels = torch.rand(32, 3, 8, 8)
    mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
    for low, high in ((0.0, 0.3), (0.02, 0.2), (0.3, 0.7), (0.4, 0.6), (0.5, 0.7), (0.6, 1.0), (0.25, 0.75), (0, 1)):
        assert not departs(((low + (high - low) * pixels) - mean) / std), (low, high)
    centred = DataContract(value_range=(-1.0, 1.0))
    assert "from 0 to 1" in departs(pixels, centred)
    assert not departs(pixels * 2 - 1, centred)
    assert not departs(pixels, DataContract(value_range=(0.0, 1.0)))
    # A team that declares the hospital's scale itself is believed, but not about values outside.
    assert not departs(pixels, own=PIXELS)
    assert "reach from" in departs(pixels * 255, own=PIXELS)
    assert departs(pixels, own=DataContract(value_range=(0.0, 1.0)))


def test_what_is_not_compared_is_said_before_the_charge(caplog):
    own = DataContract(column_names=("age", "sugar"), class_names=("no", "yes"))
    said = own.uncompared(DataContract(column_names=("age", "sugar")))
    assert [text.split(";")[0] for text in said][1:] == ["the hospital declares classes no, yes"]
    assert "declares no range" in said[0]
    assert PIXELS.uncompared() == []
    refused(torch.randn(64, 2), own, extractor=nn.Sequential(nn.Linear(2, 4), nn.Hardtanh(5, 6)), match="are the same")
    assert "declares columns age, sugar; you declared none" in caplog.text


def test_an_own_loop_with_its_source_refuses_dead_features_and_another_scale_before_the_charge():
    facts = mock_description(records=200, record_shape=(3, 8, 8), epsilon=2.0, delta=1e-5, contract=PIXELS)
    hospital = Hospital(MockCurator(facts))
    plan = hospital.plan(AllWeights(), epsilon=1.0, steps=1)
    live = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Tanh()).eval()
    dead = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Hardtanh(5, 6)).eval()
    with pytest.raises(InvalidValue, match="are the same"):
        hospital.open(plan, dead, source=normalised(32))
    with pytest.raises(DataInvalid, match="fill the scale"):
        hospital.open(plan, live, source=torch.rand(32, 3, 8, 8))
    assert hospital.curator.charges == []
    hospital.open(plan, live, source=normalised(32))
    assert len(hospital.curator.charges) == 1


def hospital_records(**changes):
    return RecordsSettings(file="records.npy", **changes)


def test_the_hospital_finds_records_outside_and_declarations_that_do_not_fit(tmp_path):
    images = normalised(20).numpy()
    np.save(tmp_path / "records.npy", images)
    data = Target(stored=images, record_shape=(3, 8, 8))
    declared = {"value_range": (0.0, 1.0), "channel_mean": MEAN, "channel_std": STD}
    text = check_contract(hospital_records(**declared), lambda: data, home=tmp_path)
    assert text == "0 to 1; then less 0.485, 0.456, 0.406, over 0.229, 0.224, 0.225"
    assert "cannot tell" in check_contract(hospital_records(), lambda: data, home=tmp_path)
    images[7, 1, 2, 3] = 9.0
    with pytest.raises(RecordsRefused, match="declares") as caught:
        check_contract(hospital_records(**declared), lambda: data, home=tmp_path)
    assert "record 7, counted from 0" in caught.value.in_full()
    assert "7" not in str(caught.value)
    for wrong, match in (
        ({"channel_mean": MEAN}, "must have one number for each channel"),
        ({"channel_mean": (0.0, 0.0), "channel_std": (1.0, 1.0)}, "channel_mean has 2 numbers; records have shape"),
        ({"units": ("mm",)}, r"units has 1 words; records have shape \(3, 8, 8\)"),
        ({"channel_mean": (0.0,), "channel_std": (0.0,)}, "must be positive"),
        ({"class_names": ("no", "yes")}, "class_names has 2 names; give one for each of the 0 classes"),
        ({"classes": 3, "class_names": ("no", "yes")}, "give one for each of the 3 classes"),
        ({"classes": ("no", "yes"), "class_names": ("yes", "no")}, "leave it out where records.classes names them"),
        ({"classes": 2, "class_names": ("no", "no")}, "class_names must differ"),
    ):
        with pytest.raises(SettingsError, match=match):
            contract_of(hospital_records(**wrong), record_shape=(3, 8, 8), home=tmp_path)
    for declared in ({"classes": ("no", "yes")}, {"classes": 2, "class_names": ("no", "yes")}):
        made = contract_of(hospital_records(**declared), record_shape=(3, 8, 8), home=tmp_path)
        assert made.class_names == ("no", "yes")
    (tmp_path / "table.csv").write_text("age,sugar\n1,2\n3,4\n")
    table = Target(stored=np.array([[1, 2], [3, 4]], dtype=np.float32), record_shape=(2,))
    with pytest.raises(SettingsError, match="the file's columns are age, sugar"):
        check_contract(RecordsSettings(file="table.csv", column_names=("sugar", "age")), lambda: table, home=tmp_path)


def test_a_contract_travels_and_reads_back():
    full = replace(PIXELS, column_names=("a", "b"), units=("mm", "kg"), class_names=("no", "yes"))
    assert DataContract.from_bytes(full.to_bytes()) == full
    description = mock_description(records=9, record_shape=(2,), epsilon=1.0, delta=1e-5, contract=full)
    assert "a (mm), b (kg); classes no, yes" in str(description)
    assert type(description).from_json(description.to_json()) == description
    assert Hospital(MockCurator(description)).describe().contract == full
    with pytest.raises(InvalidValue, match="value_range must be two finite numbers"):
        DataContract.from_json({"value_range": [1.0, 0.0]})
