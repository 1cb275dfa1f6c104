"""Records become features of an ONNX model: approved by its digest, one record at a time, in a confined process."""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto, TensorProto

from dpswd.private_curator.cli.main import main
from dpswd.private_curator.onnx.format import read_model
from dpswd.private_curator.records.embedding import EmbeddedRecords, check_approved
from dpswd.private_curator.records.opening import open_source
from dpswd.private_curator.sandbox.arena import Arena, blob, lay_out
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.records.problems import RecordsRefused

WEIGHTS = np.random.default_rng(3).normal(size=(12, 5)).astype(np.float32)
PIXELS = np.random.default_rng(4).integers(0, 256, size=(9, 12)).astype(np.uint8)
LABELS = np.array([2, 0, 1, 1, 0, 2, 2, 0, 1])


def value(name, *sizes, kind=TensorProto.FLOAT):
    dims = [{"dim_value": size} if isinstance(size, int) else {"dim_param": size} for size in sizes]
    return {"name": name, "type": {"tensor_type": {"elem_type": kind, "shape": {"dim": dims}}}}


def made(*nodes, taken=None, given=None, weights=WEIGHTS):
    """An ONNX model of these nodes, from "x" by "W" to "f"."""
    model = ModelProto(ir_version=8, opset_import=[{"domain": "", "version": 13}])
    model.graph.name = "made"
    raw = np.ascontiguousarray(weights)
    kind = TensorProto.FLOAT if raw.dtype == np.float32 else TensorProto.INT64
    model.graph.initializer.add(name="W", dims=raw.shape, data_type=kind, raw_data=raw.tobytes())
    model.graph.input.add(**(taken or value("x", "n", 3, 4)))
    for one in given or [value("f", "n", 5)]:
        model.graph.output.add(**one)
    for operator, inputs, outputs, *attributes in nodes:
        model.graph.node.add(op_type=operator, input=inputs, output=outputs, attribute=attributes)
    return model


FLAT = ("Flatten", ["x"], ["y"])
LINEAR = (FLAT, ("MatMul", ["y", "W"], ["f"]))
NO_SIDES = {"name": "keepdims", "type": 2, "i": 0}
EXTERNAL = {"name": "V", "dims": [1], "data_type": 1, "data_location": 1, "external_data": [{"key": "location"}]}


class Here:
    """The worker's operations in this process, which has onnxruntime."""

    features = 0

    def __init__(self, model):
        onnx_model = pytest.importorskip("dpswd.private_curator.onnx.model", reason="onnxruntime is not installed")
        self._own, self._refused = onnx_model.Embedding(), onnx_model.Refused
        self._ask("describe", {}, [blob(model.SerializeToString())])

    def open(self, record_shape, *, feature=None):
        wish = {"record_shape": record_shape, "feature": feature, "threads": 1}
        self.features = self._ask("open", wish, [])["features"]
        return self.features

    def evaluate(self, records):
        slots, size = lay_out([records.shape, (len(records), self.features)])
        arena = Arena.create(size)
        arena.array(slots[0])[...] = records
        self._ask("embed", {"records": slots[0], "features": slots[1]}, [os.dup(arena.descriptor)])
        arena.close()
        return arena.array(slots[1])

    def _ask(self, name, message, files):
        try:
            return getattr(self._own, name)(message, files)
        except self._refused as refusal:
            raise InvalidValue(refusal.answer["refused"]["text"]) from refusal


def embedded(tmp_path, model, records=PIXELS, **chosen):
    np.save(tmp_path / "r.npy", records)
    settings = RecordsSettings.checked("records", {"name": "r", "file": tmp_path / "r.npy", **chosen})
    return EmbeddedRecords(open_source(settings, home=tmp_path), settings, Here(model))


def test_an_approved_model_turns_records_into_features_with_their_labels(tmp_path):
    """The command, with a confined worker: described only, refused for another digest, then evaluated."""
    pytest.importorskip("onnxruntime")
    np.savez(tmp_path / "r.npz", x=PIXELS, y=LABELS)
    model = tmp_path / "backbone.onnx"
    model.write_bytes(made(*LINEAR).SerializeToString())
    out = tmp_path / "f.npy"
    command = ["records", "embed", tmp_path / "r.npz", "--model", model, "--out", out, "--array", "x"]
    command += ["--labels-array", "y", "--record-shape", "3,4", "--threads", 1]

    def run(*further, status):
        result = CliRunner().invoke(main, [str(argument) for argument in [*command, *further]])
        assert result.exit_code == status, (result.output, result.exception)
        return " ".join(result.output.split())

    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    shown = run(status=9)
    for words in (
        digest,
        "x: float32 n x 3 x 4",
        "f: float32 n x 5",
        "MatMul 1",
        f"--approve {digest[:16]}",
        "landlock",
    ):
        assert words in shown
    assert not out.exists()
    shown = json.loads(run("--approve", digest[:16].upper(), "--format", "json", status=0))
    assert (shown["records"], shown["dimension"]) == (9, 5)
    assert shown["memory_bytes"] > 0
    features = np.load(out)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, (PIXELS / 255) @ WEIGHTS, atol=1e-5)
    assert np.load(tmp_path / "f.labels.npy").tolist() == LABELS.tolist()
    card = json.loads((tmp_path / "f.model.json").read_text())
    assert card["model"]["sha256"] == digest
    assert card["dimension"] == 5


@pytest.mark.parametrize("approved", [None, "89a2", "0" * 16, "f" * 63 + "0", "g" * 16])
def test_only_the_digest_approves(approved):
    check_approved("f" * 64, "F" * 16)
    with pytest.raises(InvalidValue, match="--approve"):
        check_approved("f" * 64, approved)


def subgraph(inner):
    """An If whose branch holds more."""
    return {"name": "then_branch", "type": 5, "g": inner}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.graph.initializer.add(**EXTERNAL), "another file"),
        (lambda m: m.graph.node[0].attribute.add(name="value", t=EXTERNAL), "another file"),
        (lambda m: m.graph.node[0].attribute.add(**subgraph({"initializer": [EXTERNAL]})), "another file"),
        (lambda m: m.functions.add(name="g", domain="own").node.add().attribute.add(t=EXTERNAL), "another file"),
        (
            lambda m: m.graph.node.add(op_type="Steal", domain="evil.\x1b[2J"),
            r"Steal of evil\.\?\[2J is not one of ONNX's",
        ),
        (lambda m: m.graph.node[0].attribute.add(**subgraph({"node": [{"domain": "com.x"}]})), "not one of ONNX's"),
        (lambda m: m.graph.node.add(op_type="RandomUniformLike"), "may be random"),
        (lambda m: m.graph.node[0].attribute.add(**subgraph({"node": [{"op_type": "Bernoulli"}]})), "may be random"),
        (lambda m: m.graph.node.add(op_type="Dropout", input=["x", "ratio", "training"]), "may be random"),
        (lambda m: m.functions.add(name="Gelu", domain="com.microsoft").node.add(op_type="Neg"), "of that name"),
        (lambda m: m.graph.ClearField("node"), "no graph"),
    ],
)
def test_what_needs_other_files_or_operators_is_refused_before_it_is_loaded(change, words):
    model = made(*LINEAR)
    read_model(model.SerializeToString())
    change(model)
    with pytest.raises(InvalidValue, match=words):
        read_model(model.SerializeToString())


def test_a_function_of_the_model_s_own_is_no_custom_operator():
    model = made(*LINEAR)
    model.functions.add(name="Own", domain="here").node.add(op_type="Relu")
    model.graph.node.add(op_type="Own", domain="here")
    assert read_model(model.SerializeToString()).operators["Own"] == 1
    for damaged in (b"", b"PK\x03\x04", b"\x08\x01\x3a\xff", model.SerializeToString()[:-3]):
        with pytest.raises(InvalidValue, match="no ONNX model"):
            read_model(damaged)


def test_values_are_those_that_an_extractor_would_see_and_pixels_of_floats_too(tmp_path):
    own = embedded(tmp_path, made(*LINEAR), record_shape=(3, 4), scale_from=(0.0, 255.0), scale_to=(-1.0, 1.0))
    features = np.concatenate([batch.records for batch in own.batches()])
    np.testing.assert_allclose(features, (PIXELS / 127.5 - 1) @ WEIGHTS, atol=1e-5)
    assert own.layout.shape == (5,)


def test_words_as_whole_numbers_in_float32_are_looked_up(tmp_path):
    words = np.array([[0, 3], [11, 2], [5, 5]], dtype=np.float32)
    taken = value("x", "n", 2, kind=TensorProto.INT64)
    model = made(("Gather", ["W", "x"], ["g"]), ("ReduceMean", ["g"], ["f"], axes(1)), taken=taken)
    own = embedded(tmp_path, model, words)
    batch = next(own.batches())
    np.testing.assert_allclose(batch.records.reshape(3, 5), WEIGHTS[words.astype(int)].mean(axis=1), atol=1e-5)
    with pytest.raises(InvalidValue, match="whole numbers"):
        list(embedded(tmp_path, model, words + np.float32(0.5)).batches())


def axes(*places):
    return {"name": "axes", "type": 7, "ints": places}


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        # The mean over the batch, as batch norm in training mode would take away.
        (
            (FLAT, ("ReduceMean", ["y"], ["m"], axes(0)), ("Sub", ["y", "m"], ["s"]), ("MatMul", ["s", "W"], ["f"])),
            "batch",
        ),
        ((FLAT, ("MatMul", ["y", "W"], ["l"]), ("ReduceSum", ["l"], ["f"])), "batch"),
        ((FLAT, ("MatMul", ["y", "W"], ["l"]), ("RandomNormalLike", ["l"], ["f"])), "random"),
    ],
)
def test_a_feature_that_depends_on_other_records_is_refused(tmp_path, nodes, words):
    with pytest.raises(InvalidValue, match=words):
        list(embedded(tmp_path, made(*nodes), record_shape=(3, 4)).batches())


def test_a_batch_that_cannot_be_evaluated_is_not_called_a_failure_on_a_record(tmp_path):
    model = made(("Reshape", ["x", "S"], ["y"]), ("MatMul", ["y", "W"], ["f"]), given=[value("f", 1, 5)])
    shape = np.array([1, 12], dtype=np.int64)  # a constant batch of one: a usual slip of an export
    model.graph.initializer.add(name="S", dims=[2], data_type=TensorProto.INT64, raw_data=shape.tobytes())
    records = embedded(tmp_path, model, record_shape=(3, 4), scale_from=(0.0, 255.0), scale_to=(0.0, 1.0))
    with pytest.raises(InvalidValue, match="batch of one"):
        list(records.batches())


def test_features_that_are_not_finite_are_refused_without_a_value(tmp_path):
    model = made(FLAT, ("MatMul", ["y", "W"], ["l"]), ("Log", ["l"], ["f"]))
    positive = np.where(PIXELS @ WEIGHTS > 0, 1, -1)[0]  # signs with which the first record alone is in the logarithm
    model.graph.initializer[0].raw_data = (WEIGHTS * positive.astype(np.float32)).tobytes()
    with pytest.raises(RecordsRefused, match="NaN or infinite") as refused:
        list(embedded(tmp_path, model, record_shape=(3, 4)).batches())
    assert refused.value.location.startswith("record ")
    assert refused.value.location != "record 0, counted from 0"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (made(*LINEAR, taken=value("x", "n", 4, 3)), "n x 4 x 3.*--record-shape"),
        (made(*LINEAR, taken=value("x", 8, 3, 4)), "8 records at once"),
        (made(*LINEAR, taken=value("x", "n", 3, 4, kind=10)), "float16"),
        (made(*LINEAR, given=[value("f", "n", 5), value("y", "n", 12)]), "outputs are f, y; .*--feature"),
        (
            made(FLAT, ("MatMul", ["y", "W"], ["a"]), ("ReduceSum", ["a"], ["f"], NO_SIDES), given=[value("f")]),
            r"\(n, \.\.\.\)",
        ),
        (made(FLAT, ("NoSuch", ["y"], ["f"])), "onnxruntime does not take it"),
    ],
)
def test_a_model_of_other_records_is_refused_with_what_to_do(tmp_path, model, words):
    with pytest.raises(InvalidValue, match=words):
        embedded(tmp_path, model, record_shape=(3, 4))
