"""A method: a recipe, and how a run of it begins and trains."""

from __future__ import annotations

import abc
import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.measured import measured_alike, measured_text
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import Recipe, not_between, not_counts, not_positive, refuse
from dpswd.public_client.training.loop import Training
from dpswd.public_client.training.run import Release
from dpswd.public_client.training.sites import Group
from dpswd.shared.core.errors import InvalidValue


@dataclass(frozen=True, kw_only=True)
class Method(Recipe):
    """One way to train for a target, with its settings.

    Attributes:
        learning_rate: at the start.
        source_records: public records whose features are compared with the private ones.
        averaging: decay of the running average of the trained weights that is kept at the end; 0 keeps the last.
        trains_shared: several sites always train one model.
        fits_view: a view of the caller's own may be fitted.
        suits: when to choose it, where that is not plain; in a few words.
        unpublished: why no release of it can be prepared for a publication, where `published_map_norm` is None.
        own_target: the model is for the team's own records, of which some or all have no label (-1), and learns from
            the hospital's; there is no training on the public records before it.
        puts_back: what it may put before the extractor is for the target's records and for no others.
    """

    trains_shared: ClassVar[bool] = False
    fits_view: ClassVar[bool] = False
    own_target: ClassVar[bool] = False
    puts_back: ClassVar[bool] = False
    suits: ClassVar[str] = ""
    unpublished: ClassVar[str] = "its run asks step by step, and a publication is one release"

    learning_rate: float = 0.03
    source_records: int = 4096
    averaging: float = 0.0

    def __post_init__(self) -> None:
        refuse(self.problems())

    def problems(self) -> list[str]:
        """Settings that are out of range, in words."""
        return [
            *not_positive(self, "learning_rate"),
            *not_counts(self, "source_records"),
            *not_between(self, 0.0, 1.0, "averaging"),
        ]

    @property
    def published_map_norm(self) -> float | None:
        """Of a method whose run is one release of all records, which a hospital can publish: of its public map.

        The map gives source features this mean norm. None where none can be prepared (`unpublished` says why).
        """
        return None

    def declarable(
        self, extractor: nn.Module, record_shape: tuple[int, ...], classifier: nn.Module | None = None
    ) -> Declarable:
        """What the runs of a source extractor would declare: by default that alone, with nothing adapted.

        Args:
            extractor: in any mode; it stays as it is.
            record_shape: of one record.
            classifier: of the extractor's features, for methods that train it with the hospital's records.
        """
        return Declarable.of(extractor, record_shape)

    @classmethod
    def usual_model(cls, records: Tensor, classes: int) -> tuple[nn.Module, nn.Module]:
        """Of a method for the team's own records: extractor and classifier where the team brings none.

        Args:
            records: (m, ...), the team's.
            classes: C.

        Raises:
            InvalidValue: the method has no model of its own.
        """
        raise InvalidValue(f"{cls.name} has no model of its own; bring one")

    def open(self, curator: Curator, plan: Plan, extractor: nn.Module) -> Release[Any]:
        """Opens (hence charges) a run for a loop of the caller's own: its steps are drawn as they come.

        Args:
            curator: the connection.
            plan: see `Hospital.open`, also for what is returned and raised.
            extractor: see `Hospital.open`.
        """
        return Release(curator, self.declarable(extractor, plan.record_shape), plan).open()

    @abc.abstractmethod
    def begin(self, group: Group, training: Training) -> None:
        """Opens the sites' runs; traces, so it never runs beside another training.

        Args:
            group: sites that train together.
            training: what all sites share.

        Raises:
            DpswdError: no site admits its run; nothing was spent.
        """

    @abc.abstractmethod
    def fit(self, group: Group, training: Training) -> None:
        """Trains; safe beside others.

        Args:
            group: with open runs.
            training: as `begin` took it.
        """

    def notes(self, plan: Plan) -> list[tuple[str, str]]:
        """See `Recipe`: what such a plan reached where it was measured."""
        first, *rest = measured_text(plan)
        suits = [("suits", self.suits)] if self.suits else []
        return [("reaches", first), *(("", line) for line in rest), *suits]


def plan_json(plan: Plan) -> str:
    """A method's plan as one JSON document for ``--format json``."""
    alike = measured_alike(plan)
    facts: dict[str, Any] = {"fits": plan.fits, "measured_alike": None if alike is None else asdict(alike)}
    return json.dumps(plan.to_json() | facts, indent=1, sort_keys=True)
