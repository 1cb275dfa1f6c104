"""Others' packaged auditors on this product's releases, unbroken and with planted faults.

    pip install jax-privacy opake-auditing tensorflow-cpu etils
    export PYTHONPATH=differential-privacy/python/dp_auditorium  # DP-Auditorium is in no registry: Google's repository
    python -m benchmarks.audit.packaged run [--seeds 0,1] [--results FILE]
    python -m benchmarks.audit.packaged summary [--results FILE]

2,000 canaries in one run (`public_client/testing/canaries.py`), scored here, judged there: by JAX Privacy 2.0 with
Theorem 5.2 of Steinke, Nasr and Jagielski (NeurIPS 2023) and with f-DP in one run (Mahloujifar, Melis and Chaudhuri,
ICML 2025), Bonferroni over thresholds; by Opake 0.16 with the order statistics of Xiang and others (arXiv 2509.08704),
threshold 0, which the coins' law gives. The latter two suppose a Gaussian trade-off curve, as these releases have. The
claim is epsilon 4 at delta 1e-5: by guesses alone so many canaries cannot tell half of the noise at epsilon 1, as
`canaries` does by the mechanism's law. Order statistics find each fault, the others fewer. Bounds are stated at 95%
confidence; a claim is refuted at all but one in a million.

DP-Auditorium's hockey-stick tester (Kong and others, 2023; its network and training are its defaults) is given the
likelihood ratios of 10,000 releases with and 10,000 without one far record (`benchmarks.audit.means`), each declared
for (0.5, 0.1), and refutes that at one false alarm in a million.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from benchmarks.audit import canaries
from benchmarks.audit.faults import FAULTLESS, fault
from benchmarks.audit.means import ATTACKS
from benchmarks.audit.trials import scores_of
from benchmarks.records import Job, Row, Rows, options, read, table
from dpswd.public_client.testing.canaries import CERTAIN, CONFIDENCE, Reply, one_run
from dpswd.shared.core.privacy.budget import PrivacyBudget

RESULTS = Path(__file__).parents[1] / "results" / "audit-packaged.json"
EPSILON = 4.0
AUDITORIUM, RELEASES, TESTED = "DP-Auditorium", 10_000, PrivacyBudget(epsilon=0.5, delta=0.1)


def of_jax_privacy(reply: Reply, confidence: float, *, curve: bool) -> float:
    """The lower bound on epsilon by JAX Privacy: whatever the mechanism is, or by a Gaussian curve."""
    from jax_privacy.auditing import CanaryScoreAuditor

    auditor = CanaryScoreAuditor(*(reply.scores[reply.coins == coin].numpy() for coin in (1, -1)))
    bound = auditor.epsilon_one_run_fdp if curve else auditor.epsilon_one_run
    return float(bound(1.0 - confidence, canaries.DELTA))


def of_opake(reply: Reply, confidence: float) -> float:
    """The lower bound on epsilon by Opake's order statistics."""
    from opake.auditing import canary_scores
    from opake.auditing import one_run as estimated
    from opake.auditing.types import CoinFlip

    numbers, inside = np.arange(len(reply.coins)), reply.coins.numpy() > 0
    coins = CoinFlip(
        num_canaries=len(numbers), canary_indices=numbers, _in_mask=inside, in_indices=numbers[inside],
        out_indices=numbers[~inside],
    )  # fmt: skip
    scores = canary_scores(reply.scores.numpy(), canary_indices=numbers)
    estimate = estimated(scores, coin_flip=coins)
    return float(estimate.gdp().epsilon_at(delta=canaries.DELTA, significance=1.0 - confidence, threshold=0.0))


AUDITORS: Mapping[str, Callable[[Reply, float], float]] = {
    "Steinke and others": functools.partial(of_jax_privacy, curve=False),
    "f-DP in one run": functools.partial(of_jax_privacy, curve=True),
    "order statistics": of_opake,
}


def of_auditorium(mechanism: str, planted: str, seed: int) -> Row:
    """DP-Auditorium's lower bound on delta at epsilon 0.5."""
    import tensorflow as tf
    from dp_auditorium.configs import privacy_property, property_tester_config
    from dp_auditorium.testers import hockey_stick_tester as tester

    attack = next(one for one in ATTACKS if one.mechanism == mechanism and one.steps == 1 and "guess" not in one.name)
    sigma = attack.calibrated(epsilon=TESTED.epsilon, delta=TESTED.delta)
    with fault(planted):
        worlds = [
            scores_of(
                attack, sigma, neighbour=neighbour, trials=RELEASES, delta=TESTED.delta, seed=2 * seed + neighbour
            )
            for neighbour in (False, True)
        ]
    tf.keras.utils.set_random_seed(seed)
    claim = privacy_property.ApproximateDp(epsilon=TESTED.epsilon, delta=TESTED.delta)
    config = property_tester_config.HockeyStickPropertyTesterConfig(tester.make_default_hs_training_config(), claim)
    hockey_stick = tester.HockeyStickPropertyTester(config, tester.make_default_hs_base_model())
    bound = hockey_stick.estimate_lower_bound(*(next(iter(world.values())) for world in worlds), 1.0 - CERTAIN)
    return {
        "bounds": {AUDITORIUM: float(bound)},
        "refuted": [AUDITORIUM] if hockey_stick.reject_property(bound) else [],
    }


def measured(mechanism: str, planted: str, seed: int) -> Row:
    """Each auditor's bound of one run, and those that refute the claim."""
    with fault(planted):
        reply = one_run(mechanism, epsilon=EPSILON, delta=canaries.DELTA, seed=seed)
    stated = {name: bound(reply, CONFIDENCE) for name, bound in AUDITORS.items()}
    surely = {name: bound(reply, CERTAIN) for name, bound in AUDITORS.items()}
    return {"bounds": stated, "refuted": [name for name, bound in surely.items() if bound > EPSILON]}


def jobs(seeds: tuple[int, ...]) -> list[Job]:
    """The runs of `canaries`, for each kind of auditor."""
    return [
        (settings | {"by": name}, functools.partial(judge, *settings.values()))
        for name, judge in (("one run", measured), (AUDITORIUM, of_auditorium))
        for settings, _ in canaries.jobs(seeds)
    ]


def summary(rows: list[Row]) -> list[Row]:
    """By auditor: the mean bound of unbroken mechanisms, and how many of the mechanisms with each fault it refutes."""
    lines = []
    for name in (*AUDITORS, AUDITORIUM):
        line: Row = {"auditor": name}
        judged = [row for row in rows if name in row["bounds"]]
        for planted in (FAULTLESS, *canaries.PLANTED):
            own = [row for row in judged if row["fault"] == planted]
            line[planted] = f"{sum(name in row['refuted'] for row in own)} of {len(own)}"
        line["bound"] = statistics.mean(row["bounds"][name] for row in judged if row["fault"] == FAULTLESS)
        lines.append(line)
    return lines


def page(results: Path = RESULTS) -> str:
    """The table of docs/privacy/audit-mechanisms.md."""
    heads = {"refuted by": "{auditor}", "its bound": "{bound:.2f}"}
    return table(summary(read(results)), heads | {name: f"{{{name}}}" for name in (FAULTLESS, *canaries.PLANTED)})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    options(parser, RESULTS, seeds=(0,))
    asked = parser.parse_args()
    if asked.command == "run":
        torch.set_num_threads(1)
        Rows(RESULTS, asked.results).run(jobs(asked.seeds))
        return
    print(page(asked.results or RESULTS))


if __name__ == "__main__":
    main()
