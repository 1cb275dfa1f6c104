"""One release, replayed: the default method.

Nothing comes back through the target branch. The stored releases are replayed (`dpswd.public_client.replay`): the
simplest explanation that fits them is found. If that is a small model of how the target sees things, all weights are
fine-tuned on the source seen through it; if it is other class frequencies, the classifier's priors are corrected, and
weights are trained on by them where that gains; if nothing fits, or the source does as it is, the model is kept.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.measured import modality_of
from dpswd.public_client.plans.recipe import RunTerms, not_counts, not_positive
from dpswd.public_client.replay import fit
from dpswd.public_client.replay.cross_fitting import MOST_STEPS
from dpswd.public_client.replay.delivery import deliver
from dpswd.public_client.replay.posterior import VIEW_PASSES, VIEW_STEPS
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.tuning import record_passes
from dpswd.public_client.replay.verdict import UNCHANGED, Fitted
from dpswd.public_client.replay.weighted import most_updates
from dpswd.public_client.training.loop import Training, status, write_histories
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.run import Release
from dpswd.public_client.training.sites import Group, Model
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.mechanisms.quantiles.mechanism import QUANTILES
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration

_TUNED = {"images": "all weights", "sequences": "the classifier", "vectors": "the classifier"}


@dataclass(frozen=True, kw_only=True)
class Replay(Method):
    """Replays one release of the full batch; no gradient leaves the curator.

    Attributes:
        directions: k.
        coefficients: L of each direction.
        target_norm: the public map gives source features this mean norm; records are clipped at 1/2.
        tuning_steps: updates on public records after the fit; they cost time, no budget.
    """

    name = "replay"
    mechanism = QUANTILES
    fits_view = True

    directions: int = 200
    coefficients: int = 3
    target_norm: float = 0.4
    tuning_steps: int = 1500

    def problems(self) -> list[str]:
        counts = not_counts(self, "directions", "coefficients", "tuning_steps")
        return [*super().problems(), *counts, *not_positive(self, "target_norm")]

    @property
    def published_map_norm(self) -> float | None:
        return self.target_norm

    def declaration(self, run: RunTerms) -> Payload:
        return SlicedDeclaration(
            directions=self.directions,
            sigma=run.sliced_sigma(self.directions, self.coefficients),
            coefficients=self.coefficients,
            feature_map=run.feature_map,
        )

    def record_passes(self, record_shape: tuple[int, ...] | None) -> int:
        """See `Method`: the fit of a view, and training by it; of features alone both are quick."""
        tuning = record_passes(self.tuning_steps)
        return VIEW_PASSES + tuning if modality_of(record_shape) == "images" else 0

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        tuned = _TUNED.get(modality_of(record_shape), "the weights")
        return f"{tuned}, on public records made to look like the target's (no gradient is released)"

    def begin(self, group: Group, training: Training) -> None:
        if training.view is None:  # of a run that goes on; a new one's site was described when it was asked
            unknown = [site for site in group.live if site.contract is None]
            for name, contract in group.each(lambda site: site.curator.describe().contract, unknown).items():
                next(site for site in unknown if site.name == name).contract = contract
        ready = Declarable.of(training.model.extractor, group.record_shape())
        feature_map = map_from_source(training.features, target_norm=self.target_norm)
        group.charge_each(
            lambda site: Release(site.curator, ready, site.plan, feature_map=feature_map, checkpoint=site.store).open()
        )

    def fit(self, group: Group, training: Training) -> None:
        """See `Method`: the private steps come first, all training after them is post-processing."""
        extractor = copy.deepcopy(training.model.extractor).requires_grad_(False)
        releases = training.read_each(group, "private releases", lambda site, bar: site.run.ask_all(bar))
        source = training.shown(fit.MOST_RECORDS)
        generator = torch.Generator().manual_seed(training.seed)
        fits: dict[str, Fitted] = {}
        for site in group.live:
            sliced: SlicedDeclaration = site.run.declared
            assert sliced.feature_map is not None, "declared by `begin`"
            residuals = Residuals(
                releases[site.name],
                like=training.features,
                feature_map=sliced.feature_map.to(training.device),
                batch=site.plan.batch_size,
                sigma=sliced.sigma,
            )
            declared = None if site.contract is None else site.contract.bounds(tuple(source.images.shape[1:]))
            with reporting(f"fitting the view of {site.name}", VIEW_STEPS, shown=training.progress) as bar:
                fitted = fit.find_view(
                    extractor,
                    source,
                    residuals,
                    learning_rate=self.learning_rate,
                    generator=generator,
                    bar=bar,
                    view=training.view,
                    declared=declared,
                    ranks=training.ranks,
                )
            fits[site.name] = fitted
        updates = self.tuning_steps * any(fitted.convinced for fitted in fits.values())
        title = f"{'tuning on the view' if updates else 'trying other priors'} of {group}"
        updates += MOST_STEPS * any(fitted.outcome not in UNCHANGED for fitted in fits.values())
        updates += most_updates(sum(fitted.class_draws is not None for fitted in fits.values()))
        with reporting(title, updates, shown=training.progress and updates > 0) as bar:
            delivered = deliver(  # not the frozen copy: which parameters were trained is asked there
                training.model.extractor, training.model.classifier, fits, group.shares(group.live), source,
                steps=self.tuning_steps, seed=training.seed, generator=generator, bar=bar, ranks=training.ranks,
            )  # fmt: skip
            for site in group.live:
                given = delivered[site.name]
                # All ranks computed the same, but for their processors.
                training.ranks.synchronise(given.extractor, given.classifier)
                site.outcome, site.plain = given.outcome, given.plain
                model = Model(given.extractor, given.classifier)
                training.deliver(site, model, given.reason, distance=fits[site.name].left)
            bar.tell(status(group))
        write_histories(group)
