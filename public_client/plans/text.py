"""A plan in words, for a terminal: costs are rounded up, what is left down."""

from __future__ import annotations

import math

from public_client.plans.measured import kind_of, reach_text
from public_client.plans.plan import Plan


def plan_text(plan: Plan) -> str:
    """What the run releases, what it adapts, its noise, its cost, and whether it fits."""
    if plan.release == "quantiles":
        what = f"sliced quantile coefficients ({plan.coefficients} in each of {plan.directions} directions)"
    else:
        what = f"noisy projections row by row ({plan.directions} directions)"
    adapter = "" if plan.adapter == "auto" else f" ({plan.adapter})"
    gradient = {
        "adapters": f"a target-side adapter{adapter}; the classifier and the source side stay",
        "all": "all weights of the extractor, on both sides",
        "none": f"{_replayed(plan)}, on public records made to look like the target's (no gradient is released)",
    }[plan.parameters]
    size = f" ({plan.gradient_parameters} numbers)" if plan.gradient_parameters else ""
    sample = f"each on {plan.batch_size} of {plan.records} records, drawn in secret"
    if plan.batch_size == plan.records:
        sample = f"on all {plan.records} records"
    lines = [
        f"{plan.steps} {'step' if plan.steps == 1 else 'steps'}, {sample}",
        f"  releases  {what}",
        f"  adapts    {gradient}{size}",
    ]
    if plan.sigma is not None:
        noise = f"  noise     {plan.sigma:.4g} on each released value"
        if plan.gradient_sigma is not None:
            noise += f", {plan.gradient_sigma:.4g} on the sum of gradients clipped to {plan.clip_norm:g}"
        lines.append(noise)
    lines.append(
        f"  costs     epsilon {math.ceil(plan.epsilon * 1e4) / 1e4:.4f} at delta {plan.delta:g}, "
        "charged as a whole when training starts"
    )
    measured, advice = reach_text(plan)
    lines += [f"  reaches   {measured};", f"            {advice}"]
    lines.append(f"  {_room(plan)}")
    return "\n".join(lines)


def _replayed(plan: Plan) -> str:
    """What the replay tunes: all that a view of images can reach, else the classifier (`views`)."""
    kinds = {"images": "all weights", "sequences": "the classifier", "vectors": "the classifier"}
    return kinds.get(kind_of(plan.record_shape), "the weights")


def _room(plan: Plan) -> str:
    """Whether the run fits."""
    left = f"{math.floor(plan.remaining * 1e4) / 1e4:.4f}"
    if plan.fits is None:
        return (
            f"room      only epsilon {left} is left by the ledger's count, but runs together cost less than their sum: "
            "plan with the extractor to ask the curator (free)"
        )
    if not plan.fits:
        steps = f"; a run of {plan.steps_that_fit} such steps would" if plan.steps_that_fit else ""
        return f"does NOT fit: only epsilon {left} is left{steps}"
    if plan.admitted:
        return f"fits      the curator would admit it now (asked; epsilon {left} is left, nothing was spent)"
    after = math.floor((plan.remaining - plan.epsilon) * 1e4) / 1e4
    return f"leaves    about epsilon {after:.4f} of the {left} that is left now"
