from __future__ import annotations

import pytest
import torch
from torch.nn.functional import softplus

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.published_mechanisms.critic.domain_loss import source_loss, target_cotangents


def target_loss(logits):
    return softplus(-logits).mean()


def test_the_cotangents_are_autograds_of_the_target_loss():
    logits = torch.linspace(-30, 30, 61, dtype=torch.float64).unsqueeze(1).requires_grad_()
    (expected,) = torch.autograd.grad(target_loss(logits) * len(logits), logits)
    torch.testing.assert_close(target_cotangents(logits.detach()), expected)
    assert bool((expected <= 0).all())


def test_the_source_loss_mirrors_the_target_loss():
    logits = torch.tensor([-2.0, 0.0, 3.0])
    torch.testing.assert_close(source_loss(logits), target_loss(-logits))


def test_a_logit_that_is_not_finite_pulls_like_zero():
    cotangents = target_cotangents(torch.tensor([[float("nan")], [float("inf")], [0.0]]))
    torch.testing.assert_close(cotangents, torch.full((3, 1), -0.5))


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 1, 1)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(InvalidValue, match="one for each record"):
        target_cotangents(torch.zeros(shape))
