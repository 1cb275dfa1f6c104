"""Runs attacks on live curators and turns scores into findings."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.audit.attacks import Attack
from benchmarks.audit.bounds import Evidence, dependence, evidence, noise_bound
from benchmarks.audit.curators import LiveCurator, upload
from benchmarks.audit.faults import FAULTLESS, fault
from benchmarks.labelled import HeldRecords, Site
from dpswd.private_curator.books.ledger import Ledger
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import PendingStep, new_request_id
from dpswd.public_client.testing.canaries import divided
from dpswd.shared.accounting import calibration
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.events import RunEvent

_ROOMY = 1.25  # the ledger that is asked for the claim has a budget of this much more than a trial costs
_STEPS_OF_A_RUN = 100_000


@dataclass(frozen=True)
class Claim:
    """What is promised for one trial.

    Attributes:
        sigma: of the attack's declaration.
        ledger: epsilon that a ledger quotes for the trial at `delta`.
        exact: epsilon of the exact profile, or of the privacy loss distribution, at `delta`.
        delta: where all of it is stated.
    """

    sigma: float
    ledger: float
    exact: float
    delta: float


@dataclass(frozen=True)
class Finding:
    """One attack on one curator, by one score.

    Attributes:
        attack: the attack's name.
        score: the score's name.
        trials: with D and with D' each.
        claim: what was promised.
        free: what the trials prove whatever the mechanism is.
        noise: epsilon that they prove if the mechanism is the declared one up to the size of its noise; None where
            that was not asked.
        dependence: p-value of "the steps of a run are independent"; None for single releases.
        alpha: probability of a false alarm of this row, all its figures together.
        seconds: what it took.
    """

    attack: str
    score: str
    trials: int
    claim: Claim
    free: Evidence
    noise: float | None
    dependence: float | None
    alpha: float
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether the promise is refuted, or the steps of a run share their sample."""
        dependent = self.dependence is not None and self.dependence < self.alpha / 3
        return self.proved > self.claim.ledger or dependent

    @property
    def figures(self) -> dict[str, float | bool | None]:
        """To be written."""
        return {
            "trials": self.trials, "claimed": self.claim.ledger, "exact": self.claim.exact, "proved": self.free.epsilon,
            "proved_by_the_noise": self.noise, "dependence": self.dependence, "caught": self.caught,
            "seconds": round(self.seconds, 1),
        }  # fmt: skip

    @property
    def proved(self) -> float:
        """The larger of the lower bounds on epsilon."""
        return max(self.free.epsilon, self.noise or 0.0)


@dataclass
class Audit:
    """Audits curators with one fault after another.

    Attributes:
        delta: at which claims and bounds are stated.
        alpha: of all rows of one curator together.
        served: whether the curators are live; else a mock one computes the releases here: the same mechanisms and
            charges, without service and ledger, and many times faster.
        process: whether the honest live curators are processes of their own; broken ones are served from this one.
        noise_bounds: whether the parametric bound is computed for random shifts as well, which takes minutes.
        say: told what happens.
        claims: by attack; made once.
    """

    delta: float = 0.02
    alpha: float = 0.05
    served: bool = True
    process: bool = True
    noise_bounds: bool = True
    say: Callable[[str], None] = print
    claims: dict[str, Claim] = field(default_factory=dict)

    def audit(self, fault_name: str, chosen: Sequence[Attack], *, trials: Callable[[Attack], int]) -> list[Finding]:
        """All chosen attacks on curators with one fault.

        Args:
            fault_name: a key of `faults.FAULTS`.
            chosen: the attacks.
            trials: how many, with D and with D' each, for an attack.
        """
        rows = sum(len(attack.scores) for attack in chosen)
        findings = []
        for attack in chosen:
            begun = time.monotonic()
            claim = self.claims.setdefault(attack.name, claim_of(attack, delta=self.delta))
            pair = [
                self._scores(attack, fault_name, claim.sigma, neighbour=neighbour, trials=trials(attack))
                for neighbour in (False, True)
            ]
            for name in attack.scores:
                finding = self._finding(attack, name, claim, pair, alpha=self.alpha / rows, begun=begun)
                findings.append(finding)
                law = "" if finding.noise is None else f", with the noise's law {finding.noise:.2f}"
                self.say(
                    f"{fault_name}: {attack.name} ({name}): epsilon >= {finding.free.epsilon:.2f}{law}, "
                    f"claimed {claim.ledger:.2f}{', CAUGHT' if finding.caught else ''} ({finding.seconds:.0f} s)"
                )
        return findings

    def _finding(
        self,
        attack: Attack,
        name: str,
        claim: Claim,
        pair: Sequence[dict[str, NDArray[np.float64]]],
        *,
        alpha: float,
        begun: float,
    ) -> Finding:
        scores, others = (each[name] for each in pair)
        free = evidence(scores, others, delta=self.delta, alpha=alpha / 3)
        noise = None
        if self.noise_bounds or attack.is_constant:
            event = attack.event(claim.sigma)
            centred = evidence(scores, others, delta=self.delta, alpha=alpha / 3, centred=True)
            noise = noise_bound(centred, lambda factor: divided(event, factor), self.delta)
        halves = pair[1].get("halves")
        return Finding(
            attack=attack.name,
            score=name,
            trials=len(scores),
            claim=claim,
            free=free,
            noise=noise,
            dependence=None if halves is None else dependence(halves[:, 0], halves[:, 1], seed=0),
            alpha=alpha,
            seconds=time.monotonic() - begun,
        )

    def _scores(
        self, attack: Attack, fault_name: str, sigma: float, *, neighbour: bool, trials: int
    ) -> dict[str, NDArray[np.float64]]:
        """Scores of each trial, by name, and the halves of each run."""
        if not self.served:
            more = {"trials": trials, "delta": self.delta, "seed": secrets.randbits(64)}
            with fault(fault_name):
                return scores_of(attack, sigma, neighbour=neighbour, **more)
        records, labels = attack.data(neighbour=neighbour), attack.labels(neighbour=neighbour)
        with tempfile.TemporaryDirectory(prefix="dpswd-audit-", dir=fast_directory()) as directory:
            with LiveCurator(
                Path(directory) / "curator",
                records,
                delta=self.delta,
                fault_name=fault_name,
                labels=labels,
                classes=attack.classes,
                process=self.process and fault_name == FAULTLESS,
            ) as curator:
                scores = _drive(attack, curator.client, sigma, trials)
            assert curator.ledger_verifies()
        return scores


def scores_of(
    attack: Attack, sigma: float, *, neighbour: bool, trials: int, delta: float, seed: int
) -> dict[str, NDArray[np.float64]]:
    """Scores of each trial on a mock curator, by name, and the halves of each run; the noise is this seed's."""
    site = Site(attack.data(neighbour=neighbour), attack.labels(neighbour=neighbour))
    return _drive(attack, HeldRecords(site, classes=attack.classes, delta=delta, seed=seed), sigma, trials)


def fast_directory() -> str | None:
    """Memory where there is some: every step syncs the ledger twice, and durability is not what is audited."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def claim_of(attack: Attack, *, delta: float) -> Claim:
    """What a fresh ledger quotes for one trial, and what the exact profile says."""
    sigma = attack.calibrated(epsilon=attack.epsilon, delta=delta)
    event = attack.event(sigma)
    return Claim(
        sigma=sigma,
        ledger=_quoted(event, epsilon=_ROOMY * attack.epsilon, delta=delta),
        exact=calibration.epsilon(event, delta),
        delta=delta,
    )


def _quoted(event: RunEvent, *, epsilon: float, delta: float) -> float:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    with (
        tempfile.TemporaryDirectory(prefix="dpswd-audit-", dir=fast_directory()) as directory,
        Ledger.create(
            Path(directory) / "ledger.db",
            key=Ed25519PrivateKey.generate(),
            records=event.step.records,
            budget=PrivacyBudget(epsilon=epsilon, delta=delta),
        ) as ledger,
    ):
        ledger.add_client("auditor", "a" * 64)
        quote = ledger.price_run(client="auditor", event=event)
        assert quote.fits
        return quote.epsilon


def _drive(attack: Attack, client: Curator, sigma: float, trials: int) -> dict[str, NDArray[np.float64]]:
    uploaded = upload(client, attack.module())
    steps = trials if attack.steps == 1 else attack.steps
    if steps > _STEPS_OF_A_RUN:
        raise ValueError(f"at most {_STEPS_OF_A_RUN} trials of single releases")
    declared = attack.parameters(uploaded, sigma=sigma, steps=steps)
    sigmas = tuple(part.sigma for part in attack.event(sigma).step.parts)
    run = client.open_run(declared)
    scores: dict[str, list[float]] = {name: [] for name in attack.scores}
    halves: list[tuple[float, float]] = []
    for number in range(trials):
        if number and attack.steps > 1:
            run = client.open_run(declared)
        pending = [PendingStep(run.run_id, new_request_id(), attack.request) for _ in range(attack.steps)]
        releases = [attack.released(client.send(one), sigmas) for one in pending]
        for name, score in attack.scores.items():
            scores[name].append(score(attack, releases))
        if attack.steps > 1 and attack.batch < attack.records:
            score, middle = next(iter(attack.scores.values())), attack.steps // 2
            halves.append((score(attack, releases[:middle]), score(attack, releases[middle:])))
    made = {name: np.array(values) for name, values in scores.items()}
    return made | ({"halves": np.array(halves)} if halves else {})
