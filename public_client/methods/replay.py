"""One release, replayed: the default method.

Nothing comes back through the target branch. The stored releases are replayed (`dpswd.public_client.replay`): the
simplest explanation that fits them is found. If that is a small model of how the target sees things, all weights are
fine-tuned on the source seen through it; if it is other class frequencies, the classifier's priors are corrected, and
weights are trained on by them where that gains; if nothing fits, or the source does as it is, the model is kept.
"""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass

import torch

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.source import collect
from dpswd.public_client.methods.sliced_method import SlicedMethod
from dpswd.public_client.methods.sliced_run import ComparedStep, sliced_run
from dpswd.public_client.plans.measured import modality_of
from dpswd.public_client.plans.recipe import not_counts
from dpswd.public_client.replay import fit
from dpswd.public_client.replay.cross_fitting import MOST_STEPS
from dpswd.public_client.replay.delivery import deliver
from dpswd.public_client.replay.posterior import VIEW_PASSES, VIEW_STEPS
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.tuning import record_passes
from dpswd.public_client.replay.verdict import UNCHANGED, Fitted
from dpswd.public_client.replay.weighted import most_updates
from dpswd.public_client.training.drawing import draw_all
from dpswd.public_client.training.loop import Training, status, write_histories
from dpswd.public_client.training.sites import Group, Model, Site
from dpswd.shared.core.mechanisms.sliced import SlicedReply

_log = logging.getLogger(__name__)
_TUNED = {"images": "all weights", "sequences": "the classifier", "vectors": "the classifier"}


@dataclass(frozen=True, kw_only=True)
class Replay(SlicedMethod):
    """Replays one release of the full batch; no gradient leaves the curator.

    Attributes:
        tuning_steps: updates on public records after the fit; they cost time, no budget.
    """

    name = "replay"
    fits_view = True

    coefficients: int = 3
    tuning_steps: int = 1500

    def problems(self) -> list[str]:
        """See `Method`."""
        return super().problems() + not_counts(self, "tuning_steps")

    def record_passes(self, record_shape: tuple[int, ...] | None) -> int:
        """See `Method`: the fit of a view, and training by it; of features alone both are quick."""
        tuning = record_passes(self.tuning_steps)
        return VIEW_PASSES + tuning if modality_of(record_shape) == "images" else 0

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        """See `Recipe`."""
        tuned = _TUNED.get(modality_of(record_shape), "the weights")
        return f"{tuned}, on public records made to look like the target's (no gradient is released)"

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`."""
        if training.view is None:  # of a run that goes on; a new one's site was described when it was asked
            unknown = [site for site in group.live if site.contract is None]
            for name, contract in group.each(lambda site: site.curator.describe().contract, unknown).items():
                next(site for site in unknown if site.name == name).contract = contract
        self.open_runs(group, training.model.extractor, training)

    def fit(self, group: Group, training: Training) -> None:
        """See `Method`: the private steps come first, all training after them is post-processing."""
        extractor = copy.deepcopy(training.model.extractor).requires_grad_(False)
        runs = {site.name: sliced_run(site) for site in group.live}
        for site in group.live:
            training.record(site, 0, math.nan)

        def drawn(site: Site) -> list[SlicedReply]:
            with reporting(f"private releases of {site.name}", site.plan.steps, shown=training.progress) as bar:
                return draw_all(runs[site.name], site.store, bar)

        releases = group.each(drawn)
        shares = group.shares(group.live)
        source = collect(training.source, most=fit.MOST_RECORDS // training.ranks.size).to(training.device)
        source = Labelled(training.ranks.gather(source.images), training.ranks.gather(source.labels))
        generator = torch.Generator().manual_seed(training.seed)
        fits: dict[str, Fitted] = {}
        for site in group.live:
            run, own = runs[site.name], releases[site.name]
            assert run.feature_map is not None, "declared by `open_runs`"
            residuals = Residuals(
                own,
                like=training.features,
                feature_map=run.feature_map,
                batch=run.plan.batch_size,
                sigma=run.sliced.sigma,
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
            run.first = ComparedStep(training.features, own[0], run.feature_map)
            with torch.no_grad():
                seen = fitted.view(extractor, source.images[: len(training.features)])
            run.last = ComparedStep(seen, own[-1], run.feature_map)
        updates = self.tuning_steps * any(fitted.convinced for fitted in fits.values())
        title = f"{'tuning on the view' if updates else 'trying other priors'} of {group}"
        updates += MOST_STEPS * any(fitted.outcome not in UNCHANGED for fitted in fits.values())
        updates += most_updates(sum(fitted.class_draws is not None for fitted in fits.values()))
        with reporting(title, updates, shown=training.progress and updates > 0) as bar:
            delivered = deliver(  # not the frozen copy: which parameters were trained is asked there
                training.model.extractor, training.model.classifier, fits, shares, source,
                steps=self.tuning_steps, seed=training.seed, generator=generator, bar=bar, ranks=training.ranks,
            )  # fmt: skip
            for site in group.live:
                given = delivered[site.name]
                # All ranks computed the same, but for their processors.
                training.ranks.synchronise(given.extractor, given.classifier)
                site.model = Model(given.extractor, given.classifier)
                site.outcome, site.plain, site.finding = given.outcome, given.plain, given.reason
                tell = _log.warning if given.outcome in UNCHANGED else _log.info
                tell("%s: %s; %s", site.name, given.outcome, given.reason)
                site.steps = site.plan.steps
                training.record(site, site.steps, fits[site.name].left)
            bar.tell(status(group))
        write_histories(group)
