"""The published methods' networks: what trains and what the file holds compute the same."""

from __future__ import annotations

import pytest
import torch

from dpswd.public_client.generation.generator import Generator, load_generator, traced
from dpswd.public_client.published_methods.generators.networks import ImageNetwork, decoder_of, network
from dpswd.shared.core.errors import InvalidValue


@pytest.mark.parametrize("shape", [(8, 8), (2, 12, 8)])
def test_an_image_network_is_the_same_in_the_closed_vocabulary(shape, tmp_path):
    torch.manual_seed(0)
    trained = network("auto", latent=3, classes=2, width=4, record_shape=shape)
    assert isinstance(trained, ImageNetwork)
    for _ in range(3):
        trained(torch.randn(20, 5))  # the norms' statistics
    trained.eval()
    z = torch.randn(9, 5)
    torch.testing.assert_close(trained.rewritten()(z), trained(z), rtol=1e-5, atol=1e-6)
    made = Generator(traced(decoder_of(trained, low=0.0, high=4.0), 5), shape, (0.5, 0.5), low=0.0, high=4.0)
    made.save(tmp_path / "generator.safetensors")
    x, y = load_generator(tmp_path / "generator.safetensors").sample(30, seed=1)
    assert x.shape == (30, *shape)
    assert 0.0 <= float(x.min()) < float(x.max()) <= 4.0
    assert set(y.tolist()) == {0, 1}


def test_records_that_are_no_images_get_the_dense_network():
    dense = network("auto", latent=3, classes=2, width=4, record_shape=(6,))
    assert dense(torch.zeros(5, 5)).shape == (5, 6)
    assert not isinstance(network("dense", latent=3, classes=2, width=4, record_shape=(8, 8)), ImageNetwork)
    for shape in ((6,), (8, 9)):
        with pytest.raises(InvalidValue, match="sides that 4 divides"):
            network("images", latent=3, classes=2, width=4, record_shape=shape)
