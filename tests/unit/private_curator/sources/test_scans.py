"""DICOM files that pydicom makes, NIfTI volumes that nibabel makes: a file is a record."""

from __future__ import annotations

import json

import nibabel
import numpy as np
import pydicom
import pytest
from click.testing import CliRunner
from pydicom.dataset import FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, RLELossless, SecondaryCaptureImageStorage, generate_uid

from dpswd.private_curator.cli.main import main

GREY = np.arange(12, dtype=np.uint16).reshape(3, 4) * 300


def convert(directory, *words, status=0):
    arguments = ["records", "convert", *map(str, words), "--out", str(directory / "r.npy")]
    done = CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == status, (done.output, done.exception)
    return " ".join(done.output.split())


def dicom(path, pixels, *, kind="MONOCHROME2", bits=12, compress=False, **fields):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = pydicom.Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
    data.PatientID, data.PatientName = "p1", "Müller^Eva"
    data.set_pixel_data(pixels, kind, bits)
    for name, value in fields.items():
        setattr(data, name, value)
    if compress:
        data.compress(RLELossless)
    data.save_as(path, enforce_file_format=True)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "scans"


def first(directory):
    return np.load(directory / "r.npy")[0, 0].astype(int)


def grades(values, low, high):
    return np.rint(np.clip((values.astype(float) - low) / (high - low), 0, 1) * 255)


def test_without_a_window_the_stored_range_is_white_to_black(folder, tmp_path):
    for name in "ab":
        dicom(folder / f"{name}.dcm", GREY)
    words = convert(tmp_path, folder)
    assert (np.load(tmp_path / "r.npy").shape, np.load(tmp_path / "r.npy").dtype) == ((2, 1, 3, 4), np.uint8)
    assert (first(tmp_path) == grades(GREY, 0, 4095)).all()
    assert "lost nothing" in words


@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("signed", [False, True])
def test_rescale_and_window_as_the_standard_says(folder, tmp_path, kind, signed):
    """PS3.3 C.11.2.1.2.1, written out."""
    pixels = (GREY.astype(np.int16) - 1500) if signed else GREY
    fields = {"RescaleSlope": 2, "RescaleIntercept": -1024, "WindowCenter": [400, 40], "WindowWidth": [1500, 80]}
    for name in "ab":
        dicom(folder / name, pixels, kind=kind, compress=name == "b", **fields)
    convert(tmp_path, folder)
    units = pixels.astype(float) * 2 - 1024
    expected = np.rint(np.clip((units - 399.5) / 1499 + 0.5, 0, 1) * 255)
    assert (first(tmp_path) == (255 - expected if kind == "MONOCHROME1" else expected)).all()
    both = np.load(tmp_path / "r.npy")
    assert (both[0] == both[1]).all()  # stored plainly, and compressed


def test_colours_come_channels_first(folder, tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (3, 4, 3)).astype(np.uint8)
    for name in "ab":
        dicom(folder / name, colours, kind="RGB", bits=8)
    convert(tmp_path, folder)
    assert (np.load(tmp_path / "r.npy")[1] == colours.transpose(2, 0, 1)).all()


def test_the_patient_is_the_person_and_stands_in_no_file(folder, tmp_path):
    for place, patient in enumerate(["p1", "p1", "p2", "", "p3"]):
        dicom(folder / f"study{place}" / "i.dcm", GREY + np.uint16(place), PatientID=patient)
    words = convert(tmp_path, folder, "--person", "PatientID", "--labels-array", "folder")
    assert len(np.load(tmp_path / "r.npy")) == 3
    assert json.loads((tmp_path / "r.classes.json").read_text()) == ["study0", "study2", "study4"]
    assert "1 files without a person, 1 further files of a person" in words
    for file in tmp_path.glob("r.*"):
        assert not any(secret in file.read_text("utf-8", "replace") for secret in ("Müller", "p1", "PatientName"))


def test_what_becomes_no_record_is_counted(folder, tmp_path):
    for name in "abc":
        dicom(folder / name, GREY, BodyPartExamined="CHEST" if name != "c" else "HEAD")
    dicom(folder / "d", GREY[:2])
    dicom(folder / "e", np.stack([GREY, GREY]))
    dicom(folder / "f", GREY.astype(np.uint8), kind="PALETTE COLOR", bits=8)
    dicom(folder / "g", GREY, BodyPartExamined="HEAD")
    (folder / "g").write_bytes((folder / "g").read_bytes()[:-5])
    (folder / "notes.txt").write_text("Müller")
    dicom(folder / "h", GREY)
    words = convert(tmp_path, folder, "--labels-array", "BodyPartExamined")
    assert len(np.load(tmp_path / "r.npy")) == 3
    assert np.load(tmp_path / "r.labels.npy").tolist() == [0, 0, 1]
    lost = json.loads((tmp_path / "r.notes.json").read_text())["lost"]
    assert lost == {
        "files of several frames": 1, "files neither MONOCHROME1, MONOCHROME2 nor 8-bit colour": 1,
        "files without a label": 2, "files that are no DICOM image": 1, "files that pydicom cannot decode": 1,
    }  # fmt: skip
    assert "Müller" not in words


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [(("--person", "Patient"), 3, "is no DICOM keyword; write one such as PatientID"),
     (("--columns", "a"), 3, "have no meaning for scans"),
     (("--missing", "0"), 3, "--missing is for SQL, OMOP and FHIR"),
     (("--labels-array", "BodyPartExamined"), 4, "no file that becomes a record (2 files without a label)")],
)  # fmt: skip
def test_what_cannot_be_asked_of_scans(folder, tmp_path, options, status, words):
    for name in "ab":
        dicom(folder / name, GREY)
    assert words in convert(tmp_path, folder, *options, status=status)


def nifti(path, values, affine=None, **header):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine)
    if header:
        image.header.set_slope_inter(header["slope"], header["inter"])
    nibabel.save(image, path)


def test_volumes_are_scaled_and_turned_one_way(folder, tmp_path):
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    nifti(folder / "sub-01" / "sub-01_ses-1_T1w.nii.gz", values)
    nifti(folder / "sub-01" / "sub-01_ses-2_T1w.nii", values * 2)
    turned = np.array([[0, 0, -1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]])  # axes to the front, up, and left
    nifti(folder / "sub-02" / "sub-02_T1w.nii", values.transpose(1, 2, 0)[:, :, ::-1], turned)
    nifti(folder / "sub-03" / "sub-03_T1w.nii", values.astype(np.int16), slope=0.5, inter=3)
    nifti(folder / "sub-04" / "sub-04_bold.nii", np.stack([values, values], axis=-1))
    nifti(folder / "sub-05" / "sub-05_T1w.nii", np.full_like(values, np.nan))
    nifti(folder / "sub-06" / "sub-06_T1w.nii", values[:, :, :2])
    (folder / "participants.tsv").write_text("sub\n")
    words = convert(tmp_path, folder, "--person", "sub")
    made = np.load(tmp_path / "r.npy")
    assert (made.shape, made.dtype) == ((3, 4, 3, 2), np.float32)
    assert (made[0] == values.T).all()
    assert (made[1] == values.T).all()
    assert (made[2] == values.T / 2 + 3).all()
    for lost in ("1 files that are no volume of three dimensions", "1 files with NaN or infinite values",
                 "1 files of another size", "1 further files of a person"):  # fmt: skip
        assert lost in words


@pytest.mark.parametrize("key", ["StudyInstanceUID", "PatientID", "file"])
def test_labels_come_from_a_table_and_what_has_none_is_counted(folder, tmp_path, key):
    """By study, by patient or by file; rows and files that do not meet are counted, and no patient's number is told."""
    for place in range(5):
        fields = {"StudyInstanceUID": f"1.2.{place}", "PatientID": f"patient{place}"}
        dicom(folder / "year" / f"{place}.dcm", GREY + np.uint16(place), **fields)
    values = {"StudyInstanceUID": "1.2.{}", "PatientID": "patient{}", "file": "year/{}.dcm"}[key]
    labels = ["ill", "well", "ill", ""]  # the fifth file has no row, the fourth no label
    rows = [f"{values.format(place)},x,{label}" for place, label in enumerate(labels)]
    rows += [f"{values.format(9)},x,well"]
    (tmp_path / "labels.csv").write_text("\n".join([f"{key},reader,diagnosis", *rows]) + "\n", encoding="utf-8-sig")
    words = convert(tmp_path, folder, "--labels-file", tmp_path / "labels.csv", "--labels-array", "diagnosis")
    assert json.loads((tmp_path / "r.classes.json").read_text()) == ["ill", "well"]
    assert np.load(tmp_path / "r.labels.npy").tolist() == [0, 1, 0]
    assert [int(record[0, 0, 1]) for record in np.load(tmp_path / "r.npy")] == [
        int(grades(np.array([[300 + place]]), 0, 4095)[0, 0]) for place in range(3)
    ]
    assert "2 files without a label, 1 rows of labels without a file" in words
    assert "patient" not in words


def test_labels_of_volumes_come_from_a_table(tmp_path):
    folder = tmp_path / "volumes"
    folder.mkdir()
    for sub in ("01", "02", "03"):
        nibabel.save(
            nibabel.Nifti1Image(np.ones((2, 2, 2), np.float32) * int(sub), np.eye(4)), folder / f"sub-{sub}_T1w.nii"
        )
    (tmp_path / "participants.csv").write_text("sub,label\n01,old\n02,young\n03,old\n")
    words = convert(tmp_path, folder, "--labels-file", tmp_path / "participants.csv")
    assert np.load(tmp_path / "r.labels.npy").tolist() == [0, 1, 0]
    assert "lost nothing" in words


@pytest.mark.parametrize(
    ("table", "status", "words"),
    [
        ("PatientID,label\np1,a\np1,b\n", 4, "two labels for one PatientID"),
        ("PatientID\np1\n", 3, "first column that tells scans apart, and 'label'"),
        ("", 3, "first column"),
        ("NoKeyword,label\np1,a\n", 3, "no DICOM keyword"),
        (None, 3, "cannot be read"),
    ],
)
def test_a_table_that_says_nothing_or_two_things_is_refused(folder, tmp_path, table, status, words):
    dicom(folder / "a.dcm", GREY)
    if table is not None:
        (tmp_path / "labels.csv").write_text(table)
    said = convert(tmp_path, folder, "--labels-file", tmp_path / "labels.csv", status=status)
    assert words in said
    assert "p1" not in said


def test_a_table_without_rows_labels_nothing(folder, tmp_path):
    dicom(folder / "a.dcm", GREY)
    (tmp_path / "labels.csv").write_text("PatientID,label\n")
    said = convert(tmp_path, folder, "--labels-file", tmp_path / "labels.csv", status=4)
    assert "1 files without a label" in said
