"""From a plan to a generator: prices, charges once, fits, and writes down where the generator comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import Quote
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.evidence.evidence import GENERATOR, Evidence, by_processes, one_thread, plan_text, recorded
from dpswd.public_client.generation.generator import Generator
from dpswd.public_client.generation.method import Fitting, GenerationMethod, Preview
from dpswd.public_client.plans.declarable import Declarable, quoted
from dpswd.public_client.plans.plan import Plan, make_plan
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.distributed import SharedTransport
from dpswd.public_client.training.run import Release
from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.devices import resolve_device

NOT_FOR = (
    "finding, checking or contacting single people: no row is anybody's record",
    "care of single patients, or any decision about one person, without a study of its own",
    "rare groups: a class or a pattern of few records is noise at this epsilon, and its absence here proves nothing",
    "figures about the hospital finer than the release: take them from the hospital, with an epsilon of their own",
)
"""What a generator must not be used for; in every data card."""


def plan_generator(
    curator: Curator,
    method: GenerationMethod,
    *,
    epsilon: float,
    steps: int | None = None,
    batch_size: int | None = None,
    extractor: nn.Module | None = None,
) -> tuple[Plan, Quote]:
    """See `Hospital.plan_generator`; with the curator's own answer, and T and b, by default the method's usual ones."""
    description = curator.describe()
    plan = make_plan(description, method, epsilon=epsilon, steps=steps, batch_size=batch_size)
    return quoted(curator, Declarable.of(_features(method, description, extractor), plan.record_shape), plan)


def generate(
    curator: Curator,
    plan: Plan,
    *,
    extractor: nn.Module | None = None,
    seed: int = 0,
    device: str = "auto",
    directory: str | Path | None = None,
    progress: bool = True,
    preview: Preview | None = None,
) -> Generator:
    """See `Hospital.generate`; states the generator's origin, and shows it to `preview` a few times during the fit.

    Raises:
        SettingsError: the directory holds another run.
        InvalidValue: the plan is of no method of generation.
    """
    method = plan.method
    if not isinstance(method, GenerationMethod):
        raise InvalidValue(f"a plan of {method.name} fits no generator; plan with a method of generation")
    ranks = Ranks.current()
    if ranks.size > 1 and not isinstance(curator.transport, SharedTransport):
        raise SettingsError("in several processes fit against a hospital of Hospital.connect, made after the group")
    store = None if directory is None else Checkpoint(Path(directory), ranks=ranks)
    folder = None if store is None else store.directory
    with one_thread(), recorded(curator, folder, begun=store is not None and store.begun) as recording:
        description = curator.describe()
        module = _features(method, description, extractor)
        _continued(store, plan, module, ranks)
        torch.manual_seed(seed)
        run = method.open(curator, plan, module, store)
        fitting = Fitting(seed, resolve_device(device), progress and ranks.first, store, preview, ranks)
        fitted = method.fit(run, module, fitting)
    facts = {**_facts(run, description, seed=seed, purpose=curator.purpose), **fitted.facts}
    if recording is not None and recording.whole:
        settings = {"kind": GENERATOR, "plan": plan_text(plan), "epsilon": plan.epsilon, "evaluate_epsilon": None}
        settings |= {"seed": seed, "device": fitting.device.type, "own": extractor is not None}
        settings |= {"purpose": curator.purpose, "apart": by_processes()}
        fitted = replace(
            fitted,
            evidence=lambda: Evidence.of([module], plan.record_shape, settings, "", recording.content()),
            credentials=curator.credentials,
        )
    return fitted.with_facts(facts).on(fitting.device)


def _continued(store: Checkpoint | None, plan: Plan, module: nn.Module, ranks: Ranks) -> None:
    """Gives the module the numbers that a run in the store was declared for: another machine's may differ.

    Raises:
        SettingsError: the store holds another run.
    """
    ranks.synchronise(module)
    if store is None:
        return
    if store.begun:
        begun, asked = store.read_run()["plan"], {"method": plan.method.to_json(), "epsilon": plan.epsilon}
        if {name: begun.get(name) for name in asked} != asked:
            raise SettingsError(
                f"{store.directory} holds a run with other options (epsilon {begun.get('epsilon')}, "
                f"{begun.get('method')}); repeat it with its own, or choose another directory"
            )
    if (stored := store.read("features")) is None:
        store.write("features", module.state_dict())
    else:
        module.load_state_dict(stored)


def _features(method: GenerationMethod, description: Description, extractor: nn.Module | None) -> nn.Module:
    wrong = method.disagreements(description)
    if wrong:
        raise InvalidValue(f"{'; '.join(wrong)}. Nothing was spent")
    if extractor is None:
        return method.features(description).eval()
    return method.wrapped(extractor.eval(), description).eval()


def _facts(run: Release[Any], description: Description, *, seed: int, purpose: str) -> Mapping[str, Any]:
    """Where a generator comes from, in plain values."""
    plan = run.plan
    return {
        **{name: getattr(description, name) for name in ("data_set", "records", "classes")},
        "record_shape": list(description.record_shape),
        "class_names": list(description.contract.class_names),
        "method": plan.method.to_json(),
        "releases": plan.method.mechanism.summary(run.declared, plan.facts),
        "steps": plan.steps,
        "guarantee": {
            "epsilon": run.run.quote.epsilon,
            "delta": plan.delta,
            "neighbours": description.neighbouring_relation,
            "accountant": f"dpswd {metadata.version('dpswd')}, exact curve or privacy loss distributions, pessimistic",
            "covers": "all that this run released; other runs on the same records add to it in the curator's ledger",
        },
        "receipts": {"run": run.run.run_id, "ledger_public_key": description.ledger_public_key},
        "seeds": {"fit": seed},
        "purpose": purpose,
        "not_for": list(NOT_FOR),
    }
