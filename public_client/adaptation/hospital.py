"""One hospital, as an ML team works with it: plans, runs, evaluations over a curator's connection.

Usage::

    with Hospital.connect("localhost:50051", credentials="credentials/") as hospital:
        plan = hospital.plan(epsilon=1.0)
        print(plan)
        model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan)

or, in a training loop of one's own, by a method whose steps have a loss (`AllWeights`, `Rows`)::

        with hospital.open(plan, extractor) as run:
            loss = class_loss + run.loss(extractor(images))
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.accuracy import features
from dpswd.public_client.data.checks import require_contract, require_features
from dpswd.public_client.generation import GenerationMethod, Generator, Replayed
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.methods.comparison import Comparison, compare
from dpswd.public_client.methods.evaluation import Evaluate, evaluate, quoted_for
from dpswd.public_client.methods.evaluation_report import Report
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.plans.declarable import quoted
from dpswd.public_client.plans.plan import Plan, make_plan
from dpswd.public_client.training.distributed import shared_curators
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.run import Release, RequestIds
from dpswd.shared.core.errors import InvalidValue


class Hospital(AbstractContextManager["Hospital"]):
    """A hospital's data set behind its curator. Use as a context manager.

    Args:
        curator: the connection; `connect` makes one.
    """

    def __init__(self, curator: Curator) -> None:
        self.curator = curator

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        credentials: str | Path,
        timeout_s: float = 120.0,
        patience_s: float = 180.0,
        start_s: float | None = None,
        run_directory: str | Path | None = None,
        server_name: str | None = None,
        purpose: str = "",
    ) -> Hospital:
        """Connects with mutual TLS and proves the connection by one free request.

        In several processes (torchrun) rank 0 alone holds the connection, and all ranks are answered alike.

        Args:
            address: ``host:port``.
            credentials: directory with ca.crt, client.crt and client.key, as the operator handed them out.
            timeout_s: deadline of one attempt, in seconds.
            patience_s: how long a lost connection is tried again, in seconds.
            start_s: how long a curator that does not answer yet is waited for here, in seconds; by default 10, or
                `patience_s` if that is less.
            run_directory: where receipts.jsonl is written; nowhere by default.
            server_name: the name in the curator's certificate, where the address differs from it.
            purpose: why runs are opened, for the hospital's ledger: one line of at most 200 characters.

        Returns:
            The hospital; close it, or use it in a ``with`` statement.

        Raises:
            SettingsError, CredentialsInvalid, CuratorUnavailable, ProtocolError: see `Curator.connect`.
        """

        def connect() -> dict[str, Curator]:
            own = Curator.connect(
                address, credentials=credentials, timeout_s=timeout_s, patience_s=patience_s, start_s=start_s,
                run_directory=run_directory, server_name=server_name, purpose=purpose,
            )  # fmt: skip
            return {address: own}

        return cls(shared_curators(connect)[address])

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; runs stay as they are at the curator."""
        self.curator.close()

    def describe(self) -> Description:
        """Asks for the data set's public facts. Free, and always fresh.

        Returns:
            What is offered, and the budgets in epsilon; ``print`` shows it.

        Raises:
            CuratorUnavailable: nobody answers.
        """
        return self.curator.describe()

    def plan(
        self,
        method: Method | None = None,
        *,
        epsilon: float,
        steps: int | None = None,
        batch_size: int | None = None,
        extractor: nn.Module | None = None,
        classifier: nn.Module | None = None,
    ) -> Plan:
        """Plans a run; nothing is spent.

        Args:
            method: a value of `dpswd.public_client.methods` with its settings; `Replay()` by default.
            epsilon: what the run may cost.
            steps: T; the method's usual number by default.
            batch_size: b, records of each step's secret sample; the method's usual number by default.
            extractor: asks the curator itself what the run would cost for it and whether it fits; its weights do not
                matter, its sizes do. Without it the plan knows only what is left by the ledger's count.
            classifier: beside the extractor, for methods that train it with the hospital's records (`Finetune`).

        Returns:
            The plan; ``print`` shows releases, noise, cost in epsilon and whether it fits.

        Raises:
            InvalidValue: the curator does not offer the method, or a number is out of range.
        """
        chosen = Replay() if method is None else method
        if not isinstance(chosen, Method):
            raise InvalidValue(f"method is {method!r}; pass a value such as Replay() or AllWeights(), not its name")
        plan = make_plan(self.describe(), chosen, epsilon=epsilon, steps=steps, batch_size=batch_size)
        if extractor is None:
            return plan
        return quoted(self.curator, chosen.declarable(extractor, plan.record_shape, classifier), plan)[0]

    def open(self, plan: Plan, extractor: nn.Module, *, source: Tensor | None = None) -> Release[Any]:
        """Opens a run for a training loop of one's own: **this charges all its steps**.

        Args:
            plan: from `plan`.
            extractor: the module that the hospital's records go through, in evaluation mode; what the method adapts are
                its own parameters.
            source: (m, ...) public source records, by which what `DomainAdaptation.fit` refuses is refused here too:
                another scale than the hospital declares, and features that are the same for every record. Without
                them nothing of this can be known, and such a run is charged.

        Returns:
            The run; `draw` draws one step, and so does `loss(features)` where the method's steps have a loss.

        Raises:
            DataInvalid, InvalidValue: the source is refused; nothing was spent.
            BudgetExhausted: the plan does not fit; nothing was spent.
            ExtractorUnsupported: the module cannot travel as data; the message names the layer.
        """
        if not isinstance(plan.method, Method):
            raise InvalidValue(f"a plan of {plan.method.name} has no steps to train with; see `evaluate`")
        if source is not None:
            unlabelled = source.new_zeros(len(source), dtype=torch.int64)
            require_contract([(source, unlabelled)], self.describe().contract, None, tuple(source.shape[1:]))
            with torch.no_grad():
                require_features(features(extractor, source))
        return plan.method.open(self.curator, plan, extractor)

    def plan_generator(
        self, method: GenerationMethod | None = None, *, epsilon: float, extractor: nn.Module | None = None
    ) -> Plan:
        """What fitting a generator of labelled records would release and cost; nothing is spent.

        Args:
            method: a value of `dpswd.public_client.generation` with its settings; `Replayed()` by default.
            epsilon: what the whole run may cost.
            extractor: the team's own, in the place of the method's public features.

        Returns:
            The plan, with the curator's own answer whether it fits.

        Raises:
            InvalidValue: the curator does not offer the method, or it has no use for such records.
        """
        return plan_generator(self.curator, method or Replayed(), epsilon=epsilon, extractor=extractor)[0]

    def generate(
        self,
        plan: Plan,
        *,
        extractor: nn.Module | None = None,
        seed: int = 0,
        device: str = "auto",
        directory: str | Path | None = None,
        progress: bool = True,
    ) -> Generator:
        """Opens the plan's run, **which charges all of it**, and fits a generator to what is released.

        Args:
            plan: from `plan_generator`.
            extractor: as it was planned with.
            seed: of the client's random choices.
            device: "auto", "cpu" or "cuda".
            directory: keeps requests and answers; repeated with the same directory, the run is not charged again.
            progress: shows bars.

        Returns:
            The generator: `sample` draws rows, free; `save` writes it, `batches` is a source for `DomainAdaptation`.

        Raises:
            BudgetExhausted: the plan does not fit; nothing was spent.
        """
        return generate(
            self.curator, plan, extractor=extractor, seed=seed, device=device, directory=directory, progress=progress
        )

    def plan_evaluation(self, evaluation: Evaluate | None = None, *, epsilon: float, model: Any = None) -> Plan:
        """What an evaluation on all labelled records would release and cost; nothing is spent.

        Args:
            evaluation: what is released; accuracy, confusion matrix and ten bins of calibration by default.
            epsilon: what it may cost alone, at the data set's delta.
            model: asks the curator itself what it would cost for this model and whether it fits.

        Returns:
            The plan of one release, with its noise.

        Raises:
            InvalidValue: the curator evaluates nothing, or a number is out of range.
        """
        chosen = Evaluate() if evaluation is None else evaluation
        if not isinstance(chosen, Evaluate):
            raise InvalidValue(f"evaluation is {chosen!r}; pass a value such as Evaluate(bins=0)")
        plan = make_plan(self.describe(), chosen, epsilon=epsilon)
        plan = plan.for_model(feature_dimension=plan.classes, gradient_parameters=0)
        return plan if model is None else quoted_for(self.curator, model, plan)[0]

    def evaluate(
        self,
        model: Any,
        evaluation: Evaluate | Plan | None = None,
        *,
        epsilon: float | None = None,
        request_ids: RequestIds | None = None,
    ) -> Report:
        """Accuracy, confusion matrix and calibration of a model on the hospital's labelled records, noised and charged.

        Args:
            model: an adapted model, the path of its file, or an `nn.Module` from records to one score for each class.
            evaluation: what is released; see `plan_evaluation`, which also makes a plan of it for this model.
            epsilon: what it may cost alone, at the data set's delta; a plan has its own.
            request_ids: to be able to repeat the evaluation of a plan after a crash, free.

        Returns:
            The figures, shares from 0 to 1, with 95% intervals of what the noise may have done to them.

        Raises:
            BudgetExhausted: the budget does not allow it; nothing was spent.
            InvalidValue: the curator evaluates nothing, a number is out of range, or the model does not fit.
        """
        if isinstance(evaluation, Plan):
            plan = evaluation
        elif epsilon is None or request_ids is not None:
            raise InvalidValue(
                "an evaluation needs an epsilon; one that can be repeated with request_ids needs its plan, from "
                "plan_evaluation(epsilon=..., model=model), because its noise must be the same"
            )
        else:
            plan = self.plan_evaluation(evaluation, epsilon=epsilon, model=model)
        return evaluate(self.curator, model, plan, request_ids=request_ids)

    def compare(self, models: Mapping[str, nn.Module], *, epsilon: float) -> Comparison:
        """Which of several models is the best on the hospital's labelled records: **this charges one evaluation**.

        Args:
            models: 2 to 8, from records to one score for each class, by name; those named first win a draw.
            epsilon: what it may cost alone, at the data set's delta.

        Returns:
            Their noised accuracies and the winner.

        Raises:
            BudgetExhausted: the budget does not allow it; nothing was spent.
            InvalidValue: the curator evaluates nothing, a number is out of range, or a model does not fit.
        """
        return compare(self.curator, models, epsilon=epsilon)
