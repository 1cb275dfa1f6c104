"""An adapted model for other tools: a program of torch.export, ONNX, written only where it predicts the same; a card.

A model's graph is evaluated record by record under vmap, which writes the number of records into some shapes. So it is
traced with two numbers of records, and what differs is a multiple of that number.
"""

from __future__ import annotations

import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from dpswd.public_client.extractor.made_records import made_records
from dpswd.public_client.tools import card as cards
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.files import write_public
from dpswd.shared.models.adapted import AdaptedModel

RECORDS, SCORES = "records", "scores"
"""Names of an ONNX file's input and output."""
_TRACED = (3, 5)  # numbers of records; neither divides the other
_DRAWN = (1, 2, 61)  # records by which a program is checked
_SAME = 1e-4  # of the largest score: sums in another order


def export(
    path: Path, *, onnx: Path | None = None, program: Path | None = None, card: Path | None = None
) -> list[Path]:
    """Writes what is named, none of it over a file.

    Args:
        path: of the adapted model.
        onnx: ONNX, checked by onnxruntime.
        program: a program of torch.export.
        card: a Hugging Face model card.

    Returns what was written. Raises SettingsError where nothing is named or one exists, InvalidValue where a program
    computes something else.
    """
    files = [file for file in (onnx, program, card) if file is not None]
    if not files:
        raise SettingsError("name what to write: --onnx, --program or --card")
    for file in files:
        if file.exists():
            raise SettingsError(f"{file} exists and is not overwritten; choose another name")
    model = load_adapted(path, device="cpu")
    if onnx is not None or program is not None:
        made = program_of(model)
        data = None if onnx is None else onnx_bytes(model, made, cards.facts_of(path, model))
        if program is not None:
            write_public(program, program_bytes(made))
        if onnx is not None and data is not None:
            write_public(onnx, data)
    if card is not None:
        write_public(card, cards.card_of(path, model).encode())
    return files


def program_of(model: AdaptedModel) -> torch.export.ExportedProgram:
    """A program from (n, *record_shape) float32 to (n, classes) scores, for any n.

    Raises:
        InvalidValue: it cannot be made, or does not compute the same.
    """
    graph = _for_any_number(lambda records: _scores(model, records), model.record_shape)
    with quiet():
        program = torch.export.export(
            graph, (torch.zeros(_TRACED[0], *model.record_shape),), dynamic_shapes=({0: torch.export.Dim("n")},)
        )
    module: Any = program.module()
    _check(model, module, kind="the program of torch.export")
    return program


def program_bytes(program: torch.export.ExportedProgram) -> bytes:
    """The program as `torch.export.load` reads it."""
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


def onnx_bytes(model: AdaptedModel, program: torch.export.ExportedProgram, facts: dict[str, str]) -> bytes:
    """The program as ONNX, from `RECORDS` to `SCORES`.

    Args:
        model: whose scores it must compute.
        program: of the model.
        facts: for the file's metadata.

    Raises SettingsError without dpswd[onnx], InvalidValue where onnxruntime computes something else.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError as error:
        raise SettingsError(f"ONNX needs {error.name}; pip install 'dpswd[onnx]'") from error
    with quiet():
        exported: Any = torch.onnx.export(program, input_names=[RECORDS], output_names=[SCORES], verbose=False)
    proto = exported.model_proto
    onnx.helper.set_model_props(proto, facts)
    data: bytes = proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    _check(
        model,
        lambda records: torch.from_numpy(session.run([SCORES], {RECORDS: records.numpy()})[0]),
        kind="onnxruntime",
    )
    return data


def _scores(model: AdaptedModel, records: Tensor) -> Tensor:
    """In one chunk, so that its operations are the same for any number of records."""
    features = model.extractor.features(records, chunk_size=len(records))
    return model.classifier.features(features, chunk_size=len(records))


def _for_any_number(scores: Callable[[Tensor], Tensor], record_shape: tuple[int, ...]) -> fx.GraphModule:
    first, second = (make_fx(scores)(torch.zeros(count, *record_shape)) for count in _TRACED)
    nodes = list(zip(first.graph.nodes, second.graph.nodes, strict=True))
    with first.graph.inserting_after(nodes[0][0]):
        count = first.graph.call_function(torch.ops.aten.sym_size.int, (nodes[0][0], 0))

    def merged(a: Any, b: Any) -> Any:
        if isinstance(a, (list, tuple)):
            return type(a)([merged(*each) for each in zip(a, b, strict=True)])
        if isinstance(a, fx.Node) or a == b:
            return a
        if a * _TRACED[1] != b * _TRACED[0]:
            raise InvalidValue("a shape depends on the number of records in no plain way; export the module itself")
        times = a // _TRACED[0]
        with first.graph.inserting_after(count):
            return count if times == 1 else first.graph.call_function(operator.mul, (count, times))

    for a, b in nodes:
        if a.target != b.target and a.op == "call_function":
            raise InvalidValue("the model computes otherwise for other numbers of records; export the module itself")
        a.args, a.kwargs = (
            merged(a.args, b.args),
            {name: merged(value, b.kwargs[name]) for name, value in a.kwargs.items()},
        )
    for chunks in first.graph.find_nodes(op="call_function", target=torch.ops.aten.split.Tensor):
        if chunks.args[1] is count:  # one chunk, of all records
            for chunk in list(chunks.users):
                chunk.replace_all_uses_with(chunks.args[0])
    first.graph.eliminate_dead_code()
    first.recompile()
    return first


def _check(model: AdaptedModel, compute: Callable[[Tensor], Tensor], *, kind: str) -> None:
    """Compares scores on drawn records, whole numbers where the model looks words up.

    Raises:
        InvalidValue: they differ.
    """
    graph = model.composed()[0]
    for count in _DRAWN:
        records = made_records(graph, (count, *model.record_shape))
        with torch.no_grad():
            expected, computed = model.scores(records), compute(records)
        far = float((expected - computed).abs().max()) if expected.shape == computed.shape else float("inf")
        if not far <= _SAME * max(1.0, float(expected.abs().max())):
            raise InvalidValue(f"{kind} computes other scores, by {far:.3g}; nothing was written: please report it")


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch's exporter says of libraries that are not installed."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        log.setLevel(level)
