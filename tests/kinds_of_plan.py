"""Plans of every kind by one function, for tests that hold all ways of training to the same."""

from __future__ import annotations

_CRITICS = {"epsilon", "steps", "batch_size", "source_records", "learning_rate", "averaging", "components", "hidden"}


def planned(curator, **wishes):
    """A plan of a curator or a federation; ``release="critic"`` is a critic's, without what critics do not have."""
    if wishes.get("release") != "critic":
        return curator.plan(**wishes)
    return curator.plan_critic(**{name: value for name, value in wishes.items() if name in _CRITICS})


def method_of(wishes):
    """The RPC that draws a step of such a plan."""
    return {"rows": "AlignTarget", "critic": "ReleaseCriticGradient"}.get(wishes.get("release"), "ReleaseQuantiles")
