"""The worker's side of an embedding: one ONNX model, from its bytes to its features.

Messages and their answers, beside those of `loop`::

    describe  the model in a file    -> what it says of itself; onnxruntime has not seen it
    open      the same model's use   -> d, the numbers of one feature
    embed     records in the arena   -> features in the arena

A record meets the model alone, so that its feature depends on no other record, whatever the model does with a batch.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, parser

from dpswd.private_curator.onnx import format as onnx_format
from dpswd.private_curator.sandbox.arena import Arena, FloatArray, Slot, contents
from dpswd.private_curator.sandbox.loop import Message, Operation, Refused
from dpswd.shared.core.errors import InvalidValue

_COMPARED = 16  # records that are evaluated together once, and compared with each alone
_TOLERANCE = 1e-3  # of a record's largest feature: a batch's products are summed in another order
_NUMBER_TYPES: dict[int, type[np.generic]] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.INT32: np.int32,
    TensorProto.INT64: np.int64,
}


class Embedding:
    """One model, from its bytes to its features."""

    def __init__(self) -> None:
        self._data = b""
        self._model: onnx_format.OnnxModel | None = None
        self._session: Any = None
        self._feature = ""
        self._arena: Arena | None = None
        self._compared = False

    def describe(self, _message: Message, files: list[int]) -> Message:
        """Keeps the bytes and tells what they say."""
        self._data = contents(files)
        try:
            self._model = onnx_format.read_model(self._data)
        except InvalidValue as error:
            raise _refused(str(error)) from error
        return self._model.summarise()

    def open(self, message: Message, _files: list[int]) -> Message:
        """Loads the model and evaluates one record of zeros, for the feature's size."""
        assert self._model is not None
        shape = tuple(message["record_shape"])
        self._feature = _feature(self._model, message["feature"])
        self._compared = not _takes_batches(self._model, shape)
        self._session = _session(self._data, threads=message["threads"])
        self._data = b""
        # An error's words are of the model and a record of zeros: nothing in them is private.
        cannot = "it cannot be evaluated on one record: {}"
        value = self._evaluated(np.zeros((1, *shape), dtype=np.float32), cannot=cannot)
        if value.ndim < 1 or value.shape[0] != 1 or value.dtype.kind != "f":
            raise _refused(
                f"its output {onnx_format.printable(self._feature)} has shape {value.shape} and type {value.dtype} for "
                "one record; needed are floating-point numbers of shape (n, ...)"
            )
        return {"features": prod(value.shape[1:])}

    def embed(self, message: Message, files: list[int]) -> Message:
        """Writes each record's feature to the arena."""
        if files:
            if self._arena is not None:
                self._arena.close()
            self._arena = Arena.attach(files[0])
        assert self._arena is not None
        records = self._arena.array(Slot(*message["records"]))
        features = self._arena.array(Slot(*message["features"]))
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, which the other side refuses
            for place in range(len(records)):
                features[place] = self._evaluated(records[place : place + 1]).reshape(-1)
        if not self._compared and len(records) > 1:
            self._compare(records[:_COMPARED], features[:_COMPARED])
        return {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}

    def _compare(self, records: FloatArray, alone: FloatArray) -> None:
        self._compared = True
        # Each of them was evaluated alone; an error's words may quote a record.
        cannot = "it declares a batch of open size and cannot be evaluated on one; export it with a batch of one"
        together = self._evaluated(records, cannot=cannot)
        agree = together.shape[:1] == alone.shape[:1] and together.size == alone.size
        if agree:
            with np.errstate(invalid="ignore"):
                allowed = _TOLERANCE * np.abs(alone).max(axis=1, keepdims=True)
                agree = bool((np.abs(together.reshape(alone.shape) - alone) <= allowed).all())
        if not agree and np.isfinite(alone).all():
            raise _refused(
                "a record's feature in a batch is another than alone: the model mixes the records of a batch, or is "
                "random. A feature must follow from one record, or what is promised for a record would not hold for "
                "it, and the same model elsewhere would give others: export it in evaluation mode (model.eval())"
            )

    def _evaluated(self, records: FloatArray, *, cannot: str = "") -> np.ndarray[Any, np.dtype[np.floating[Any]]]:
        """The features; an error refuses the model where `cannot` says how, which may ask for the error's words."""
        assert self._model is not None
        (taken,) = self._model.inputs
        values: Any = records
        kind = onnx_format.type_of(taken)
        if kind != TensorProto.FLOAT:
            if not (records == np.rint(records)).all():
                raise _refused("it takes whole numbers, and records hold others: they are not what it was made for")
            values = records.astype(_NUMBER_TYPES[kind])
        try:
            (features,) = self._session.run([self._feature], {taken.name: values})
        except Exception as error:
            if "alloc" in str(error):  # onnxruntime's exceptions are not Python's MemoryError
                raise MemoryError from error
            if not cannot:
                raise
            raise _refused(cannot.format(_words(error))) from error
        return np.asarray(features)


def _takes_batches(model: onnx_format.OnnxModel, record_shape: tuple[int, ...]) -> bool:
    """Whether the model takes several records at once; refuses what it takes if that is no record of this shape."""
    if len(model.inputs) != 1:
        raise _refused(f"it has {len(model.inputs)} inputs; a model of one input takes records")
    (taken,) = model.inputs
    words, sizes = onnx_format.words_of(taken), onnx_format.shape_of(taken)
    if onnx_format.type_of(taken) not in _NUMBER_TYPES:
        raise _refused(f"its input is {words}; records are float32, or whole numbers as int32 or int64")
    if sizes is None:
        return True
    if len(sizes) != 1 + len(record_shape) or any(
        size not in (None, has) for size, has in zip(sizes[1:], record_shape, strict=True)
    ):
        raise _refused(
            f"its input is {words}, and n records are n x {' x '.join(map(str, record_shape))}; --record-shape gives "
            "records of the same numbers another shape"
        )
    if sizes[0] not in (None, 1):
        raise _refused(f"it takes {sizes[0]} records at once; export it with a batch of open size, or of one")
    return sizes[0] is None


def _feature(model: onnx_format.OnnxModel, chosen: str | None) -> str:
    names = [one.name for one in model.outputs]
    if chosen is None and len(names) == 1:
        return names[0]
    if chosen is None or chosen not in names:
        listed = ", ".join(map(onnx_format.printable, names[:20]))
        raise _refused(f"its outputs are {listed}; name the feature's with --feature")
    return chosen


def _session(data: bytes, *, threads: int) -> Any:
    """The model in onnxruntime: on the CPU, nothing written, no library loaded, no setting read from the model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_profiling = False
    options.log_severity_level = 4
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "alloc" in str(error):
            raise MemoryError from error
        raise _refused(f"onnxruntime does not take it: {_words(error)}") from error  # made of the model's bytes alone


def _words(error: Exception) -> str:
    return onnx_format.printable(" ".join(str(error).split()), most=300)


def _refused(text: str) -> Refused:
    return Refused("model", f"the model is refused: {text}")


def operations() -> Mapping[str, Operation]:
    """The messages above; onnxruntime is loaded, and has looked at the machine while its files can still be read."""
    first = parser.parse_model('<ir_version: 8, opset_import: ["" : 13]> f (float[1] x) => (float[1] y) {y = Relu(x)}')
    _session(first.SerializeToString(), threads=1).run(None, {"x": np.ones(1, dtype=np.float32)})
    embedding = Embedding()
    return {"describe": embedding.describe, "open": embedding.open, "embed": embedding.embed}
