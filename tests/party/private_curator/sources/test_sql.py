"""A query's rows become records: in SQLite and in PostgreSQL, by a cursor, without a person's number."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing

import numpy as np
import psycopg
import pytest
from click.testing import CliRunner

from dpswd.private_curator.cli.main import main
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.sources import sql

ROWS = [("mueller", 50, 80.5, "yes"), ("weber", 61, None, "no"), ("mueller", 51, 81, "no"), ("koch", 20, 70, None)]
QUERY = "SELECT patient, age, bp, dx FROM visits WHERE dx IS NULL OR dx <> '100% a:b' ORDER BY age DESC;"


def convert(directory, *words, status=0):
    arguments = ["records", "convert", *map(str, words), "--out", str(directory / "r.npy")]
    done = CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == status, (done.output, done.exception)
    return " ".join(done.output.split())


def fill(connection, mark, kind):
    connection.execute(f"CREATE TABLE visits (patient text, age integer, bp {kind}, dx text)")
    connection.cursor().executemany(f"INSERT INTO visits VALUES ({mark}, {mark}, {mark}, {mark})", ROWS)
    connection.commit()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    """Its address, and the words of a secret in it."""
    if request.param == "sqlite":
        with closing(sqlite3.connect(tmp_path / "h.db")) as connection:
            fill(connection, "?", "real")
        yield f"sqlite:///{tmp_path / 'h.db'}"
        return
    server = request.getfixturevalue("postgres")
    address = server.url(tcp=True, sslmode="require").replace("@", f":{server.password}@")
    with psycopg.connect(address) as connection:
        fill(connection, "%s", "numeric(6, 2)")
    yield address
    with psycopg.connect(address) as connection:
        connection.execute("DROP TABLE visits")


@pytest.fixture
def query(tmp_path):
    path = tmp_path / "q.sql"
    path.write_text(QUERY)
    return path


def test_rows_become_records_and_what_is_lost_is_counted(database, query, tmp_path):
    words = convert(tmp_path, query, "--database", database, "--columns", "age,bp", "--person", "patient")
    assert np.load(tmp_path / "r.npy").tolist() == [[51.0, 81.0], [20.0, 70.0]]
    assert "1 missing values of bp, 1 rows left out for a missing value, 1 further rows of a person" in words


def test_the_query_stands_in_the_notes_and_no_person_or_password_in_any_file(database, query, tmp_path):
    options = ("--labels-array", "dx", "--person", "patient", "--missing", -1, "--unlabelled", "unknown")
    convert(tmp_path, query, "--database", database, *options)
    assert np.load(tmp_path / "r.npy").tolist() == [[61.0, -1.0], [51.0, 81.0], [20.0, 70.0]]
    assert np.load(tmp_path / "r.labels.npy").tolist() == [0, 0, -1]
    notes = json.loads((tmp_path / "r.notes.json").read_text())
    assert notes["query"] == QUERY.rstrip(";")
    assert notes["query_sha256"] == hashlib.sha256(notes["query"].encode()).hexdigest()
    assert notes["lost"] == {"missing values of bp": 1, "further rows of a person": 1}
    assert notes["columns"] == ["age", "bp"]
    for file in tmp_path.glob("r.*"):
        assert file.stat().st_mode & 0o777 == 0o600
        assert not any(name.encode() in file.read_bytes() for name in ("mueller", "weber", "koch"))
        assert ":".join(database.split("@")[0].split(":")[2:]).encode() not in file.read_bytes() or "@" not in database


def test_errors_hold_no_value(database, query, tmp_path):
    query.write_text("SELECT age, CAST('geheim' || age AS integer) / 0 AS x, patient AS y FROM visits")
    words = convert(tmp_path, query, "--database", database, status=4)
    assert not any(secret in words for secret in ("geheim", "mueller", "weber", "koch"))
    query.write_text("SELECT age, patient FROM visits")
    words = convert(tmp_path, query, "--database", database, status=4)
    assert "column 'patient' holds str" in words
    assert "mueller" not in words
    query.write_text("SELEC age")
    assert "the database refuses (" in convert(tmp_path, query, "--database", database, status=4)
    assert not list(tmp_path.glob("r.*"))


def test_a_query_changes_nothing(database, query, tmp_path):
    query.write_text("DELETE FROM visits RETURNING age, bp")
    convert(tmp_path, query, "--database", database, status=4)
    query.write_text("SELECT count(*) AS n, 1 AS one FROM visits UNION ALL SELECT 0, 0")
    convert(tmp_path, query, "--database", database)
    assert sorted(np.load(tmp_path / "r.npy").tolist()) == [[0.0, 0.0], [4.0, 1.0]]


def test_colons_and_signs_of_a_database_are_left_alone(postgres, query, tmp_path):
    address = postgres.url(tcp=True, sslmode="require").replace("@", f":{postgres.password}@")
    query.write_text("SELECT 7.5::int AS a, ':b' = ':' || 'b' AND 10 % 3 = 1 AS b FROM generate_series(1, 2)")
    convert(tmp_path, query, "--database", address)
    assert np.load(tmp_path / "r.npy").tolist() == [[8.0, 1.0], [8.0, 1.0]]


def test_an_address_in_the_environment_is_for_queries_alone(query, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSWD_CURATOR_DATABASE", "sqlite://")
    (tmp_path / "r.csv").write_text("a,b\n1,2\n3,4\n")
    convert(tmp_path, tmp_path / "r.csv")
    assert np.load(tmp_path / "r.npy").tolist() == [[1.0, 2.0], [3.0, 4.0]]
    query.write_text("SELECT 1 AS a, 2 AS b UNION ALL SELECT 3, 4")
    (tmp_path / "q").mkdir()
    convert(tmp_path / "q", query)
    assert (tmp_path / "q" / "r.npy").read_bytes() == (tmp_path / "r.npy").read_bytes()
    (tmp_path / "e").mkdir()
    convert(tmp_path / "e", "--example")
    assert len(np.load(tmp_path / "e" / "r.npy")) == 898


def test_rows_come_by_a_cursor_and_every_call_begins_anew(database, query, tmp_path, monkeypatch):
    query.write_text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 25) SELECT i FROM n")
    monkeypatch.setattr(sql, "_ROWS", 10)
    source = sql.query_source(query, database, RecordsSettings(file=query), missing=None, person=None, most=1)
    for _ in range(2):
        assert [len(batch.records) for batch in source.batches()] == [10, 10, 5]


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--database", "nothing"), "--database is no address"),
     (("--database", "mysql+nodriver://h/d"), "--database is no address"),
     (("--database", "sqlite://", "--columns", "a,c"), "no column, or several, for 'c'"),
     (("--database", "sqlite://", "--columns", "a", "--person", "a"), "each column serves once"),
     ((), "a query needs --database"),
     (("--database", "sqlite://", "--most", "2"), "name the column that tells persons apart with --person")],
)  # fmt: skip
def test_what_cannot_be_asked(query, tmp_path, options, words):
    query.write_text("SELECT 1 AS a, 2 AS b")
    status = 4 if "--columns" in options else 3
    assert words in convert(tmp_path, query, *options, status=status)
