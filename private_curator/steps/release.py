"""One step, from the charge to the answer: the order of events on which the promise rests (docs/privacy, 1).

1. *Consumed*: the ledger binds one charged step to this request, durably, before a record is read.
2. *Sampled*: a secret, ordered sample of b records without replacement.
3. *Directed*: a fresh seed for the directions U, after the weights have arrived; a worker extracts meanwhile.
4. *Extracted*: features of each record by itself, the public map, the clip to norm 1/2.
5. *Released*: noisy projections or quantile coefficients.
6. *Sanitized*: cotangents from the release and public source features; gradients of each record by itself through
   map, clip and extractor; clipped to C, summed, noised.
7. *Stored*: reply, audit record and receipt in one transaction. Only what is stored is sent.

A crash or an error anywhere before 7 releases nothing: the request may be repeated, and is computed anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from private_curator.ledger import Ledger, StoredReply
from private_curator.records.target import Target
from private_curator.steps.admission import AdmittedStep, StepContent
from private_curator.steps.answers import Answer, Released, audit_record, encode
from private_curator.steps.critic import critic_gradient
from private_curator.steps.denormals import flushed_denormals
from private_curator.steps.evaluation import evaluate
from private_curator.steps.randomness import fresh_seed
from private_curator.steps.sampling import sample_without_replacement
from private_curator.steps.trial_run import Records, Rehearsals, SyntheticRecords, rehearsed_step
from private_curator.worker.process import LimitReached
from private_curator.worker.sessions import Engine, ExtractorSource, Session
from shared.errors import DpswdError, ExtractionStopped, RequestInvalid
from shared.kernels.directions import directions
from shared.kernels.feature_map import FeatureMap
from shared.kernels.noise import GridArray, NoiseSource
from shared.mechanisms.gradient.sanitized import release_gradient
from shared.mechanisms.quantiles.coefficients import release_coefficients
from shared.mechanisms.quantiles.cotangents import QuantileCotangent
from shared.mechanisms.rows.cotangents import noised_source_projections, row_cotangents
from shared.mechanisms.rows.projections import release_rows
from shared.protocol.messages import Critic, Evaluation, PublicMap, Quantiles, Rows, RunParameters

REHEARSED_SHARE = 0.5  # of the time limit: a rehearsed step may take so much, and a busy machine twice as long


class StepFailed(DpswdError):
    """A step failed after records were read: whatever the cause says, its text may quote them."""


def no_checkpoint(_: str) -> None:
    """Does nothing: the default of the hook with which tests stop the process at a named point."""


class ReleasePipeline:
    """Computes steps, a bounded number at a time.

    Args:
        ledger: charges and stored replies.
        data: the records.
        engine: evaluates extractors.
        labels: (n,) class numbers of the records, private; None where nothing can be evaluated.
        noise: the only source of noise.
        device: what the arithmetic runs on.
        parallel_steps: steps computed at the same time.
        max_attempts: how often one step is computed anew after failures.
        most_seconds: that one evaluation of an extractor may take.
        checkpoint: called at named points: consumed, sampled, directed, extracted, released, sanitized, stored.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        data: Target,
        engine: Engine,
        labels: npt.NDArray[np.int64] | None = None,
        noise: NoiseSource,
        device: torch.device,
        parallel_steps: int = 1,
        max_attempts: int = 16,
        most_seconds: float = 300.0,
        checkpoint: Callable[[str], None] = no_checkpoint,
    ) -> None:
        self._ledger = ledger
        self._data = data
        self._engine = engine
        self._most_seconds = most_seconds
        self._rehearsals = Rehearsals()
        self._labels = labels
        self._noise = noise
        self._device = device
        self._parallel_steps = parallel_steps
        self._slots = threading.BoundedSemaphore(parallel_steps)
        self._max_attempts = max_attempts
        self._checkpoint = checkpoint

    def answer(
        self, step: AdmittedStep, *, content: StepContent, client: str, extractor: ExtractorSource
    ) -> StoredReply:
        """Computes a step once and returns what was stored; a repeat of its request returns the same bytes.

        Args:
            step: every public input, checked.
            content: the request it came from.
            client: the authenticated principal.
            extractor: the run's.

        Raises:
            GrantNotHeld, RunFinished, RequestIdReused, RequestInProgress, LedgerUnavailable: see `Ledger.begin_step`.
            StepGivenUp: the step failed too often.
            ExtractionStopped: the extractor exceeded a limit, or its worker ended; the step may be repeated.
        """
        # How often a step fails is seen by the client, so its number is bounded.
        grant = self._ledger.begin_step(
            client=client,
            run_id=content.run_id,
            request_id=content.request_id,
            digest=step.digest,
            max_attempts=self._max_attempts,
        )
        if isinstance(grant, StoredReply):
            return grant
        try:
            self._checkpoint("consumed")
            with self._slots, flushed_denormals():
                released = self._computed(step, extractor)
            reply, audit = encode(released, grant), audit_record(released, step, grant, device=self._device)
        except BaseException:
            self._ledger.abandon_step(grant)
            raise
        stored = self._ledger.finish_step(grant, reply=reply, audit=audit)
        self._checkpoint("stored")
        return stored

    def idle(self) -> bool:
        """Whether no step is being computed now."""
        taken = 0
        while taken < self._parallel_steps and self._slots.acquire(blocking=False):
            taken += 1
        for _ in range(taken):
            self._slots.release()
        return taken == self._parallel_steps

    def rehearse(self, parameters: RunParameters, extractor: ExtractorSource) -> float:
        """How long a step of this run takes on synthetic records, in seconds: a public quantity.

        Reads no record and releases nothing. Remembered; known before a run is charged and before a step begins, so
        that a run whose steps would be stopped costs nothing, and limits are met by sizes and not by records.

        Raises:
            RequestInvalid: a step would exceed the operator's limits of time or memory.
        """

        def once() -> float:
            data, labels, scale = SyntheticRecords.for_run(parameters, extractor.facts, records=self._data.count)
            step = rehearsed_step(parameters, extractor.facts)
            with self._slots, flushed_denormals():
                begun = time.monotonic()
                with self._engine.session(extractor) as session:
                    self._compute(step, extractor, session, data=data, labels=labels, checkpoint=no_checkpoint)
                return scale * (time.monotonic() - begun)

        try:
            seconds = self._rehearsals.seconds(parameters, once)
        except LimitReached as error:
            text = f"declare steps that cannot be computed here, as synthetic records show: {error}"
            raise RequestInvalid((("parameters", text),)) from error
        if seconds > REHEARSED_SHARE * self._most_seconds:
            text = (
                f"declare steps that take about {seconds:.0f} seconds here; at most "
                f"{REHEARSED_SHARE * self._most_seconds:g} are allowed: use a smaller batch or extractor"
            )
            raise RequestInvalid((("parameters", text),))
        return seconds

    def _computed(self, step: AdmittedStep, extractor: ExtractorSource) -> Answer:
        """What `_compute` returns; an error from inside never travels to the client in its own words."""
        try:
            with self._engine.session(extractor) as session:
                return self._compute(
                    step, extractor, session, data=self._data, labels=self._labels, checkpoint=self._checkpoint
                )
        except ExtractionStopped:  # its words are made of settings
            raise
        except DpswdError as error:
            raise StepFailed(f"a step failed with {type(error).__qualname__}") from error

    def _compute(
        self,
        step: AdmittedStep,
        extractor: ExtractorSource,
        session: Session,
        *,
        data: Records,
        labels: npt.NDArray[np.int64] | None,
        checkpoint: Callable[[str], None],
    ) -> Answer:
        """Points 2 to 6 of the module's order. Everything private lives and dies inside this call."""
        parameters, device = step.parameters, self._device
        adapted = np.concatenate([value.ravel() for value in step.adapted.values()]) if step.adapted else None
        if isinstance(parameters.release, Evaluation):
            assert labels is not None, "admission demands labels for an evaluation"
            return evaluate(
                parameters.release, session, data=data, labels=labels, noise=self._noise, checkpoint=checkpoint
            )
        if isinstance(parameters.release, Critic):
            return critic_gradient(
                parameters, session, adapted, data=data, noise=self._noise, device=device, checkpoint=checkpoint
            )
        feature_map = _feature_map(step.feature_map, extractor.facts.feature_dimension, device=device)

        sample = sample_without_replacement(data.count, parameters.batch_size)
        records = data.take(sample)  # (b, *record_shape)
        checkpoint("sampled")

        drawn: list[tuple[bytes, Tensor]] = []

        def direct() -> None:
            seed = fresh_seed()
            U = directions(seed, extractor.facts.feature_dimension, parameters.directions, device=device)  # (d, k)
            drawn.append((seed, U))
            checkpoint("directed")

        names = parameters.gradient.parameters if parameters.gradient is not None else ()
        raw = session.features(records, adapted=adapted, names=names, meanwhile=direct).to(device)  # (b, d)
        features = feature_map.clipped(raw)
        checkpoint("extracted")

        ((seed, U),) = drawn

        values = _release(features, U, parameters, noise=self._noise)
        checkpoint("released")

        gradient, scale = None, 0.0
        if parameters.gradient is not None:
            assert step.source is not None, "admission demands source features for a gradient"
            source = feature_map.clipped(torch.from_numpy(step.source).to(device))  # (m, d), public
            cotangents, scale = _cotangents(features, values, source, U, parameters, seed=seed)
            per_record = session.gradients(feature_map.pull_back(raw, cotangents)).to(device)  # (b, p)
            gradient = release_gradient(
                per_record,
                clip_norm=parameters.gradient.clip_norm,
                sigma=parameters.gradient.sigma,
                noise=self._noise,
            )
        checkpoint("sanitized")
        return Released(seed=seed, values=values, gradient=gradient, cotangent_scale=scale)


def _release(features: Tensor, U: Tensor, parameters: RunParameters, *, noise: NoiseSource) -> GridArray:
    """The noised projections or coefficients of clipped features (b, d)."""
    if isinstance(parameters.release, Rows):
        return release_rows(features, U, sigma=parameters.release.sigma, noise=noise)
    assert isinstance(parameters.release, Quantiles)
    return release_coefficients(
        features, U, coefficients=parameters.release.coefficients, sigma=parameters.release.sigma, noise=noise
    )


def _cotangents(
    features: Tensor, values: GridArray, source: Tensor, U: Tensor, parameters: RunParameters, *, seed: bytes
) -> tuple[Tensor, float]:
    """Where each record's clipped features should move, (b, d), and the public scale that was divided out.

    For rows a function of the *released* values alone; for coefficients of the released values and the record's own
    features. Nothing here mixes private records.
    """
    released = values.to_tensor(device=features.device)
    if isinstance(parameters.release, Rows):
        noised = noised_source_projections(source, U, sigma=parameters.release.sigma, seed=seed)
        found = row_cotangents(released, noised, U)
        return found.values, found.scale
    cotangent = QuantileCotangent.from_release(released, source, U, batch=parameters.batch_size)
    return cotangent.batch(features), cotangent.scale


def _feature_map(declared: PublicMap | None, feature_dimension: int, *, device: torch.device) -> FeatureMap:
    """The public map, or the identity where the run declares none; clipping to norm 1/2 follows in either case."""
    if declared is None:
        return FeatureMap(
            center=torch.zeros(feature_dimension, device=device), scale=torch.ones(feature_dimension, device=device)
        )
    return FeatureMap(
        center=torch.from_numpy(declared.center).to(device), scale=torch.from_numpy(declared.scale).to(device)
    )
