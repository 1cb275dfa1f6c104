"""What a team hands to a hospital that nobody can connect to: one whole release, prepared and priced beforehand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from dpswd.public_client.adaptation.published import with_weights
from dpswd.public_client.curator.description import Description
from dpswd.public_client.data.accuracy import features
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.data.source import collect
from dpswd.public_client.experiments.approaches import method_of
from dpswd.public_client.experiments.connect import descriptions
from dpswd.public_client.experiments.file import LADDER, Experiment
from dpswd.public_client.experiments.start import aligned, load_data, require_alike, train_source_model
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.plans.declarable import quoted
from dpswd.public_client.plans.plan import make_plan
from dpswd.public_client.testing.mock import MockCurator
from dpswd.public_client.training.method import Method
from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.devices import resolve_device
from dpswd.shared.protocol.publications import PROPOSAL, Proposal, Publication


def prepare(
    description: Description,
    method: Method,
    *,
    extractor: nn.Module,
    source_features: Tensor,
    epsilon: float,
    purpose: str,
) -> Proposal:
    """One step on all records of a described data set, complete and priced; asks nobody.

    Args:
        description: as the operator wrote it with `dpswd-curator describe`, or from `mock_description`.
        method: whose run is one whole release, such as `Replay` or `Statistics`.
        extractor: source-trained, in evaluation mode.
        source_features: (m, d) of public records; they make the public map.
        epsilon: what the release may cost.
        purpose: why, in one line, for the operator.

    Returns:
        The proposal, with the price of a fresh ledger of what is left; the hospital's own has the last word.

    Raises:
        InvalidValue: the method cannot be prepared for a publication, or the curator does not offer it.
        ExtractorUnsupported: the module cannot travel as data.
    """
    norm = method.published_map_norm
    if norm is None:
        raise InvalidValue(
            f"{method.name} cannot be prepared for a publication: {method.unpublished}; prepare with replay or "
            "statistics"
        )
    smallest = make_plan(description, method, epsilon=epsilon, steps=1, batch_size=description.records)
    ready = method.declarable(extractor, description.record_shape)
    curator = MockCurator(description)
    plan, quote = quoted(curator, ready, smallest)
    feature_map = map_from_source(source_features, target_norm=norm)
    assert plan.noise is not None, "quoted with its noise"
    return Proposal(
        graph=ready.graph.to_bytes(),
        weights=ready.weights,
        parameters=plan.parameters(ready.uploaded(curator), feature_map=feature_map),
        payload=method.mechanism.request().to_bytes(),
        purpose=purpose,
        epsilon=quote.epsilon,
        delta=plan.delta,
        noise=plan.noise,
    )


def prepared(experiment: Experiment, *, purpose: str, extractor: Path | None = None, progress: bool = True) -> Proposal:
    """The proposal of an experiment: trains on its source as a training would, and asks nobody.

    Args:
        experiment: a dry run, with a description of the hospital or its number of records.
        purpose: see `prepare`.
        extractor: a proposal or a release whose extractor is taken, instead of training one.
        progress: shows a bar.

    Raises:
        SettingsError: the experiment describes no hospital, or more than one.
        DataInvalid: the file of the extractor is none.
        InvalidValue: see `prepare`.
    """
    name = Replay.name if experiment.method.name == LADDER else experiment.method.name  # the ladder reads its file
    method = method_of(name, experiment.method.settings)
    task = load_data(experiment)
    described = descriptions(experiment, task)
    if len(described) != 1:
        raise SettingsError("a proposal is for one hospital; prepare the next one's with --extractor and this file")
    task = aligned(experiment, task, described)
    require_alike(experiment, task, described)
    loaded = None if extractor is None else _loader(extractor)
    source = train_source_model(experiment, task, seed=experiment.seeds[0], prepared=loaded, progress=progress)
    shown = collect(source.loader, most=method.source_records).images.to(resolve_device(experiment.device))
    return prepare(
        next(iter(described.values())),
        method,
        extractor=source.extractor.eval(),
        source_features=features(source.extractor, shown),
        epsilon=experiment.privacy.epsilon,
        purpose=purpose,
    )


def _loader(path: Path) -> Callable[[nn.Module], None]:
    """Gives a module the extractor's weights of a proposal's or a publication's file."""
    begins = path.open("rb").read(len(PROPOSAL)) if path.is_file() else b""
    held = Proposal.read(path) if begins == PROPOSAL else Publication.read(path).proposal
    return lambda module: with_weights(module, held, path=path)
