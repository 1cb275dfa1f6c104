"""Small deformations of images: what they move, what they leave, and what a generator makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dpswd import mock_description
from dpswd.public_client.generation import Replayed, load_generator
from dpswd.public_client.generation.deformation import NORMALS, deformed
from dpswd.public_client.generation.generator import Generator, traced
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.generation.network import ImageNetwork, Target, fit_network
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.clipping import RECORD_NORM

BARS = -torch.ones(2, 1, 12, 12)
BARS[0, :, 2:9, 4:6] = BARS[1, :, 5:8, 2:10] = 1.0


def generator(**settings) -> Generator:
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(5, 2 * 9 * 12), nn.Tanh()).eval()
    return Generator(traced(decoder, 5), (2, 9, 12), (0.4, 0.6), **settings)


@given(st.integers(0, 10**6))
def test_one_level_stays_as_it_is_and_no_value_leaves_its_bounds(seed):
    own = torch.Generator().manual_seed(seed)
    normals, images = torch.randn((3, NORMALS), generator=own), torch.rand((3, 2, 9, 12), generator=own)
    torch.testing.assert_close(deformed(torch.full_like(images, 0.3), normals, 0.3), torch.full_like(images, 0.3))
    moved = deformed(images, normals, 0.3)
    assert float(moved.min()) >= float(images.min()) - 1e-6
    assert float(moved.max()) <= float(images.max()) + 1e-6
    torch.testing.assert_close(deformed(images, normals, 0.0), images)


def test_a_move_of_the_whole_is_a_move_by_pixels():
    image = torch.arange(8.0).repeat(8, 1).reshape(1, 1, 8, 8)  # a pixel's value is its column
    normals = torch.zeros(1, NORMALS)
    normals[0, 2] = 1.0  # to the right, by half sides: 0.25 of them is a pixel of eight
    torch.testing.assert_close(deformed(image, normals, 0.25)[..., :-1], image[..., :-1] + 1.0)


def test_more_deformation_moves_more_and_rows_do_not_depend_on_how_many_are_asked_for(tmp_path):
    some, much = (generator(deformation=deviation).sample(300)[0] for deviation in (0.001, 0.2))
    assert float(some.std()) > 1.05 * float(much.std())  # neighbours are mixed
    made = generator(deformation=0.1)
    made.save(tmp_path / "made.safetensors")
    read = load_generator(tmp_path / "made.safetensors")
    assert read.deformation == 0.1
    torch.testing.assert_close(read.sample(1040, 4)[0][:40], made.sample(40, 4)[0], atol=1e-5, rtol=0.0)


class TwoImages(ImageNetwork):
    def forward(self, z):
        return BARS[z[:, -2:].argmax(dim=1)].flatten(1) + 0.0 * self.last.bias.sum()


@pytest.mark.long
@pytest.mark.parametrize(("deviation", "noise", "reached"), [(0.02, 0.0, 0.02), (0.1, 0.0, 0.1), (0.1, 9.0, 0.05)])
def test_a_fit_finds_by_how_much_records_were_deformed(deviation, noise, reached):
    """Nothing else of the network can change; from 0.05, within 30%. Under noise that hides it, it is left alone."""
    description = mock_description(records=1000, record_shape=(1, 12, 12), epsilon=9.0, delta=1e-4, classes=2)
    features = Replayed(axes=30, coordinates=20, waves=20).features(description)
    own = torch.Generator().manual_seed(0)
    records = deformed(BARS.repeat_interleave(500, dim=0), torch.randn((1000, NORMALS), generator=own), deviation)
    values = features(records) / RECORD_NORM
    first = values[:, :50]
    target = Target(
        features, values.reshape(2, 500, -1).mean(dim=1), noise, torch.full((2,), 0.5), torch.eye(50),
        first.T @ first / 1000, images=50, looked=20, weight=1.0,
    )  # fmt: skip
    network = TwoImages(4, 1, (1, 12, 12), low=-1.0, high=1.0)
    fit_network(network, target, updates=60, rate=0.1, fitting=Fitting(seed=0, progress=False))
    assert network.deformation.item() == pytest.approx(reached, rel=0.3)


@pytest.mark.parametrize("wrong", [-0.1, 0.6, float("nan")])
def test_a_deformation_that_leaves_no_image_is_refused(wrong):
    with pytest.raises(InvalidValue, match=r"deformation is .* up to 0\.5"):
        replace(generator(), deformation=wrong)


def test_what_is_no_image_cannot_be_deformed():
    decoder = nn.Linear(4, 6).eval()
    with pytest.raises(InvalidValue, match="for images"):
        Generator(traced(decoder, 4), (6,), (0.5, 0.5), deformation=0.1)
