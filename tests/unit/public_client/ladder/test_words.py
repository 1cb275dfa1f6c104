"""What a glance says of the inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpswd.public_client.ladder.words import of_glance
from dpswd.public_client.normalisation.inference import CHANNELS
from dpswd.public_client.normalisation.verdict import Verdict
from dpswd.public_client.probes.probes import INPUT, Place


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize(
    ("offset", "gain", "words"), [(0.6, 1.0, "lie higher or lower"), (0.0, 1.4, "vary more"), (0.3, 0.7, "vary less")]
)
def test_an_offset_is_no_variation_and_variation_no_offset(single, offset, gain, words):
    other = offset**2 + gain**2 - 1.0 if single else gain - 1.0  # of squares, or of deviations
    move = np.repeat([offset, other], 5)
    nobody = np.zeros(0)
    verdict = Verdict(CHANNELS, {CHANNELS: 9.0}, None, np.zeros(0, dtype=np.int64), nobody, move, ())
    first = Place(INPUT, 5, True, 2 if single else 3, torch.zeros(5), torch.ones(5))
    assert f"its inputs {words} there" in of_glance(verdict, first, images=False, names=())
