"""What a client's evaluations say of a model over the years: read off what was released, hence free.

Replies are read by their wire format alone: the console, which shows this, loads no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from dpswd.private_curator.core.ledger.statements import Run
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.watching import Change, Round


def watched(runs: Iterable[Run], reply_of: Callable[[str], bytes | None]) -> dict[str, dict[str, Change]]:
    """By client and model the last evaluation beside the first, where there are two.

    Evaluations of several models at once, and of records of which some have no label, are left out.

    Args:
        runs: every run, the oldest first.
        reply_of: what a run, by its id, released, as it left; None where it is gone. Asked of evaluations alone.
    """
    rounds: dict[tuple[str, str], list[Round]] = defaultdict(list)
    for run in runs:
        parameters = pb.RunParameters.FromString(run.parameters)
        if parameters.mechanism != "evaluation" or (reply := reply_of(run.run_id)) is None:
            continue
        declared, n = pb.EvaluationDeclaration.FromString(parameters.declaration), run.event.step.records
        if declared.models > 1 or declared.partly_labelled:
            continue
        released = pb.EvaluationReply.FromString(pb.StepRelease.FromString(reply).payload).correct
        correct = int.from_bytes(released.data, "little", signed=True) * released.step  # one number
        accuracy, noise = min(max(correct / n, 0.0), 1.0), declared.correct_sigma / n
        model, day = f"{parameters.graph_digest}{parameters.weights_digest}", run.receipt.entry.time[:10]
        rounds[run.client, model].append(Round(day, model, n, float(n), True, accuracy, noise, run.epsilon))
    said: dict[str, dict[str, Change]] = defaultdict(dict)
    for (client, model), own in rounds.items():
        if len(own) > 1 and (change := Change.between(own[0], own[-1])) is not None:
            said[client][model[-64:]] = change
    return said
