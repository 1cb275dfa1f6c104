"""One site of a federation whose rounds another framework runs: its curator's releases, descended on locally.

The node that the framework runs at a hospital holds no record. A round brings the global weights; the curator answers
with the noised sum of clipped gradients at them (docs/privacy/labelled-gradients.md), and the step is made here. So the
update is a function of the global weights and of what was released. All rounds are one planned run: its first one
charges the ledger, and after its last the site sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.published_methods.descent import PublicStep, detached
from dpswd.public_client.published_methods.finetune import Finetune, FinetuneRun
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.run import DrawnStep
from dpswd.shared.core.errors import InvalidValue

Weights = Mapping[str, npt.NDArray[Any]]
_UNUSED = PublicStep(torch.empty(0))  # labelled gradients need no public features


class CuratedSite(AbstractContextManager["CuratedSite"]):
    """A site's updates by its curator. Use as a context manager; frameworks that forget a node make it anew each round.

    Args:
        hospital: the site's; it is closed with the site.
        plan: of `Finetune`, whose clip_norm is the clip; it has a step for each round.
        model: from records to one score a class. What requires gradients is trained, the rest stays as it is here.
        directory: of this site and this federation: what makes a repeated round free, also after a crash.
        optimizer: of the trained parameters; its state outlives a round.

    Attributes:
        run: what is drawn from; None before this process's first round.

    Raises:
        InvalidValue: the plan is of another method, or nothing of the model is to be trained.
        ExtractorUnsupported: the model cannot travel as data; the message names the layer.
    """

    run: FinetuneRun | None

    def __init__(
        self, hospital: Hospital, plan: Plan, model: nn.Module, *, directory: str | Path,
        optimizer: Callable[[Sequence[Tensor]], torch.optim.Optimizer] = torch.optim.Adam,
    ) -> None:  # fmt: skip
        if not isinstance(plan.method, Finetune):
            raise InvalidValue(f"a round asks for labelled gradients; plan it with Finetune(), not {plan.method!r}")
        names = tuple(name for name, own in model.named_parameters() if own.requires_grad)
        if not names:
            raise InvalidValue("no parameter of the model requires gradients; leave those to train as they are made")
        self.hospital, self.model = hospital, model.eval()
        self.plan, self.directory, self.run = plan, Path(directory), None
        self._checkpoint = Checkpoint(self.directory)
        begun = self._checkpoint.read("model")
        if begun is None:
            self._checkpoint.write("model", {"weights": dict(model.state_dict())})
        else:  # the run was declared with these, to the last bit
            model.load_state_dict(begun["weights"])
        self._ready = Declarable.of(model, plan.record_shape, names)
        self._optimizer = optimizer(self._ready.parameters)

    def __exit__(self, *_: object) -> None:
        self.hospital.close()

    def update(self, weights: Weights) -> tuple[dict[str, npt.NDArray[Any]], dict[str, float]]:
        """One round: **the first charges the whole plan**, each uses up a step of it.

        Args:
            weights: global ones by their names in the model's `state_dict`, at least those that are trained.

        Returns:
            The same names with the trained weights moved, and public numbers: "records", "epsilon" of this plan,
            "epsilon_spent" of the data set's budget by all there, "step".

        Raises:
            BudgetExhausted: the ledger refuses the plan; nothing was spent.
            RunFinished: all steps of the plan are used.
            InvalidValue: weights are missing, of other shapes, or differ where nothing is trained.
        """
        self._load(weights)
        run = self._opened()
        start, state = np.asarray(run.adapted_values()), self._checkpoint.read("state") or {}
        if state and np.array_equal(state["start"].numpy(), start):  # this very round, again
            with torch.no_grad():
                for own, moved in zip(run.parameters, state["moved"], strict=True):
                    own.copy_(moved)
        else:
            request = run.request(_UNUSED)
            while (drawn := run.draw(request)).asked != request.to_bytes():  # of an interrupted round at other weights
                self._note(drawn, np.empty(0))
            self._optimizer.zero_grad()
            torch.autograd.backward(run.answered(_UNUSED, drawn).loss)
            self._optimizer.step()
            state = self._note(drawn, start)
        trained = zip(self._ready.names, detached(run.parameters), strict=True)
        numbers = {"records": run.plan.records, "epsilon": run.plan.epsilon, "step": state["step"]}
        return (
            {**weights, **{name: own.numpy() for name, own in trained}},
            {**numbers, "epsilon_spent": self.hospital.describe().spent},
        )

    def _opened(self) -> FinetuneRun:
        if self.run is None:
            run = FinetuneRun(self.hospital.curator, self._ready, self.plan, checkpoint=self._checkpoint).open()
            state = self._checkpoint.read("state")
            if state is not None:
                self._optimizer.load_state_dict(state["optimizer"])
            self.run = run
        return self.run

    def _note(self, drawn: DrawnStep[Any], start: Any) -> dict[str, Any]:
        """Where the round stands, before anything is told: which step is applied, and to which weights."""
        state = {
            "step": drawn.number,
            "request_ids": [drawn.request_id],
            "optimizer": self._optimizer.state_dict(),
            "start": torch.from_numpy(start),
            "moved": detached(self._ready.parameters),
        }
        self._checkpoint.write("state", state)
        return state

    def _load(self, weights: Weights) -> None:
        own = self.model.state_dict()
        wrong = [name for name, value in weights.items() if name not in own or tuple(own[name].shape) != value.shape]
        missing = [name for name in self._ready.names if name not in weights]
        if wrong or missing:
            raise InvalidValue(
                f"the round's weights lack {missing} or do not fit in {wrong}; send the state_dict of the site's model"
            )
        with torch.no_grad():
            for name, value in weights.items():
                if name in self._ready.names:
                    own[name].copy_(torch.from_numpy(np.array(value)))
                elif not np.array_equal(own[name].numpy(), value):
                    raise InvalidValue(f"{name} differs from the site's model and is not trained; start all from one")
