"""Domain adaptation against one hospital or several, as an estimator; `dpswd.public_client.methods` holds what trains.

Usage::

    model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan)
    model.fit(source_loader)
    model.save("adapted.safetensors")

With a `Federation` in the hospital's place, each site gets a model of its own, trained in parallel with the others, or,
with ``shared=True``, all sites train one, or models that learn from each other (`Statistics.own_shares`). A site that
fails is set aside and reported (`reports`); `fit` raises only when none is left.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dpswd.public_client.adaptation.federation import Federation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.curator.recording import MOST_BYTES, Recording
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data import accuracy as evaluation
from dpswd.public_client.data import checks
from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.data.source import collect, train_source, usual_epochs
from dpswd.public_client.evidence.certificate import certified
from dpswd.public_client.evidence.evidence import (
    METHOD,
    Evidence,
    begin_again,
    by_processes,
    digest_of,
    one_thread,
    plan_text,
    recorded,
)
from dpswd.public_client.extractor.adapter_layers import FeatureAffine
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.replay.views import View
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.distributed import SharedTransport
from dpswd.public_client.training.logs import Recorder
from dpswd.public_client.training.loop import Evaluate, Training
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.saved_model import save_adapted
from dpswd.public_client.training.sites import ALONE, Group, HistoryPoint, Model, Site, ask_first, train_groups
from dpswd.shared.core.errors import DataInvalid, InvalidValue, SettingsError
from dpswd.shared.devices import resolve_device
from dpswd.shared.models.source_statistics import SourceStatistics
from dpswd.shared.protocol.contract import DataContract

_log = logging.getLogger(__name__)
_SUMMED_UP = 2048  # source records in the saved model's statistics


class DomainAdaptation:
    """Adapts a classifier to private records of one hospital, or of several.

    Args:
        extractor: records to features, any module of the closed vocabulary.
        classifier: features to scores; never leaves the client.
        hospital: the connection, or a `Federation` of several.
        plan: from `Hospital.plan`; by name, from `Federation.plan`.
        shared: whether several sites train together: one model (one network on all sites' views), or models that learn
            from each other where the method has such (`Statistics.own_shares`). Methods that train all weights always
            do.
        view: what the replay fits, in the place of the ready view for the kind of record: the
            identity of a `tables.TableView` for tables with gaps.
        contract: what the team declares of its source (range, names of columns and classes, units), compared with
            each hospital's before anything is charged; by default the source's values are compared alone.
        device: "auto", "cpu" or "cuda".
        seed: of every random choice on the client's side.
        source_epochs: passes of source-only training before the alignment; by default about 900 updates, and 0 for
            modules that are trained already.

    Attributes:
        extractor: the source side; where all weights are trained also what private records go through.
        sites: by name; each has its model, its history and, where it was set aside, the reason.

    Raises:
        SettingsError: plans and curators do not belong together, or the plans' method has no use for the view.
    """

    def __init__(
        self,
        extractor: nn.Module,
        classifier: nn.Module,
        *,
        hospital: Hospital | Federation,
        plan: Plan | Mapping[str, Plan],
        shared: bool = False,
        view: View | None = None,
        contract: DataContract | None = None,
        device: str = "auto",
        seed: int = 0,
        source_epochs: int | None = None,
    ) -> None:
        self.device = resolve_device(device)
        self.extractor = extractor.to(self.device)
        self.classifier = classifier.to(self.device)
        self.view = view
        self.contract = contract
        self.seed = seed
        self.source_epochs = source_epochs
        self._curators, self._plans, self._weights = _by_name(hospital, plan)
        self._federation = hospital if isinstance(hospital, Federation) else None
        self.method = _method(self._plans)
        if view is not None and not self.method.fits_view:
            raise SettingsError(
                f"a view is fitted to replayed releases, and the plan's method is {self.method.name}; plan with "
                "Replay(), or leave the view out"
            )
        self.shared = shared or self.method.trains_shared
        self.sites = self._fresh_sites(None)
        self._source: Batches | None = None
        self._given: object = None
        self._start: Model | None = None  # the team's model, where it is to be certified
        self._digest = ""
        self._recordings: dict[str, Recording] = {}
        self._went_on = False

    @property
    def plan(self) -> Plan:
        """The first site's plan, with its noise once the run is open."""
        return self._first.plan

    @property
    def history(self) -> list[HistoryPoint]:
        """Where the first site stood after some of its steps."""
        return self._first.history

    @property
    def reports(self) -> list[dict[str, Any]]:
        """For each site: what was charged, how far it came, and why no further."""
        return [site.report() for site in self.sites.values()]

    def fit(
        self,
        source_loader: Batches,
        *,
        evaluate: Evaluate | Mapping[str, Evaluate] | None = None,
        checkpoint: str | Path | None = None,
        log: Recorder | None = None,
        progress: bool = True,
    ) -> DomainAdaptation:
        """Trains on the source, opens the runs (which charges all of each), and aligns.

        Args:
            source_loader: (images, labels) batches of the public source, such as a DataLoader; for a method with
                `own_target` of the team's own records, whose labels may be -1.
            evaluate: called at a few points, for curves; private accuracy is not known outside rehearsals. By site's
                name where there are several.
            checkpoint: a directory; a training that was begun there is continued, without spending a step twice, and
                sites that were set aside get another chance.
            log: told of every step (`logs.TrainingLog`).
            progress: shows progress bars on standard error.

        Returns:
            This estimator, trained.

        Raises:
            BudgetExhausted: no site admits its plan; nothing was spent.
            DataInvalid: the source is not what it should be, or not of the hospital's shape; nothing was spent.
            InvalidValue: the view cannot see such records; nothing was spent.
            ProtocolError: no site is left.
        """
        folder = None if checkpoint is None else Path(checkpoint)
        self._went_on = begun = folder is not None and (folder / "start.pt").exists()
        self._several = by_processes()
        sent_by = [getattr(curator.transport, "transport", curator.transport) for curator in self._curators.values()]
        if Ranks.current().size > 1 and not all(isinstance(each, SharedTransport) for each in sent_by):
            raise SettingsError("in several processes connect by Hospital.connect or Federation.connect, in the group")
        with contextlib.ExitStack() as stack:
            stack.enter_context(one_thread())
            recordings = {
                name: stack.enter_context(recorded(curator, folder and folder_of(folder, name), begun=begun))
                for name, curator in self._curators.items()
            }
            self._recordings = {name: own for name, own in recordings.items() if own is not None}
            self._fit(source_loader, evaluate=evaluate, checkpoint=folder, log=log, progress=progress)
        return self

    def _fit(
        self,
        source_loader: Batches,
        *,
        evaluate: Evaluate | Mapping[str, Evaluate] | None,
        checkpoint: Path | None,
        log: Recorder | None,
        progress: bool,
    ) -> None:
        torch.manual_seed(self.seed)
        batches = self._source = checks.checked(
            source_loader, self.extractor, self.classifier, device=self.device, unlabelled=self.method.own_target
        )
        ranks = Ranks.current()
        progress = progress and ranks.first
        ranks.synchronise(self.extractor, self.classifier)
        store = None if checkpoint is None else Checkpoint(checkpoint, ranks=ranks)
        before = {name: site.model for name, site in self.sites.items()}
        self.sites = self._fresh_sites(store)
        for name, model in before.items():
            self.sites[name].model = model  # what an earlier fit reached stays until a new run is open
        groups = self._groups(store)
        several = self._federation
        ask_first(
            list(self.sites.values()),
            lambda shape: self._declarable(batches, shape),
            lambda description: self._compare(batches, description.contract),
            straggler_s=None if several is None else several.straggler_s,
            all_or_none=several is not None and several.absent == "refuse",
        )
        groups = [group for group in groups if group.live]
        start = store.read("start") if store is not None else None
        if start is None:
            self._train_source(batches, progress=progress)
            begin_again(source_loader, self.seed)  # so that whoever has the trained weights sees the same passes
            source = collect(batches, most=max(1, self.method.source_records // ranks.size))
            features = ranks.gather(evaluation.features(self.extractor, source.images.to(self.device)))
            self._write_start(store, features)
        else:
            self._restore(start)
            features = torch.as_tensor(start["features"]).to(self.device)
        checks.require_features(features)
        if self.view is not None:  # before anything is charged for it
            self.view.check(collect(batches, most=max(1, self.method.source_records)).images, features)
        if self._recordings:
            self._given, self._start = source_loader, copy.deepcopy(Model(self.extractor, self.classifier))
            self._digest = digest_of(source_loader, seed=self.seed)
        begin_again(source_loader, self.seed)
        if evaluate is not None and not isinstance(evaluate, Mapping):
            evaluate = dict.fromkeys(self.sites, evaluate)
        training = Training(
            model=Model(self.extractor, self.classifier), source=batches, features=features, device=self.device,
            seed=self.seed, progress=progress, evaluate=evaluate or {}, view=self.view,
            log=log if log is not None and ranks.first else Recorder(),
        )  # fmt: skip
        method = self.method
        train_groups(groups, lambda group: method.begin(group, training), lambda group: method.fit(group, training))

    def model(self, site: str | None = None) -> Model:
        """What a site's records go through; the source-trained modules where nothing was trained for it.

        Args:
            site: its name; by default the first that was trained.

        Returns:
            Extractor and classifier, in evaluation mode.

        Raises:
            InvalidValue: there is no such site.
        """
        return self._named(site).model or Model(self.extractor, self.classifier)

    def predict(self, records: Tensor, *, site: str | None = None) -> Tensor:
        """Predicts the classes of target records.

        Args:
            records: (n, ...) float32.
            site: whose model; see `model`.

        Returns:
            (n,) class numbers, int64.

        Raises:
            DataInvalid: the records are of another shape than the hospital's.
            InvalidValue: there is no such site.
        """
        return self._scores(records, site).argmax(dim=1)

    def predict_proba(self, records: Tensor, *, site: str | None = None) -> Tensor:
        """The softmax of the scores of target records.

        Args:
            records: (n, ...) float32.
            site: whose model; see `model`.

        Returns:
            (n, C) probabilities of the classes.
        """
        return torch.softmax(self._scores(records, site), dim=1)

    def score(self, records: Tensor, labels: Tensor, *, site: str | None = None) -> float:
        """Accuracy on labelled target records; computed here, so it costs nothing.

        Args:
            records: (n, ...) float32.
            labels: (n,) class numbers.
            site: whose model; see `model`.

        Returns:
            The share of records whose class is their label, from 0 to 1.
        """
        predicted = self.predict(records, site=site).cpu()
        if labels.shape != predicted.shape:
            raise DataInvalid(f"labels have shape {tuple(labels.shape)}; needed is ({len(predicted)},)")
        return float((predicted == labels.cpu()).double().mean())

    def _scores(self, records: Tensor, site: str | None) -> Tensor:
        model = self.model(site)
        checks.require_records(records, self._named(site).plan.record_shape)
        with torch.no_grad():
            scores: Tensor = model.classifier(evaluation.features(model.extractor, records.to(self.device)))
        return scores

    def save(
        self, path: str | Path, *, site: str | None = None, summed_up: bool = True, certify: bool = True
    ) -> list[Path]:
        """Writes adapted extractor and classifier, graphs and weights, to one file for each model (`load_adapted`).

        Args:
            path: of the file; for several sites with models of their own, ``NAME-SITE`` with the same ending.
            site: writes this one's model alone, to `path` itself.
            summed_up: puts statistics of the source into it, for the hospital's drift report.
            certify: puts the certificate into it, and evidence beside it (`check`).

        Returns:
            The files.
        """
        whole = Path(path)
        trained = [s for s in self.sites.values() if s.model is not None]
        models = [one.model for one in trained if one.model is not None]
        together = self.shared and len({(id(model.extractor), id(model.classifier)) for model in models}) <= 1
        if site is not None or together or len(self.sites) == 1:
            named = {whole: self._named(site)}
        else:  # also of sites that share a training, where a replay came to different ends at them
            named = {whole.with_stem(f"{whole.stem}-{s.name}"): s for s in trained}
        for file, one in named.items():
            model = one.model or Model(self.extractor, self.classifier)
            save_adapted(
                file,
                extractor=model.extractor,
                classifier=model.classifier,
                record_shape=one.plan.record_shape,
                plan=one.plan,
                statistics=self._statistics(model) if summed_up else None,
                certify=certified(file, self._evidence(one), self._curators[one.name].credentials)
                if certify and self._recorded(one)
                else None,
            )
        return list(named)

    def _recorded(self, site: Site) -> bool:
        recording = self._recordings.get(site.name)
        if recording is not None and not recording.whole:
            _log.warning("no certificate: more than %d MiB of replies would stand beside it", MOST_BYTES >> 20)
        return recording is not None and recording.whole

    def _evidence(self, site: Site) -> Evidence:
        """What a site's model follows from."""
        assert self._start is not None, "kept where a recording was made"
        start, plan = (self._start.extractor, self._start.classifier), self._plans[site.name]
        settings: dict[str, Any] = {"kind": METHOD, "plan": plan_text(plan), "epsilon": plan.epsilon, "seed": self.seed}
        settings |= {"evaluate_epsilon": None, "batch_size": getattr(self._given, "batch_size", None)}
        settings |= {"device": self.device.type, "apart": self._apart()}
        settings["contract"] = None if self.contract is None else self.contract.to_bytes().hex()
        return Evidence.of(start, plan.record_shape, settings, self._digest, self._recordings[site.name].content())

    def _apart(self) -> str | None:
        """Why the models cannot be derived again from evidence and source, where they cannot."""
        if self.shared and len(self.sites) > 1:
            return "no: several hospitals trained it together"
        if self.view is not None:
            return "no: with a view of the team's own, which no file holds"
        if self._went_on and isinstance(self._given, DataLoader) and self.plan.steps > 1:
            return "no: it was interrupted, and a loader that shuffles does not go on where it was"
        return self._several

    def _statistics(self, model: Model) -> SourceStatistics | None:
        """Of the public source as the saved model's classifier should see it, for the hospital's drift report."""
        if self._source is None:
            return None
        source = collect(self._source, most=_SUMMED_UP)
        # What puts columns back stands before the target's records alone: the source goes through what it was.
        first = next(model.extractor.children(), None) if self.method.puts_back else None
        extractor = self.extractor if isinstance(first, FeatureAffine | nn.BatchNorm1d) else model.extractor
        features = evaluation.features(extractor, source.images.to(self.device))
        with torch.no_grad():
            return SourceStatistics.of(source.images, features, model.classifier(features))

    @property
    def _first(self) -> Site:
        """The first site that was trained, or simply the first."""
        trained = [site for site in self.sites.values() if site.lost is None]
        return (trained or list(self.sites.values()))[0]

    def _named(self, site: str | None) -> Site:
        if site is None:
            return self._first
        if site not in self.sites:
            raise InvalidValue(f"there is no site {site!r}; the sites are {', '.join(self.sites)}")
        return self.sites[site]

    def _fresh_sites(self, store: Checkpoint | None) -> dict[str, Site]:
        alone = len(self._plans) == 1 and ALONE in self._plans
        return {
            name: Site(
                name, self._curators[name], plan, self._weights[name],
                store if store is None or alone else store.site(name),
            )
            for name, plan in self._plans.items()
        }  # fmt: skip

    def _groups(self, store: Checkpoint | None) -> list[Group]:
        sites = list(self.sites.values())
        if not self.shared:
            return [Group([site], site.store) for site in sites]
        return [Group(sites, store, straggler_s=None if self._federation is None else self._federation.straggler_s)]

    def _declarable(self, batches: checks.CheckedBatches, record_shape: tuple[int, ...]) -> Declarable:
        batches.require_shape(record_shape)
        extractor = copy.deepcopy(self.extractor).eval()
        return self.method.declarable(extractor, record_shape, copy.deepcopy(self.classifier))

    def _compare(self, batches: checks.CheckedBatches, contract: DataContract) -> None:
        """Holds the source to what a hospital declares, and says what could not be held to it."""
        checks.require_contract(batches, contract, self.contract, batches.record_shape)
        for text in contract.uncompared(self.contract) if Ranks.current().first else ():
            _log.warning("%s", text)

    def _train_source(self, batches: checks.CheckedBatches, *, progress: bool) -> None:
        epochs = usual_epochs(len(batches)) if self.source_epochs is None else self.source_epochs
        epochs = 0 if self.method.own_target else epochs
        if epochs == 0:
            batches.check_all()  # what training would find, before anything is charged
        ranks, modules = Ranks.current(), (self.extractor, self.classifier)
        train_source(*modules, batches, epochs=epochs, device=self.device, progress=progress, ranks=ranks)
        self.extractor.eval()
        self.classifier.eval()

    def _write_start(self, store: Checkpoint | None, features: Tensor) -> None:
        if store is not None:
            modules = {"extractor": self.extractor.state_dict(), "classifier": self.classifier.state_dict()}
            plans = {name: plan.to_json() for name, plan in self._plans.items()}
            store.write("start", {**modules, "features": features, "plans": plans, "shared": self.shared})

    def _restore(self, start: dict[str, Any]) -> None:
        # What is left, and the delta of a budget that was extended meanwhile, are the ledger's, no wish of the plan.
        same = all(_wish(start["plans"].get(name, {})) == _wish(plan.to_json()) for name, plan in self._plans.items())
        if not same or start["shared"] != self.shared:
            raise SettingsError(
                "the checkpoint holds another plan; continue it with its own, or choose another directory"
            )
        self.extractor.load_state_dict(start["extractor"])
        self.classifier.load_state_dict(start["classifier"])
        self.extractor.eval()
        self.classifier.eval()


def folder_of(directory: Path, site: str) -> Path:
    """Where a site's own files stand in a training's directory."""
    return directory if site == ALONE else directory / "sites" / site


def _by_name(
    hospital: Hospital | Federation, plan: Plan | Mapping[str, Plan]
) -> tuple[dict[str, Curator], dict[str, Plan], dict[str, float]]:
    """Curators, plans and weights of all sites; one hospital is the site `ALONE`."""
    if isinstance(hospital, Federation):
        plans = dict(plan) if isinstance(plan, Mapping) else dict.fromkeys(hospital, plan)
        hospital.check_planned(plans)
        return {name: hospital.hospitals[name].curator for name in plans}, plans, hospital.weights
    if isinstance(plan, Mapping):
        raise SettingsError("plans for several sites need a Federation of their hospitals")
    return {ALONE: hospital.curator}, {ALONE: plan}, {ALONE: 1.0}


def _method(plans: Mapping[str, Plan]) -> Method:
    """The one method of all plans."""
    methods = {plan.method for plan in plans.values()}
    if len(methods) > 1:
        raise SettingsError(f"the sites' plans differ in their method ({', '.join(map(str, methods))}); plan alike")
    (method,) = methods
    if not isinstance(method, Method):
        raise SettingsError(
            f"a plan of {method.name} trains nothing; plan with a method of dpswd.public_client.methods"
        )
    return method


def _wish(plan: dict[str, Any]) -> dict[str, Any]:
    """What a plan's JSON says of the team's own choices."""
    return {name: plan.get(name) for name in ("method", "epsilon", "steps", "batch_size", "records")}
