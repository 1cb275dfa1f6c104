"""Time and memory of `records convert` from a hospital's own systems: ``python -m benchmarks.sources``.

A million rows through SQLite, ten thousand DICOM images, a million measurements of OMOP, a million lines of FHIR; each
made here, converted by the command in a process of its own, whose peak memory the kernel tells.
Takes no seeds: times hardly depend on what is drawn.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.records import Row, Rows, options

RESULTS = Path(__file__).parent / "results" / "sources.json"
COMMAND = (sys.executable, "-m", "dpswd.private_curator.cli", "records", "convert")
MEASURED = "measurement_id,person_id,measurement_concept_id,measurement_date,value_as_number,unit_concept_id"
LOINC = "http://loinc.org"


def sql(folder: Path, rows: int) -> list[str]:
    generator = np.random.default_rng(0)
    with sqlite3.connect(folder / "h.db") as connection:
        connection.execute(f"CREATE TABLE v (patient text, sick int, {', '.join(f'v{i} real' for i in range(10))})")
        for start in range(0, rows, 10_000):
            values, missing = generator.random((10_000, 10)), generator.random((10_000, 10)) < 0.005
            patients = generator.integers(0, 8 * rows // 10, 10_000)
            connection.executemany(
                f"INSERT INTO v VALUES ({', '.join('?' * 12)})",
                [
                    (
                        f"patient-{patients[i]}",
                        (start + i) % 2,
                        *(None if no else x for x, no in zip(*row, strict=True)),
                    )
                    for i, row in enumerate(zip(values.tolist(), missing.tolist(), strict=True))
                ],
            )
    (folder / "q.sql").write_text("SELECT * FROM v")
    return [str(folder / "q.sql"), "--database", f"sqlite:///{folder / 'h.db'}", "--person", "patient",
            "--labels-array", "sick"]  # fmt: skip


def dicom(folder: Path, images: int) -> list[str]:
    import pydicom
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    pixels = np.random.default_rng(0).integers(0, 4096, (16, 256, 256)).astype(np.uint16)
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = SecondaryCaptureImageStorage
    data.RescaleSlope, data.RescaleIntercept, data.WindowCenter, data.WindowWidth = 1, -1024, 40, 400
    for place in range(images):
        (folder / "scans" / str(place // 50)).mkdir(parents=True, exist_ok=True)
        data.PatientID = f"p{place // 3}"
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
        data.set_pixel_data(pixels[place % 16], "MONOCHROME2", 12)
        data.save_as(folder / "scans" / str(place // 50) / f"{place}.dcm", enforce_file_format=True)
    return [str(folder / "scans"), "--person", "PatientID", "--most", "3"]


def omop(folder: Path, measurements: int) -> list[str]:
    persons = measurements // 10
    tables = {
        "person": ("person_id,gender_concept_id,year_of_birth",
                   (f"{i},{8532 if i % 2 else 8507},{1940 + i % 60}" for i in range(persons))),
        "measurement": (MEASURED,
                        (f"{i},{i * 7919 % persons},{3004249 + i % 4},2020-{1 + i % 12:02}-01,{i % 200},8876"
                         for i in range(measurements))),
        "condition_occurrence": ("person_id,condition_concept_id",
                                 (f"{i * 31 % persons},{201826 + i % 3}" for i in range(measurements // 5))),
    }  # fmt: skip
    (folder / "omop").mkdir()
    for name, (head, rows) in tables.items():
        with (folder / "omop" / f"{name}.csv").open("w") as file:
            file.writelines(f"{line}\n" for line in (head, *rows))
    columns = ",".join(["year_of_birth", "female", *(f"measurement:{3004249 + i}" for i in range(3))])
    return [str(folder / "omop"), "--columns", columns, "--labels-array", "condition:201826", "--missing", "-1"]


def fhir(folder: Path, lines: int) -> list[str]:
    persons = lines // 10
    with (folder / "export.ndjson").open("w") as file:
        for i in range(persons):
            file.write(json.dumps({"resourceType": "Patient", "id": f"p{i}", "birthDate": "1950-01-01"}) + "\n")
        for i in range(lines - persons):
            code = {"coding": [{"system": LOINC, "code": f"{i % 4}-1"}]}
            one = {"resourceType": "Observation", "status": "final", "code": code, "effectiveDateTime": "2020-01-01",
                   "subject": {"reference": f"Patient/p{i * 7919 % persons}"},
                   "valueQuantity": {"value": i % 100, "unit": "mg"}}  # fmt: skip
            file.write(json.dumps(one) + "\n")
    columns = f"year_of_birth,measurement:{LOINC}|0-1,measurement:{LOINC}|1-1"
    return [str(folder / "export.ndjson"), "--columns", columns, "--missing", "-1"]


CASES = {"sql": (sql, 1_000_000), "dicom": (dicom, 10_000), "omop": (omop, 1_000_000), "fhir": (fhir, 1_000_000)}


def measured(name: str, share: float) -> Row:
    """Seconds and megabytes of one conversion."""
    make, size = CASES[name]
    with tempfile.TemporaryDirectory() as directory:
        words = make(Path(directory), max(10_000, int(share * size)) if name != "dicom" else int(share * size))
        began = time.monotonic()
        process = subprocess.Popen([*COMMAND, *words, "--out", f"{directory}/r.npy"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0, name
    return {"took": round(time.monotonic() - began, 1), "megabytes": usage.ru_maxrss // 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the rows and images")
    options(parser, RESULTS)
    asked = parser.parse_args()
    jobs = [({"source": name, "share": asked.share}, functools.partial(measured, name, asked.share)) for name in CASES]
    Rows(RESULTS, asked.results).run(jobs, again=True)


if __name__ == "__main__":
    main()
