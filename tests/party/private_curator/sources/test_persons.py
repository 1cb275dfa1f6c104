"""One row a person, the same from an OMOP extract in CSV and in Parquet, an OMOP database, and FHIR."""

from __future__ import annotations

import datetime as dt
import gzip
import json

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dpswd.private_curator.cli.main import main

DATE = dt.date
PERSON = [(7, 1950, 8532), (3, 1961, 8507), (9, 2001, 8507), (12, 1970, 0)]
MEASUREMENT = [  # id, person, concept, date, value, unit
    (1, 7, 3004249, DATE(2020, 1, 1), 120.0, 8876), (2, 7, 3004249, DATE(2021, 1, 1), 130.0, 8876),
    (3, 3, 3004249, DATE(2020, 5, 1), 140.0, 8876), (4, 3, 3004249, DATE(2020, 5, 1), 141.0, 8876),
    (5, 3, 3004249, DATE(2022, 1, 1), None, 8876), (6, 9, 3000963, DATE(2020, 1, 1), 13.5, 8713),
    (7, 3, 3000963, DATE(2020, 1, 1), 8.4, 8753), (8, 12, 3004249, DATE(2020, 1, 1), 110.0, 0),
    (9, 99, 3004249, DATE(2020, 1, 1), 1.0, 8876),
]  # fmt: skip
CONDITION = [(7, 201826), (7, 201826), (12, 201826), (3, 4329847)]
COLUMNS = {
    "person": ["person_id", "year_of_birth", "gender_concept_id"],
    "measurement": ["measurement_id", "person_id", "measurement_concept_id", "measurement_date", "value_as_number",
                    "unit_concept_id"],
    "condition_occurrence": ["person_id", "condition_concept_id"],
}  # fmt: skip
ROWS = {"person": PERSON, "measurement": MEASUREMENT, "condition_occurrence": CONDITION}
WANT = ("--columns", "year_of_birth,measurement:3004249", "--labels-array", "condition:201826")


def convert(directory, *words, status=0):
    arguments = ["records", "convert", *map(str, words), "--out", str(directory / "r.npy")]
    done = CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == status, (done.output, done.exception)
    return " ".join(done.output.split())


def results(directory):
    labels = directory / "r.labels.npy"
    return np.load(directory / "r.npy").tolist(), np.load(labels).tolist() if labels.exists() else None


@pytest.fixture(params=["csv", "csv.gz", "tsv", "parquet"])
def extract(request, tmp_path):
    """With a column that nobody asks for, in which names stand; names of columns in upper case, as some write them."""
    folder = tmp_path / "omop"
    folder.mkdir()
    for table, rows in ROWS.items():
        path = folder / f"{table.upper()}.{request.param}"
        names = [*(name.upper() for name in COLUMNS[table]), f"{table}_SOURCE_VALUE"]
        full = [(*row, 'Müller, "Eva"') for row in rows]
        if request.param == "parquet":
            pq.write_table(pa.table(dict(zip(names, zip(*full, strict=True), strict=True))), path)
            continue
        mark = "\t" if request.param == "tsv" else ","
        cells = [["" if each is None else str(each) for each in row[:-1]] + ['"Müller, ""Eva"""'] for row in full]
        text = "\n".join(mark.join(row) for row in [names, *cells])
        path.write_bytes(gzip.compress(text.encode()) if request.param == "csv.gz" else text.encode())
    return folder


def test_a_row_is_a_person_in_the_order_of_their_numbers(extract, tmp_path):
    words = convert(tmp_path, extract, *WANT)
    expected = [[1961.0, 141.0], [1950.0, 130.0], [1970.0, 110.0]]  # 3, 7 and 12; 9 was never measured
    assert results(tmp_path) == (expected, [0, 1, 1])
    for lost in ("1 measurements without a number", "1 measurements of nobody in person", "1 rows left out"):
        assert lost in words
    notes = json.loads((tmp_path / "r.notes.json").read_text())
    assert "row_number() OVER (PARTITION BY measurement.person_id" in notes["query"]
    assert not any("Müller" in file.read_text("utf-8", "replace") for file in tmp_path.glob("r.*"))


def test_what_is_missing_gets_the_number_that_is_declared(extract, tmp_path):
    words = convert(
        tmp_path, extract, "--columns", "female,measurement:3000963@8713,condition:4329847", "--missing", -1
    )
    assert results(tmp_path)[0] == [[0.0, -1.0, 1.0], [1.0, -1.0, 0.0], [0.0, 13.5, 0.0], [-1.0, -1.0, 0.0]]
    assert "1 measurements in another unit" in words


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [(("--columns", "measurement:3000963"), 4, "was made in several units; write measurement:3000963@UNIT"),
     ((), 4, "(found: 'measurement:3004249', 'measurement:3000963', 'condition:201826', 'condition:4329847')"),
     (("--columns", "age"), 3, "names 'age'; a person's row may hold year_of_birth, female, measurement:CODE"),
     (("--columns", "measurement:abc"), 3, "concepts, which are whole numbers"),
     (("--columns", "measurement:1,female"), 4, "no row becomes a record ("),
     (("--columns", "female", "--person", "person_id"), 3, "leave out --person and --most")],
)  # fmt: skip
def test_what_cannot_be_flattened(extract, tmp_path, options, status, words):
    assert words in convert(tmp_path, extract, *options, status=status)


def test_a_person_that_comes_again_is_one_row(tmp_path):
    folder = tmp_path / "omop"
    folder.mkdir()
    (folder / "person.csv").write_text(
        "person_id,year_of_birth,gender_concept_id\n1,1950,8532\n2,1960,8507\n1,1950,8532\n"
    )
    assert "1 persons that came again" in convert(tmp_path, folder, "--columns", "year_of_birth,female")
    assert results(tmp_path)[0] == [[1950.0, 1.0], [1960.0, 0.0]]
    (tmp_path / "again").mkdir()
    words = convert(tmp_path / "again", folder, "--columns", "condition:1", status=4)
    assert "has no table condition_occurrence; needed is a file condition_occurrence.csv" in words


def test_a_damaged_table_is_refused_without_its_values(tmp_path):
    folder = tmp_path / "omop"
    folder.mkdir()
    (folder / "person.csv").write_text("person_id,year_of_birth,gender_concept_id\nWeber,1950,8532\n")
    words = convert(tmp_path, folder, "--columns", "female", status=4)
    assert "person.csv cannot be read (ArrowInvalid)" in words
    assert "Weber" not in words
    (folder / "person.csv").write_text("person_id,year_of_birth\n1,1950\n")
    assert "person.csv has no column 'gender_concept_id'" in convert(tmp_path, folder, "--columns", "female", status=4)


def test_a_database_of_omop_gives_the_same(postgres, tmp_path):
    address = postgres.url(tcp=True, sslmode="require").replace("@", f":{postgres.password}@")
    with psycopg.connect(address) as connection:
        connection.execute("CREATE SCHEMA cdm")
        connection.execute("CREATE TABLE cdm.person (person_id int, year_of_birth int, gender_concept_id int)")
        connection.execute(
            "CREATE TABLE cdm.measurement (measurement_id int, person_id int, measurement_concept_id int, "
            "measurement_date date, value_as_number numeric, unit_concept_id int)"
        )
        connection.execute("CREATE TABLE cdm.condition_occurrence (person_id int, condition_concept_id int)")
        for table, rows in ROWS.items():
            marks = ", ".join(["%s"] * len(rows[0]))
            connection.cursor().executemany(f"INSERT INTO cdm.{table} VALUES ({marks})", rows)
    convert(tmp_path, "--database", f"{address}&options=-csearch_path%3Dcdm", *WANT)
    assert results(tmp_path) == ([[1961.0, 141.0], [1950.0, 130.0], [1970.0, 110.0]], [0, 1, 1])


LOINC, SNOMED = "http://loinc.org", "http://snomed.info/sct"


def resources():
    """The same persons as FHIR writes them."""
    genders = {8532: "female", 8507: "male", 0: "unknown"}
    for number, year, gender in PERSON:
        name = [{"family": "Müller", "given": ["Eva"]}]
        born = {"birthDate": f"{year}-05-01", "gender": genders[gender]}
        yield {"resourceType": "Patient", "id": f"p{number:02}", "name": name, **born}
    for number, person, concept, date, value, unit in MEASUREMENT:
        quantity = {} if value is None else {"valueQuantity": {"value": value, "code": str(unit) if unit else None}}
        yield {"resourceType": "Observation", "id": str(number), "status": "final", "effectiveDateTime": str(date),
               "code": {"coding": [{"system": LOINC, "code": str(concept)}, {"system": "x", "code": "y"}]},
               "subject": {"reference": f"Patient/p{person:02}"}, **quantity}  # fmt: skip
    for person, concept in CONDITION:
        yield {"resourceType": "Condition", "code": {"coding": [{"system": SNOMED, "code": str(concept)}]},
               "subject": {"reference": f"urn:uuid:p{person:02}/_history/3"}}  # fmt: skip


FHIR = ("--columns", f"year_of_birth,measurement:{LOINC}|3004249", "--labels-array", f"condition:{SNOMED}|201826")


@pytest.mark.parametrize("form", ["lines", "bundle", "folder"])
def test_fhir_gives_the_same(tmp_path, form):
    made = list(resources())
    wrong = [
        "{not json", json.dumps({"resourceType": "Patient", "id": 5}), json.dumps({"resourceType": "Encounter"}),
        json.dumps({**made[4], "status": "entered-in-error"}),
    ]  # fmt: skip
    lines = [json.dumps(each) for each in made]
    if form == "bundle":
        lines = [json.dumps({"resourceType": "Bundle", "entry": [{"resource": each} for each in made]})]
    path = tmp_path / "export.ndjson"
    if form == "folder":
        path = tmp_path / "export"
        path.mkdir()
        for place, line in enumerate(lines[::-1]):  # conditions before patients
            (path / f"{place % 3}.ndjson").open("a").write(line + "\n")
        (path / "wrong.ndjson").write_text("\n".join(wrong))
    else:
        path.write_text("\n".join([*lines, *wrong]))
    words = convert(tmp_path, path, *FHIR)
    assert results(tmp_path) == (
        [[1961.0, 140.0 if form == "folder" else 141.0], [1950.0, 130.0], [1970.0, 110.0]],
        [0, 1, 1],
    )
    for lost in (
        "1 lines that are no resource",
        "1 resources that are no valid Patient",
        "1 resources that were withdrawn",
    ):
        assert lost in words
    assert not any("Müller" in file.read_text("utf-8", "replace") for file in tmp_path.glob("r.*"))


def test_the_parts_of_an_observation_are_measurements(tmp_path):
    pressure = {
        "resourceType": "Observation", "status": "final", "subject": {"reference": "Patient/1"}, "code": {},
        "component": [
            {"code": {"coding": [{"system": LOINC, "code": code}]}, "valueQuantity": {"value": value, "unit": "mmHg"}}
            for code, value in (("8480-6", 120), ("8462-4", 80))
        ],
    }  # fmt: skip
    patients = [{"resourceType": "Patient", "id": str(number)} for number in (1, 2)]
    path = tmp_path / "e.ndjson"
    path.write_text("\n".join(map(json.dumps, [pressure, *patients])))
    columns = f"measurement:{LOINC}|8480-6@mmHg,measurement:{LOINC}|8462-4"
    convert(tmp_path, path, "--columns", columns, "--missing", 0)
    assert results(tmp_path)[0] == [[120.0, 80.0], [0.0, 0.0]]
