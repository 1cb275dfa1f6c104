"""`prepare` and `train --release` on a table: two hospitals, one extractor, commands in this process."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from published_site import RECORDS, Site, source

from dpswd.public_client.cli.main import main
from dpswd.shared.protocol.publications import Proposal


class Team:
    """Types commands beside its labelled source, `source.npz`."""

    def __init__(self, directory) -> None:
        records, labels = source()
        np.savez(directory / "source.npz", x=records.numpy(), y=labels.numpy())
        self.directory = directory

    def types(self, *words: object, code: int = 0) -> str:
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    def prepares(self, out: str, *more: object, code: int = 0) -> str:
        own = ("--set", "data.source=source.npz", "--epsilon", 1, "--source-epochs", 2, "--setting", "directions=8")
        own += ("--device", "cpu", "--purpose", "a table", "--out", out, "--format", "json")
        return self.types("prepare", *own, *more, code=code)


@pytest.fixture
def team(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Team(tmp_path)


@pytest.mark.long
def test_two_hospitals_files_are_prepared_and_trained_from(team, tmp_path):
    north, south = Site(tmp_path / "north"), Site(tmp_path / "south", shift=0.6, records=90)
    for site in (north, south):
        (tmp_path / f"{site.directory.name}.json").write_text(json.dumps(site.description().to_json()))
    output = json.loads(team.prepares("north.dpswd", "--description", "north.json"))
    assert (output["records"], output["mechanism"], output["delta"]) == (RECORDS, "quantiles", 1e-5)
    assert 0.9 < output["epsilon"] <= 1.0
    team.prepares("south.dpswd", "--description", "south.json", "--extractor", "north.dpswd")
    one, two = (Proposal.read(tmp_path / f"{name}.dpswd") for name in ("north", "south"))
    assert (one.graph, one.weights, one.purpose) == (two.graph, two.weights, "a table")
    assert two.parameters.batch_size == 90

    words = []
    for site, proposal in ((north, one), (south, two)):
        site.publish(proposal, tmp_path / f"{site.directory.name}-out.dpswd")
        words += ["--release", f"{site.directory.name}={site.directory.name}-out.dpswd", "--key", site.key_file]
    own = ("--set", "data.source=source.npz", "--method", "replay", "--setting", "directions=8")
    own += ("--setting", "tuning_steps=30", "--source-epochs", 2, "--device", "cpu", "--format", "json")
    own += ("--save", "adapted.safetensors")
    report = json.loads(team.types("train", *own, *words))
    assert [(site["site"], site["state"]) for site in report["runs"][0]["sites"]] == [
        ("north", "finished"),
        ("south", "finished"),
    ]
    assert {name: budget["remaining"] for name, budget in report["runs"][0]["budgets"].items()} == {
        "north": 0.0,
        "south": 0.0,
    }
    assert (tmp_path / "adapted-north.safetensors").is_file()
    assert north.spent()[1] == south.spent()[1] == 1

    read = ("--release", tmp_path / "north-out.dpswd", "--key", north.key_file)
    output = team.types("plan", *read, "--setting", "directions=8")
    assert f"replay: 1 step, on all {RECORDS} records" in output
    assert "charged by the hospital when it published; nothing further" in output
    report = json.loads(team.types("plan", *read, "--setting", "directions=8", "--format", "json"))
    assert (report["published"], report["records"]) == (True, RECORDS)
    assert "prepared with other settings" in team.types("plan", *read, code=9)
    wrong = ("plan", "--release", tmp_path / "north-out.dpswd", "--key", south.key_file)
    assert "does not verify" in team.types(*wrong, code=10)
    assert "--release needs --key" in team.types("plan", *read[:2], code=2)
    assert "exclude each other" in team.types("plan", *read, "--curator", "localhost:1", code=2)
    alone = ("plan", *read[2:], "--curator", "localhost:1", "--credentials", tmp_path, "--epsilon", 1)
    assert "the ledger's key for --release" in team.types(*alone, code=2)
    assert "Missing option '--epsilon'" in team.types(
        "plan", "--curator", "localhost:1", "--credentials", tmp_path, code=2
    )

    output = team.types("train", *own[:2], *words[:4], "--method", "rows", "--device", "cpu", code=9)
    assert "prepared with other settings" in output
    output = team.prepares("third.dpswd", "--records", 50, "--extractor", "north-out.dpswd")
    assert json.loads(output)["graph_digest"] == one.parameters.graph_digest


@pytest.mark.long
def test_a_proposal_of_no_described_hospital_is_refused_in_words(team):
    assert "dry_run.records or dry_run.descriptions" in team.prepares("out", code=3)
    assert "is one release; prepare with replay or statistics" in team.prepares(
        "out", "--records", 50, "--method", "all-weights", code=9
    )
    (team.directory / "out").touch()
    assert "nothing is ever overwritten" in team.prepares("out", "--records", 50, code=3)
    assert "is no publication" in team.prepares("new", "--records", 50, "--extractor", "source.npz", code=4)
