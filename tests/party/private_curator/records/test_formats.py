"""Every format gives the same records back, and what is malformed is refused with its place and without a value."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from dpswd.private_curator.records.conversion import convert
from dpswd.private_curator.records.labels import load_labels
from dpswd.private_curator.records.opening import ContentDigest, gather, open_source
from dpswd.private_curator.records.schema import inspect
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import DataInvalid, SettingsError
from dpswd.shared.records import batches
from dpswd.shared.records.batches import Format
from dpswd.shared.records.problems import RecordsRefused

SECRET = "4711.25"
LIMIT = 1 << 30

floats = hnp.arrays(
    np.float32,
    st.tuples(st.integers(2, 40), st.integers(1, 5)),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


def source(path, **fields):
    return open_source(RecordsSettings(file=path, **fields), home=path.parent)


def converted(path, out, **fields):
    return convert(source(path, **fields), out, RecordsSettings(file=path, **fields))


def read(path, **fields):
    opened = source(path, **fields)
    return gather(opened, ContentDigest(opened.layout), limit=LIMIT)


def refused(path, **fields) -> RecordsRefused:
    with pytest.raises(RecordsRefused) as caught:
        read(path, **fields)
    error = caught.value
    assert SECRET not in error.in_full()
    assert error.__cause__ is None
    assert error.location == "" or error.location not in str(error)
    return error


def names(table):
    return [f"c{i}" for i in range(table.shape[1])]


def write(kind, path, values, labels=None):
    """Saves (n, width) values, and labels in a column of that name."""
    columns = {name: values[:, i] for i, name in enumerate(names(values))}
    if labels is not None:
        columns["label"] = labels
    match kind:
        case "parquet":
            pq.write_table(pa.table(columns), path, row_group_size=7)
        case "arrow":
            feather.write_feather(pa.table(columns), path, chunksize=7)
        case "ipc":
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, pa.table(columns).schema) as writer:
                writer.write_table(pa.table(columns), max_chunksize=5)
        case "csv":
            with path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(zip(*(map(_text, column) for column in columns.values()), strict=True))
        case "npy":
            np.save(path, values)
        case "npz":
            np.savez(path, values)


def _text(value):
    return (value or "") if value is None or isinstance(value, str) else repr(value.item())


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet", "arrow", "ipc", "csv"])
@given(values=floats)
def test_what_was_saved_is_what_is_served(tmp_path_factory, kind, values):
    path = tmp_path_factory.mktemp("round") / f"r.{kind}"
    write(kind, path, values)
    np.testing.assert_array_equal(read(path), values)
    if kind in ("npy", "npz"):
        indices = np.arange(len(values))[::-1]
        np.testing.assert_array_equal(source(path).mapped.take(indices), values[::-1])


@given(values=floats, data=st.data())
@pytest.mark.long
def test_every_format_converts_to_the_same_npy_and_has_the_same_digest(tmp_path_factory, values, data):
    folder = tmp_path_factory.mktemp("convert")
    texts = data.draw(st.lists(st.sampled_from(["a", "b", "é"]), min_size=len(values), max_size=len(values)))
    digests = set()
    for kind in ("parquet", "arrow", "csv"):
        write(kind, folder / f"r.{kind}", values, labels=np.array(texts))
        made = converted(folder / f"r.{kind}", folder / f"{kind}.npy", labels_array="label")
        loaded = np.load(made.out)
        np.testing.assert_array_equal(loaded, values)
        assert made.out.stat().st_mode & 0o077 == 0
        labels = np.load(made.labels)
        assert [made.classes[code] for code in labels] == texts
        digests |= {made.digest, inspect(made.out, source(made.out, labels_file=made.labels)).digest}
    np.savez_compressed(folder / "r.npz", values)
    compressed = source(folder / "r.npz")
    assert not compressed.layout.mapped
    np.testing.assert_array_equal(read(folder / "r.npz"), values)
    digests |= {inspect(folder / "r.npz", compressed).digest}
    assert len(digests) == 1


@given(values=floats, data=st.data())
@pytest.mark.long
def test_a_value_that_is_not_finite_is_refused_with_its_location(tmp_path_factory, values, data):
    bad = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    row = data.draw(st.integers(0, len(values) - 1))
    column = data.draw(st.integers(0, values.shape[1] - 1))
    values[row, column] = bad
    folder = tmp_path_factory.mktemp("holes")
    for kind in ("npy", "npz", "parquet", "arrow", "csv"):
        write(kind, folder / f"r.{kind}", values)
        error = refused(folder / f"r.{kind}")
        assert "NaN or infinite" in str(error)
        assert f"record {row}, counted from 0" in error.location
        assert (f"value [{column}]" if kind.startswith("np") else f"column 'c{column}'") in error.location


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet", "arrow"])
@given(values=floats, share=st.floats(0, 0.999))
def test_a_file_that_was_cut_short_is_refused(tmp_path_factory, kind, values, share):
    path = tmp_path_factory.mktemp("short") / f"r.{kind}"
    write(kind, path, values)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    refused(path)


@given(content=st.binary(max_size=300))
def test_no_garbage_is_taken_for_records(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("garbage")
    for ending in ("npy", "npz", "parquet", "arrow", "csv"):
        path = folder / f"r.{ending}"
        path.write_bytes(content)
        try:
            values = read(path, header="yes") if ending == "csv" else read(path)
        except RecordsRefused:
            continue
        assert np.isfinite(values).all()  # text may happen to be a table
        assert len(values) >= 2


@given(
    rows=st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=2, max_size=30),
    bad=st.sampled_from([[], [1], [1, 2], [1, 2, 3, 4]]),
    data=st.data(),
)
def test_a_ragged_csv_is_refused_with_its_line(tmp_path_factory, rows, bad, data):
    at = data.draw(st.integers(0, len(rows)))
    path = tmp_path_factory.mktemp("ragged") / "r.csv"
    lines = [[float(SECRET)] * 3, *rows]
    lines.insert(at + 1, bad or ["x"])
    path.write_text("a,b,c\n" + "\n".join(",".join(map(str, line)) for line in lines) + "\n")
    error = refused(path)
    assert "as many cells" in str(error)
    assert error.location.startswith(f"line {at + 3}, counted from 1")


@pytest.mark.parametrize(
    ("content", "says", "place"),
    [
        (f"a,b\n1,2\n{SECRET}x,3\n", "text that is no number", "record 1, counted from 0, column 'a'"),
        (f"a,b\n{SECRET},\n3,4\n", "empty", "record 0, counted from 0, column 'b'"),
        (f"1,2\n3,{SECRET}\n5,6\n", "records.header", ""),
        ("", "empty", ""),
        ("a,b\n", "no rows", ""),
        ("a,b\n1,2\n", "at least two", ""),
        ("a,a\n1,2\n3,4\n", "more than once", ""),
        ("a,\n1,2\n3,4\n", "no name", ""),
        ("a,b\n1,1e39\n3,4\n", "infinite", "record 0, counted from 0, column 'b'"),
    ],
)
def test_a_csv_that_cannot_be_served(tmp_path, content, says, place):
    (tmp_path / "r.csv").write_text(content)
    error = refused(tmp_path / "r.csv")
    assert says in str(error)
    assert error.location == place


def test_a_csv_in_another_encoding_or_without_names(tmp_path):
    (tmp_path / "r.csv").write_bytes("größe,b\n1,2\n3,4\n".encode("latin-1"))
    assert "UTF-8" in str(refused(tmp_path / "r.csv"))
    (tmp_path / "r.csv").write_text("1;2\n3;4\n")
    np.testing.assert_array_equal(read(tmp_path / "r.csv", header="no", delimiter=";"), [[1, 2], [3, 4]])
    (tmp_path / "r.csv").write_text("age;dose\n60;1,5\n61;-,25\n")
    np.testing.assert_array_equal(read(tmp_path / "r.csv"), np.float32([[60, 1.5], [61, -0.25]]))
    (tmp_path / "r.csv").write_text("1,5;2,5;7\n3;4;8\n")
    np.testing.assert_array_equal(read(tmp_path / "r.csv", header="no"), [[1.5, 2.5, 7], [3, 4, 8]])
    (tmp_path / "r.csv").write_text("age;dose\n60;1,500\n61;2.5\n")  # a comma that divides thousands
    assert refused(tmp_path / "r.csv").location == "record 0, counted from 0, column 'dose'"
    (tmp_path / "r.csv").write_text("a;b,c\n1,2\n3,4\n")
    np.testing.assert_array_equal(read(tmp_path / "r.csv"), [[1, 2], [3, 4]])
    (tmp_path / "r.tsv").write_bytes("\ufeffa\tb\n 1\t2\n3\t 4 \n".encode())
    np.testing.assert_array_equal(read(tmp_path / "r.tsv"), [[1, 2], [3, 4]])


def test_columns_are_chosen_and_ordered(tmp_path):
    table = pa.table({"id": ["x", "y"], "age": [1, 2], "weight": [0.5, 1.5], "sick": [True, False]})
    pq.write_table(table, tmp_path / "r.parquet")
    assert "'id' holds string" in str(refused(tmp_path / "r.parquet"))
    taken = read(tmp_path / "r.parquet", columns=("weight", "sick"), labels_array="id")
    np.testing.assert_array_equal(taken, [[0.5, 1], [1.5, 0]])
    assert "no column 'size'; it has 'id'" in str(refused(tmp_path / "r.parquet", columns=("size",)))
    assert str(refused(tmp_path / "r.parquet", columns=("wieght",))).endswith("; did you mean 'weight'?")
    assert "labels' is none of them" in str(refused(tmp_path / "r.parquet", columns=("age",), labels_array="age"))


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 3), pa.large_list(pa.int64())])
def test_a_column_of_lists_is_a_record(tmp_path, kind):
    values = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    pq.write_table(pa.table({"x": pa.array(values, kind), "y": ["a", "b", "a"]}), tmp_path / "r.parquet")
    np.testing.assert_array_equal(read(tmp_path / "r.parquet", labels_array="y"), values)


def test_lists_of_several_lengths_or_with_holes_are_refused(tmp_path):
    pq.write_table(pa.table({"x": [[1.0, 2.0], [float(SECRET)]]}), tmp_path / "r.parquet")
    assert refused(tmp_path / "r.parquet").location == "record 1, counted from 0, column 'x'"
    pq.write_table(pa.table({"x": [[1.0, 2.0], [3.0, None]]}), tmp_path / "r.parquet")
    assert refused(tmp_path / "r.parquet").location == "record 1, counted from 0, column 'x'"


@pytest.mark.parametrize(
    "array",
    [
        np.array([SECRET, None], dtype=object),
        np.array([["a"], [SECRET]]),
        np.zeros((3, 2), dtype=np.float64),
        np.zeros((3, 2), dtype=">f4"),
        np.zeros((3, 2), dtype=np.complex64),
        np.zeros(3, dtype=[("a", "f4")]),
        np.zeros((1, 2), dtype=np.float32),
        np.zeros((3, 0), dtype=np.float32),
        np.float32(3),
    ],
    ids=str,
)
def test_arrays_that_cannot_be_served(tmp_path, array):
    np.save(tmp_path / "r.npy", array, allow_pickle=True)
    np.savez(tmp_path / "r.npz", array)
    refused(tmp_path / "r.npy")
    refused(tmp_path / "r.npz")


def test_fortran_order_is_read_into_memory(tmp_path):
    values = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))
    np.save(tmp_path / "r.npy", values)
    assert not source(tmp_path / "r.npy").layout.mapped
    np.testing.assert_array_equal(read(tmp_path / "r.npy"), values)


def test_batches_are_bounded_and_join_to_the_whole(tmp_path, monkeypatch):
    values = np.random.default_rng(0).normal(size=(1000, 7)).astype(np.float32)
    np.save(tmp_path / "r.npy", values)
    np.savez_compressed(tmp_path / "r.npz", values)
    monkeypatch.setattr(batches, "BATCH_BYTES", 280)
    for name in ("r.npy", "r.npz"):
        parts = [batch.records for batch in source(tmp_path / name).batches()]
        assert {len(part) for part in parts} == {10}
        np.testing.assert_array_equal(np.concatenate(parts), values)


def test_memory_is_limited_and_convert_is_the_remedy(tmp_path):
    values = np.random.default_rng(0).normal(size=(5000, 8)).astype(np.float32)
    for kind in ("parquet", "csv"):
        write(kind, tmp_path / f"r.{kind}", values)
        opened = source(tmp_path / f"r.{kind}")
        with pytest.raises(RecordsRefused, match="records convert"):
            gather(opened, ContentDigest(opened.layout), limit=100_000)


CONVERTED = """
import sys
from pathlib import Path
from dpswd.private_curator.records.conversion import convert
from dpswd.private_curator.records.opening import open_source
from dpswd.private_curator.settings.groups import RecordsSettings

def peak():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024

path = Path(sys.argv[1])
settings = RecordsSettings(file=path)
opened = open_source(settings, home=path.parent)
before = peak()
made = convert(opened, path.with_suffix(".npy"), settings)
assert made.records == 1_200_000
print(peak() - before)
"""


@pytest.mark.long
def test_a_parquet_file_of_one_row_group_is_converted_in_the_memory_of_a_batch(tmp_path):
    """150 MB that do not shrink, in one row group: neither the group nor the mapped file is held."""
    path, columns = tmp_path / "r.parquet", [f"c{number}" for number in range(32)]
    values = np.random.default_rng(0).random((1_200_000, 32), dtype=np.float32)
    table = pa.table({name: values[:, number] for number, name in enumerate(columns)})
    pq.write_table(table, path, row_group_size=len(values), compression="none", use_dictionary=False)
    del table
    assert path.stat().st_size > 150_000_000
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", CONVERTED, str(path)], capture_output=True, text=True, check=False, cwd=root
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 48 << 20
    written = np.load(path.with_suffix(".npy"), mmap_mode="r")
    np.testing.assert_array_equal(written[-5000:], values[-5000:])


@pytest.mark.parametrize("said", [2, 4])
def test_a_file_that_miscounts_its_records_is_refused(said):
    class Miscounts:
        layout = batches.Layout(format=Format.PARQUET, dtype=np.dtype(np.float32), shape=(2,), count=said)

        def batches(self):
            yield batches.Batch(np.ones((1, 2), np.float32))
            yield batches.Batch(np.ones((2, 2), np.float32))

    opened = Miscounts()
    with pytest.raises(RecordsRefused, match=f"holds 3 records and says that it holds {said}"):
        gather(opened, ContentDigest(opened.layout), limit=LIMIT)


def _image(path, size=(6, 4), mode="RGB", seed=0):
    path.parent.mkdir(exist_ok=True, parents=True)
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, size=(size[1], size[0], channels), dtype=np.uint8)
    Image.fromarray(pixels.squeeze(-1) if channels == 1 else pixels).save(path)
    return pixels.transpose(2, 0, 1)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_folder_of_images(tmp_path, mode):
    expected = [_image(tmp_path / "x" / f"{i}.png", mode=mode, seed=i) for i in range(5)]
    (tmp_path / "x" / ".hidden").write_text("left out")
    np.testing.assert_array_equal(read(tmp_path / "x"), expected)
    opened = source(tmp_path / "x")
    assert (opened.layout.shape, opened.layout.dtype) == (((1 if mode == "L" else 3), 4, 6), np.uint8)
    made = converted(tmp_path / "x", tmp_path / "x.npy")
    np.testing.assert_array_equal(np.load(made.out), expected)


def test_sub_folders_are_classes(tmp_path):
    for i, name in enumerate(["ill", "well", "well"]):
        _image(tmp_path / "x" / name / f"{i}.png", seed=i)
    assert inspect(tmp_path / "x", source(tmp_path / "x")).classes == {"ill": 1, "well": 2}
    _image(tmp_path / "x" / "stray.png")
    assert "side by side" in str(refused(tmp_path / "x"))


def test_images_that_do_not_fit_together_are_refused_by_name(tmp_path):
    folder = tmp_path / "x"
    _image(folder / "a.png")
    assert "at least two" in str(refused(folder))
    _image(folder / "b.png", size=(4, 6))
    assert refused(folder).location == "b.png"
    _image(folder / "b.png", mode="L")
    assert refused(folder).location == "b.png"
    _image(folder / "b.png", mode="RGBA")
    assert "RGBA" in str(refused(folder))
    _image(folder / "b.png")
    data = (folder / "b.png").read_bytes()
    (folder / "b.png").write_bytes(data[: len(data) // 2])
    assert refused(folder).location == "b.png"
    (folder / "b.png").write_bytes(SECRET.encode())
    assert refused(folder).location == "b.png"
    (folder / "b.png").rename(folder / "notes.txt")
    assert refused(folder).location == "notes.txt"


def test_an_image_is_not_read_beyond_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("dpswd.private_curator.records.images._MAX_PIXELS", 20)
    _image(tmp_path / "x" / "a.png")
    _image(tmp_path / "x" / "b.png")
    assert "pixels" in str(refused(tmp_path / "x"))


def test_settings_that_mean_nothing_for_a_format_are_refused(tmp_path):
    np.save(tmp_path / "r.npy", np.zeros((3, 2), np.float32))
    assert "records.columns has no meaning for npy" in str(refused(tmp_path / "r.npy", columns=("a",)))
    assert "records.header" in str(refused(tmp_path / "r.npy", header="no"))
    assert "one array" in str(refused(tmp_path / "r.npy", array="x"))
    (tmp_path / "r.xlsx").write_bytes(b"PK")
    assert ".parquet" in str(refused(tmp_path / "r.xlsx"))


def test_the_schema_shows_what_was_understood(tmp_path):
    table = pa.table({"flag": [0, 1, 1], "count": [3, 5, 70_000_001], "level": [0.5, -2.5, 1.0], "y": [2, 0, 2]})
    pq.write_table(table, tmp_path / "r.parquet")
    facts = inspect(tmp_path / "r.parquet", source(tmp_path / "r.parquet", labels_array="y"))
    assert (facts.format, facts.records, facts.shape, facts.type) == ("parquet", 3, (3,), "float32")
    assert facts.classes == {"0": 1, "2": 2}
    shown = {column.name: (column.kind, column.low, column.high) for column in facts.columns}
    assert shown["flag"] == ("truth values", 0, 1)
    assert shown["count"] == ("whole numbers", 3, 70_000_000)
    assert shown["level"] == ("numbers", -2.5, 1)
    assert any("'count'" in note and "identifier" in note for note in facts.notes)
    assert not {"classes", "columns", "digest"} & facts.public().keys()


def test_labels_that_are_no_classes_are_refused(tmp_path):
    pq.write_table(pa.table({"x": np.arange(2000.0), "y": np.arange(2000)}), tmp_path / "r.parquet")
    opened = source(tmp_path / "r.parquet", labels_array="y")
    with pytest.raises(RecordsRefused, match="1000 different"):
        inspect(tmp_path / "r.parquet", opened)
    with pytest.raises(RecordsRefused, match="1000 different"):
        converted(tmp_path / "r.parquet", tmp_path / "out.npy", labels_array="y")
    assert not list(tmp_path.glob("*out*"))
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [1, None]}), tmp_path / "r.parquet")
    assert refused(tmp_path / "r.parquet", labels_array="y").location == "record 1, counted from 0, column 'y'"


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_an_empty_cell_is_a_record_without_a_label_where_the_operator_says_so(tmp_path, kind):
    """And the declared order of the classes is that of the converted numbers, which are served as they are."""
    values, texts = np.arange(8, dtype=np.float32).reshape(4, 2), ["yes", None, "unknown", "no"]
    path, declared = tmp_path / f"r.{kind}", {"labels_array": "label", "unlabelled": "unknown"}
    write(kind, path, values, labels=texts)
    if kind == "csv":
        assert path.read_text().splitlines()[2].endswith(",")  # an empty cell
    with pytest.raises(RecordsRefused, match=r"a label is missing; .*records\.unlabelled") as caught:
        converted(path, tmp_path / "o.npy", labels_array="label")
    assert caught.value.location == "record 1, counted from 0, column 'label'"
    for number, (classes, labels) in enumerate({None: [1, -1, -1, 0], ("yes", "no"): [0, -1, -1, 1]}.items()):
        made = converted(path, tmp_path / f"o{number}.npy", classes=classes, **declared)
        assert np.load(made.labels).tolist() == labels
        assert made.classes == (classes or ("no", "yes"))
        assert json.loads((tmp_path / f"o{number}.classes.json").read_text()) == list(made.classes)
        served = RecordsSettings(file=made.out, labels_file=made.labels, classes=2, unlabelled="-1")
        assert load_labels(served, home=tmp_path, records=4).tolist() == labels
    with pytest.raises(DataInvalid, match=r"one of the 2 names in records\.classes") as refused:
        converted(path, tmp_path / "o.npy", classes=("no", "maybe"), **declared)
    assert "yes" not in str(refused.value)
    with pytest.raises(SettingsError, match="no labels are named"):
        converted(path, tmp_path / "o.npy", columns=("c0",), classes=2)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (pa.array([0, None, 2], pa.uint8()), 3),
        (pa.array([False, None, True]), 2),
        (pa.array([0.0, None, 2.0]), 3),  # as pandas has whole numbers some of which are missing
        (pa.array([0.0, float("nan"), 2.0], pa.float32()), 3),
        (pa.array(np.array([0.0, np.nan, 2.0], np.float16)), 3),
    ],
)
def test_an_empty_cell_among_numbers_is_a_number_that_is_no_class(tmp_path, labels, classes):
    """Numbers keep their meaning as well: class 2 stays 2 where no record is of class 1."""
    path, fields = tmp_path / "r.parquet", {"labels_array": "y", "classes": classes}
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0], "y": labels}), path, row_group_size=1)
    made = converted(path, tmp_path / "o.npy", unlabelled="-1", **fields)
    assert np.load(made.labels).tolist() == [0, -1, classes - 1]
    with pytest.raises(RecordsRefused, match=r"a whole number, such as -1, where labels are numbers"):
        converted(path, tmp_path / "n.npy", unlabelled="unknown", **fields)
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [1.0, 0.5]}), tmp_path / "half.parquet")
    with pytest.raises(RecordsRefused, match=r"holds double; needed are whole numbers or texts"):
        converted(tmp_path / "half.parquet", tmp_path / "n.npy", unlabelled="-1", **fields)


def test_convert_never_overwrites(tmp_path):
    np.save(tmp_path / "r.npy", np.zeros((3, 2), np.float32))
    with pytest.raises(SettingsError, match="not overwritten"):
        converted(tmp_path / "r.npy", tmp_path / "r.npy")
    with pytest.raises(SettingsError, match=r"\.npy"):
        converted(tmp_path / "r.npy", tmp_path / "out.npz")
    assert io.BytesIO((tmp_path / "r.npy").read_bytes()).read(6) == b"\x93NUMPY"
