"""A client's charged steps: prepared as bytes, sent, answered with a checked receipt."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from public_client.curator.connection import Patience, call
from public_client.curator.receipts import digest_of
from public_client.curator.values import PendingStep, Run, StepKind, new_request_id
from shared.errors import ProtocolError
from shared.protocol import arrays
from shared.protocol.critics import CriticRelease
from shared.protocol.evaluations import EvaluationRelease
from shared.protocol.messages import PublicMap, StepRelease
from shared.protocol.v1 import curator_pb2 as pb
from shared.protocol.v1 import curator_pb2_grpc as rpc


class _Release(Protocol):
    @property
    def run_id(self) -> str: ...

    @property
    def step(self) -> int: ...


_R = TypeVar("_R", bound=_Release)


@dataclass(frozen=True)
class _Rpc:
    """How a kind of step travels.

    Attributes:
        request: the request's message type.
        reply: the reply's message type.
        method: the RPC's name.
        released: the reply's field with the stored bytes.
    """

    request: type[Any]
    reply: type[Any]
    method: str
    released: str = "step_release"


_STEPS: Mapping[StepKind, _Rpc] = {
    "align_target": _Rpc(pb.AlignTargetRequest, pb.AlignTargetResponse, "AlignTarget"),
    "release_projections": _Rpc(pb.ReleaseProjectionsRequest, pb.ReleaseProjectionsResponse, "ReleaseProjections"),
    "release_quantiles": _Rpc(pb.ReleaseQuantilesRequest, pb.ReleaseQuantilesResponse, "ReleaseQuantiles"),
    "evaluate_model": _Rpc(pb.EvaluateModelRequest, pb.EvaluateModelResponse, "EvaluateModel", "evaluation_release"),
    "release_critic_gradient": _Rpc(
        pb.ReleaseCriticGradientRequest, pb.ReleaseCriticGradientResponse, "ReleaseCriticGradient", "critic_release"
    ),
}


class StepRequests(abc.ABC):
    """The steps of `public_client.curator.stub.Curator`.

    Args:
        stub: of the service.
        patience: deadlines and pauses.
    """

    def __init__(self, stub: rpc.CuratorServiceStub, *, patience: Patience) -> None:
        self._stub = stub
        self._patience = patience

    def align_target(
        self,
        run: Run,
        *,
        source: str | npt.ArrayLike,
        adapted_parameters: npt.ArrayLike | None = None,
        feature_map: PublicMap | None = None,
        request_id: str | None = None,
    ) -> StepRelease:
        """One step of DP-SWD's Algorithm 2: noisy projections row by row and the sanitized gradient.

        Args:
            run: declared with rows and a gradient.
            source: raw public source features (m, d), or the digest that `upload_source` returned.
            adapted_parameters: the declared parameters, flat, in the declared order; the uploaded ones by default.
            feature_map: replaces the run's map for this step.
            request_id: from `new_request_id`; a fresh one by default.
        """
        return self.send(
            self.prepare_step(
                run,
                source=source,
                adapted_parameters=adapted_parameters,
                feature_map=feature_map,
                request_id=request_id,
                kind="align_target",
            )
        )

    def release_projections(
        self,
        run: Run,
        *,
        adapted_parameters: npt.ArrayLike | None = None,
        feature_map: PublicMap | None = None,
        request_id: str | None = None,
    ) -> StepRelease:
        """One step of Algorithm 1: noisy projections alone. The arguments are those of `align_target`."""
        return self.send(
            self.prepare_step(
                run,
                adapted_parameters=adapted_parameters,
                feature_map=feature_map,
                request_id=request_id,
                kind="release_projections",
            )
        )

    def release_quantiles(
        self,
        run: Run,
        *,
        source: str | npt.ArrayLike | None = None,
        adapted_parameters: npt.ArrayLike | None = None,
        feature_map: PublicMap | None = None,
        request_id: str | None = None,
    ) -> StepRelease:
        """One step of sliced quantile coefficients; `source` is needed when the run declares a gradient."""
        return self.send(
            self.prepare_step(
                run,
                source=source,
                adapted_parameters=adapted_parameters,
                feature_map=feature_map,
                request_id=request_id,
                kind="release_quantiles",
            )
        )

    def evaluate_model(self, run: Run, *, request_id: str | None = None) -> EvaluationRelease:
        """One step of an evaluation's run: noised counts of the uploaded model's predictions on all records."""
        pending = self.prepare_step(run, request_id=request_id, kind="evaluate_model")
        return self._released(pending, EvaluationRelease.from_bytes)

    def release_critic_gradient(
        self, run: Run, *, adapted_parameters: npt.ArrayLike | None = None, request_id: str | None = None
    ) -> CriticRelease:
        """One step of a critic's run: the noised sum of its clipped per-record gradients.

        Args:
            run: declared with a critic and a gradient.
            adapted_parameters: the declared parameters, flat, in the declared order; the uploaded ones by default.
            request_id: from `new_request_id`; a fresh one by default.
        """
        pending = self.prepare_step(
            run, adapted_parameters=adapted_parameters, request_id=request_id, kind="release_critic_gradient"
        )
        return self.send_critic(pending)

    def prepare_step(
        self,
        run: Run,
        *,
        source: str | npt.ArrayLike | None = None,
        adapted_parameters: npt.ArrayLike | None = None,
        feature_map: PublicMap | None = None,
        request_id: str | None = None,
        kind: StepKind | None = None,
    ) -> PendingStep:
        """Writes a step's request without sending it, so that it can be stored first (`checkpoint`)."""
        kind = kind or run.step_kind
        request_id = request_id or new_request_id()
        step = pb.StepInput(run_id=run.run_id, request_id=request_id)
        if adapted_parameters is not None:
            step.adapted_parameters = np.ascontiguousarray(adapted_parameters, dtype="<f4").tobytes()
        if feature_map is not None:
            step.feature_map.CopyFrom(feature_map.to_message())
        message = _STEPS[kind].request(input=step)
        if source is not None:
            message.source.CopyFrom(_source(source))
        return PendingStep(kind, run.run_id, request_id, message.SerializeToString(deterministic=True))

    def send(self, pending: PendingStep) -> StepRelease:
        """Sends a prepared step, now or again; a repeat of an answered one returns the stored bytes, free.

        Raises:
            RunFinished: all declared steps are used.
            ProtocolError: the reply or its receipt does not hold.
        """
        return self._released(pending, StepRelease.from_bytes)

    def send_critic(self, pending: PendingStep) -> CriticRelease:
        """`send` for a critic's step."""
        return self._released(pending, CriticRelease.from_bytes)

    def _released(self, pending: PendingStep, decode: Callable[[bytes], _R]) -> _R:
        """The decoded release of a step, once its receipt is proved to speak of it."""
        step = _STEPS[pending.kind]
        request = step.request.FromString(pending.message)
        reply = call(getattr(self._stub, step.method), request, step.reply, patience=self._patience)
        stored: bytes = getattr(reply, step.released)
        release = decode(stored)
        if release.run_id != pending.run_id:
            raise ProtocolError(f"the reply belongs to run {release.run_id!r}, asked was {pending.run_id!r}")
        self._keep(
            reply.receipt,
            run_id=pending.run_id,
            request_id=pending.request_id,
            reply=stored,
            step=release.step,
            request_digest=digest_of(pending),
        )
        return release

    @abc.abstractmethod
    def _keep(self, receipt: pb.Receipt, **stated: Any) -> None:
        """Checks a receipt against what it must state, and stores it."""


def _source(source: str | npt.ArrayLike) -> pb.SourceFeatures:
    if isinstance(source, str):
        return pb.SourceFeatures(digest=source)
    return pb.SourceFeatures(inline=arrays.encode_floats(source))
