"""Domain adaptation against a curator, as a plain training loop.

Three ways, chosen by the plan's `parameters`:

- *adapters*: the source-trained extractor and classifier stay as they are. A copy of the extractor with a
  few adapter parameters is what private records go through; the sanitized gradient alone trains these.
- *none*: nothing comes back through the target branch. The stored releases are replayed (`replay`): a small model of
  how the target sees things is fitted to them, and all weights are fine-tuned on the source seen through it.
- *all*: the paper's Algorithm 2. One extractor serves both sides; every step adds the class loss, the distance's
  gradient through the source branch (autograd) and its sanitized gradient through the target branch.

Usage::

    model = DomainAdaptation(extractor, classifier, curator=hospital, plan=plan)
    model.fit(source_loader)
    model.save("adapted.safetensors")
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from public_client import evaluation, replay
from public_client.adapted import save_adapted
from public_client.adapters import with_adapters
from public_client.alignment import Alignment, AlignmentStep
from public_client.checkpoint import Checkpoint
from public_client.course import Average, HistoryPoint, detached, write_history
from public_client.curator import Curator
from public_client.devices import resolve_device
from public_client.planning import Plan
from public_client.progress import reporting
from public_client.source import Batches, collect, count_batches, train_source
from shared.errors import SettingsError
from shared.mechanisms.feature_map import FeatureMap

Evaluate = Callable[[nn.Module, nn.Module], float]
"""(extractor, classifier) to accuracy in percent; for rehearsals, where labels of the target are at hand."""

_SOURCE_UPDATES = 1500  # source-only training is long enough after about as many, whatever the data set's size
_MOST_EPOCHS = 40
_POINTS = 20  # evaluations and epsilon figures in one training


class DomainAdaptation:
    """Adapts a classifier to one curator's private records.

    Args:
        extractor: records to features, any module of the closed vocabulary.
        classifier: features to scores; never leaves the client.
        curator: the connection to the hospital.
        plan: from `Curator.plan`.
        device: "auto", "cpu" or "cuda".
        seed: of every random choice on the client's side.
        source_epochs: passes of source-only training before the alignment; by default about 1500 updates, and 0 for
            modules that are trained already.

    Attributes:
        extractor: the source side; in the way "all" also what private records go through.
        target_extractor: what private records go through, once `fit` has begun.
        history: points of the training.
    """

    def __init__(
        self,
        extractor: nn.Module,
        classifier: nn.Module,
        *,
        curator: Curator,
        plan: Plan,
        device: str = "auto",
        seed: int = 0,
        source_epochs: int | None = None,
    ) -> None:
        self.device = resolve_device(device)
        self.extractor = extractor.to(self.device)
        self.classifier = classifier.to(self.device)
        self.target_extractor = self.extractor
        self.curator = curator
        self.plan = plan
        self.seed = seed
        self.source_epochs = source_epochs
        self.history: list[HistoryPoint] = []

    def fit(
        self,
        source_loader: Batches,
        *,
        evaluate: Evaluate | None = None,
        checkpoint: str | Path | None = None,
        progress: bool = True,
    ) -> DomainAdaptation:
        """Trains on the source, opens the run (which charges all of it), and aligns.

        Args:
            source_loader: (images, labels) batches of the public source, such as a DataLoader.
            evaluate: called at a few points, for curves; private accuracy is not known outside rehearsals.
            checkpoint: a directory; a run that was begun there is continued, without spending a step twice.
            progress: shows progress bars on standard error.

        Raises:
            BudgetExhausted: the plan does not fit; nothing was spent.
        """
        torch.manual_seed(self.seed)
        store = Checkpoint(Path(checkpoint)) if checkpoint is not None else None
        start = store.read_start() if store is not None else None
        if start is None:
            self._train_source(source_loader, progress=progress)
        else:
            self._restore_modules(start)
        if self.plan.parameters == "none":
            self._fit_view(source_loader, store, evaluate, progress=progress)
        elif self.plan.parameters == "all":
            self._fit_both(source_loader, store, evaluate, progress=progress)
        else:
            self._fit_target(source_loader, store, evaluate, progress=progress)
        return self

    def predict(self, records: Tensor) -> Tensor:
        """Classes (n,) of target records (n, ...)."""
        scores = self.classifier(evaluation.features(self.target_extractor, records.to(self.device)))
        return torch.as_tensor(scores.argmax(dim=1))

    def save(self, path: str | Path) -> None:
        """Writes the adapted extractor and the classifier, graphs and weights, to one file (`adapted.load_adapted`)."""
        save_adapted(
            Path(path),
            extractor=self.target_extractor,
            classifier=self.classifier,
            record_shape=self.curator.describe().record_shape,
            plan=self.plan,
        )

    # The adapter way: the source side is fixed, so its features go up once.

    def _fit_target(
        self, source_loader: Batches, store: Checkpoint | None, evaluate: Evaluate | None, *, progress: bool
    ) -> None:
        features = self._first_features(source_loader, store)
        self._write_start(store, features=features)
        target = with_adapters(self.extractor, self.curator.describe().record_shape).to(self.device)
        alignment = Alignment(self.curator, target, self.plan, source_features=features, checkpoint=store)
        self.target_extractor = target  # only now: a refused run leaves the model as it was
        public = alignment.upload(features)

        def step(_: int) -> tuple[AlignmentStep, Tensor]:
            answer = alignment.step(public)
            return answer, answer.loss / answer.scale

        self._align(alignment, alignment.parameters, step, store, evaluate, progress=progress)

    # The replay: the private steps come first, all training after them is post-processing.

    def _fit_view(
        self, source_loader: Batches, store: Checkpoint | None, evaluate: Evaluate | None, *, progress: bool
    ) -> None:
        features = self._first_features(source_loader, store)
        self._write_start(store, features=features)
        alignment = Alignment(self.curator, self.extractor, self.plan, source_features=features, checkpoint=store)
        self.plan = alignment.plan
        self._record(0, math.nan, evaluate)
        with reporting("private releases", self.plan.steps, shown=progress) as bar:
            releases = replay.draw_all(alignment, store, bar)
        source = collect(source_loader, most=replay.MOST_RECORDS).to(self.device)
        generator = torch.Generator().manual_seed(self.seed)
        self.extractor.requires_grad_(False)
        with reporting("fitting the target's view", replay.VIEW_STEPS, shown=progress) as bar:
            view, left = replay.find_view(
                self.extractor,
                source.images,
                lambda features, number: alignment.distance(features, releases[number]),
                releases=len(releases),
                learning_rate=self.plan.learning_rate,
                generator=generator,
                bar=bar,
            )
        self.extractor.requires_grad_(True)
        with reporting("tuning on that view", self.plan.tuning_steps, shown=progress) as bar:
            self.target_extractor, self.classifier = replay.tune(
                self.extractor,
                self.classifier,
                view,
                source,
                steps=self.plan.tuning_steps,
                generator=generator,
                bar=bar,
            )
        self._record(self.plan.steps, left, evaluate)
        if store is not None:
            write_history(self.history, store.directory / "history.csv")

    # The paper's way: both sides share every weight, so the source features change with each step.

    def _fit_both(
        self, source_loader: Batches, store: Checkpoint | None, evaluate: Evaluate | None, *, progress: bool
    ) -> None:
        self.target_extractor = self.extractor.eval()
        features = self._first_features(source_loader, store)
        self._write_start(store, features=features)
        alignment = Alignment(self.curator, self.extractor, self.plan, source_features=features, checkpoint=store)
        batches = _endless(source_loader)

        def step(_: int) -> tuple[AlignmentStep, Tensor]:
            images, labels = next(batches)
            features = self.extractor(images.to(self.device))  # (m, d)
            class_loss = functional.cross_entropy(self.classifier(features), labels.to(self.device))
            # Public statistics follow the weights; the map is a constant of the step, as it is at the curator.
            feature_map = FeatureMap.from_source(features.detach(), target_norm=self.plan.target_norm)
            answer = alignment.step(features, feature_map=feature_map)
            return answer, class_loss + self.plan.alignment_weight * answer.loss

        trained = [*alignment.parameters, *self.classifier.parameters()]
        self._align(alignment, trained, step, store, evaluate, progress=progress)

    def _align(
        self,
        alignment: Alignment,
        parameters: Sequence[Tensor],
        step: Callable[[int], tuple[AlignmentStep, Tensor]],
        store: Checkpoint | None,
        evaluate: Evaluate | None,
        *,
        progress: bool,
    ) -> None:
        """The loop that both ways share: draw a step, descend, average, store, report."""
        plan = self.plan = alignment.plan
        optimizer = torch.optim.Adam(parameters, lr=plan.learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: _cosine(t, plan.steps))
        average = Average(parameters, plan.averaging)
        done = self._resume(store, parameters, optimizer, schedule, average)
        distances: list[float] = []
        with reporting("aligning with the target", plan.steps, shown=progress, done=done) as bar:
            if done == 0:
                self._record(0, math.nan, evaluate)
            for t in range(done + 1, plan.steps + 1):
                answer, loss = step(t)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                schedule.step()
                average.update(parameters)
                distances.append(answer.distance)
                if store is not None:
                    state = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
                    tensors = {"parameters": detached(parameters), "average": average.values}
                    store.write_state({"step": t, "request_id": answer.request_id, **state, **tensors})
                if t == plan.steps:
                    average.copy_to(parameters)
                if t % max(1, plan.steps // _POINTS) == 0 or t == plan.steps:
                    self._record(t, sum(distances) / len(distances), evaluate)
                    distances.clear()
                bar.advance(self._status())
        if store is not None:
            write_history(self.history, store.directory / "history.csv")

    def _first_features(self, source_loader: Batches, store: Checkpoint | None) -> Tensor:
        """Source features (m, d) under the source-trained extractor; a resumed run has its own."""
        start = store.read_start() if store is not None else None
        if start is not None:
            return torch.as_tensor(start["features"]).to(self.device)
        source = collect(source_loader, most=self.plan.source_records)
        return evaluation.features(self.extractor, source.images.to(self.device))

    def _train_source(self, source_loader: Batches, *, progress: bool) -> None:
        epochs = self.source_epochs
        if epochs is None:
            epochs = min(_MOST_EPOCHS, max(2, math.ceil(_SOURCE_UPDATES / count_batches(source_loader))))
        with reporting("training on the source", epochs, shown=progress and epochs > 0) as bar:
            train_source(
                self.extractor,
                self.classifier,
                source_loader,
                epochs=epochs,
                device=self.device,
                on_epoch=lambda _, loss: bar.advance(f"class loss {loss:.3f}"),
            )
        self.extractor.eval()
        self.classifier.eval()

    def _record(self, step: int, distance: float, evaluate: Evaluate | None) -> None:
        accuracy = evaluate(self.target_extractor, self.classifier) if evaluate is not None else math.nan
        self.history.append(HistoryPoint(step, distance, self.plan.epsilon_after(step), accuracy))

    def _status(self) -> str:
        last = self.history[-1] if self.history else None
        if last is None:
            return ""
        accuracy = "" if math.isnan(last.accuracy) else f"  accuracy {last.accuracy:.1f}%"
        return f"epsilon {last.epsilon:.3f} of {self.plan.epsilon:.3f}{accuracy}"

    def _write_start(self, store: Checkpoint | None, **tensors: Tensor) -> None:
        if store is not None and store.read_start() is None:
            modules = {"extractor": self.extractor.state_dict(), "classifier": self.classifier.state_dict()}
            store.write_start({**modules, **tensors, "plan": self.plan.to_json()})

    def _restore_modules(self, start: dict[str, Any]) -> None:
        stored = Plan.from_json(start["plan"])
        # What is left, and the delta of a budget that was extended meanwhile, are the ledger's, no wish of the plan.
        if replace(stored, remaining=self.plan.remaining, delta=self.plan.delta) != self.plan:
            raise SettingsError(
                "the checkpoint holds another plan; continue it with its own, or choose another directory"
            )
        self.extractor.load_state_dict(start["extractor"])
        self.classifier.load_state_dict(start["classifier"])
        self.extractor.eval()
        self.classifier.eval()

    def _resume(
        self,
        store: Checkpoint | None,
        parameters: Sequence[Tensor],
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        average: Average,
    ) -> int:
        state = store.read_state() if store is not None else None
        if state is None:
            return 0
        with torch.no_grad():
            for parameter, stored in zip(parameters, state["parameters"], strict=True):
                parameter.copy_(stored)
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        average.values = [value.to(self.device) for value in state["average"]]
        if state["step"] == self.plan.steps:
            average.copy_to(parameters)
        return int(state["step"])


def _cosine(step: int, steps: int) -> float:
    """From 1 down to 0.05: large moves first, then the noise is averaged out."""
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * min(step, steps) / steps))


def _endless(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Passes over the source again and again, each in the loader's own order."""
    return itertools.chain.from_iterable(itertools.repeat(batches))
