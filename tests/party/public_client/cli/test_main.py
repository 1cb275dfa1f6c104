from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from cryptography import x509

from dpswd.public_client.cli.main import _COMMANDS, _EXIT_CODES, main
from dpswd.shared.core import errors


def invoke(*arguments):
    return CliRunner().invoke(main, list(arguments))


def test_a_wrong_value_is_one_sentence_and_an_exit_code():
    result = invoke("audit", "nothing.safetensors", "--key", "nowhere.pub")
    assert result.exit_code == 3
    assert result.stderr.startswith("dpswd-client: nothing.safetensors holds no receipts.jsonl")
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_want_is_answered_from_results_and_costs_nothing(serve):
    there = serve(classes=2)
    asked = ["plan", "--curator", there.address, "--credentials", str(there.credentials), "--want", "accuracy +2"]
    said = json.loads(invoke(*asked, "--format", "json").stdout)
    assert said["want"] == "accuracy +2"
    assert "accuracy +2" in invoke(*asked).stdout
    both = invoke(*asked, "--epsilon", "1")
    assert both.exit_code == 2
    assert "leave --epsilon" in both.stderr


def test_describe_and_plan_read_a_curator(served):
    there = ["--curator", served.address, "--credentials", str(served.credentials)]
    described = json.loads(invoke("describe", *there, "--format", "json").stdout)
    assert described["records"] == 1000
    assert "1000 records" in invoke("describe", *there).stdout
    plan = json.loads(
        invoke("plan", *there, "--epsilon", "2", "--batch", "100", "--steps", "30", "--features", "96",
               "--adapted", "90", "--method", "all-weights", "--format", "json").stdout
    )  # fmt: skip
    assert (plan["batch_size"], plan["steps"], plan["fits"]) == (100, 30, True)
    assert plan["noise"] > 0
    assert plan["method"]["name"] == "all-weights"
    assert served.curator.spent == 0
    ladder = invoke("plan", *there, "--epsilon", "2").stdout
    assert ladder.splitlines()[0].startswith("Recommended for ")
    assert ", because " in ladder.splitlines()[0]
    assert "does NOT fit" not in ladder
    sized = invoke("plan", *there, "--epsilon", "2", "--steps", "3")
    assert (sized.exit_code, "the ladder sizes its runs itself; --steps needs a --method" in sized.stderr) == (2, True)
    replayed = ("--method", "replay", "--setting", "directions=20")
    for words in ((), replayed):
        refused = invoke("plan", *there, "--epsilon", "6", *words)
        assert "does NOT fit" in refused.stdout
        assert refused.exit_code == 8
    asked = invoke("plan", *there, "--epsilon", "2", *replayed, "--ask").stdout
    assert "the curator would admit it now" in asked
    assert "noise" in asked
    assert served.curator.spent == 0


def test_several_hospitals_are_planned_for_by_name_as_they_are_trained_for(serve):
    north, south = serve(), serve(epsilon=1.0)
    each = [word for name, one in (("north", north), ("south", south)) for word in
            ("--curator", f"{name}={one.address}", "--credentials", str(one.credentials))]  # fmt: skip
    planned = invoke("plan", *each, "--epsilon", "2")
    assert [line.split(":")[0] for line in planned.stdout.splitlines() if line.startswith("Recommended")] == [
        "Recommended for north", "Recommended for south",
    ]  # fmt: skip
    assert (planned.exit_code, planned.stdout.count("does NOT fit")) == (8, 1)
    values = json.loads(invoke("plan", *each, "--epsilon", "0.5", "--format", "json").stdout)
    assert {name: value["fits"] for name, value in values.items()} == {"north": True, "south": True}
    for words, said in (
        (("--method", "replay"), "give one --curator"),
        (("--curator", "third=localhost:1"), "--curator is given 3 times and --credentials 2 times"),
    ):
        assert said in invoke("plan", *each, "--epsilon", "1", *words).stderr
    assert invoke("plan", *each[:4], "--epsilon", "0.5", "--method", "replay").exit_code == 0
    assert north.curator.spent + south.curator.spent == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--appended"], "--appended and --then are of --every"),
        (["--then", "again.toml"], "--appended and --then are of --every"),
        (["--every", "90"], "--every needs a --directory of its own"),
        (["--every", "0"], "Invalid value for '--every'"),
    ],
)
def test_a_watch_without_its_options_is_refused_before_anybody_is_asked(tmp_path, words, said):
    model = tmp_path / "model.safetensors"
    model.touch()
    there = ["--curator", "localhost:1", "--credentials", str(tmp_path)]
    result = invoke("evaluate", str(model), *there, "--epsilon", "0.1", *words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_an_unreachable_curator_has_its_own_exit_code(certificates, monkeypatch):
    monkeypatch.setenv("DPSWD_CLIENT_CONNECTION__PATIENCE_SECONDS", "1")
    result = invoke("describe", "--curator", "localhost:1", "--credentials", str(certificates))
    assert result.exit_code == 11
    assert "no curator answers at localhost:1" in result.stderr


def test_credentials_without_a_curator_are_refused(certificates):
    result = invoke("train", "--credentials", str(certificates))
    assert result.exit_code == 3
    assert "belong together" in result.stderr


def test_init_makes_a_key_that_stays_and_a_request_that_goes(tmp_path):
    made = json.loads(invoke("init", "ml-team", "--out", str(tmp_path / "mine"), "--format", "json").stdout)
    request = x509.load_pem_x509_csr((tmp_path / "mine" / "client.csr").read_bytes())
    assert request.subject.rfc4514_string() == "CN=ml-team"
    assert request.is_signature_valid
    assert (tmp_path / "mine" / "client.key").stat().st_mode & 0o777 == 0o600
    assert made["request"].endswith("client.csr")
    again = invoke("init", "ml-team", "--out", str(tmp_path / "mine"))
    assert again.exit_code == 3
    assert "not overwritten" in again.stderr


@pytest.mark.parametrize("command", list(_COMMANDS))
def test_every_command_explains_itself(command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_help_lists_every_command_once_by_how_often_it_is_typed():
    text = invoke("--help").output
    assert sorted(name for names in main.sections.values() for name in names) == sorted(_COMMANDS)
    assert all(f"{title}:" in text for title in main.sections)


def test_trains_first_page_is_short_and_the_second_has_everything():
    first, second = invoke("train", "--help").output, invoke("train", "--help-all").output
    train = main.get_command(click.Context(main), "train")
    options = [each for each in train.params if isinstance(each, click.Option)]
    assert sum(not each.hidden for each in options) < 20 < len(options)
    shown = set(re.findall(r"^  (--[a-z-]+)", first, re.MULTILINE))
    assert {"--curator", "--epsilon", "--save"} <= shown
    assert all(option.opts[0] in second for option in options)
    assert "--source-epochs" not in first
    assert invoke("train", "--help").output == first  # looking at all changes nothing


def test_small_commands_do_not_load_torch():
    script = (
        "import sys\nfrom click.testing import CliRunner\nfrom dpswd.public_client.cli.main import main\n"
        "result = CliRunner().invoke(main, ['settings'])\n"
        "assert result.exit_code == 0, result.output\n"
        "assert not {'torch', 'grpc'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_page_lists_every_exit_code():
    page = (Path(__file__).parents[4] / "docs" / "exit-codes.md").read_text()
    rows = [line.split("|")[1:4] for line in page.splitlines() if line.startswith("| [")]
    listed = {int(re.findall(r"\d+", code)[0]) for code, _, client in rows if client.strip()}
    assert listed == {code for _, code in _EXIT_CODES} | {0, 1, 2, 13, 130}


def test_every_deliberate_error_has_an_exit_code():
    kinds, seen = [errors.DpswdError], []
    while kinds:
        kind = kinds.pop()
        seen.append(kind)
        kinds += kind.__subclasses__()
    assert len(seen) > 20
    for kind in seen:
        assert next(code for base, code in _EXIT_CODES if issubclass(kind, base)) >= 3


def test_a_defect_is_one_sentence(monkeypatch):
    monkeypatch.setitem(_COMMANDS, "describe", ("dpswd.public_client.no_such_module", "describe"))
    monkeypatch.delenv("DPSWD_TRACEBACK", raising=False)
    result = invoke("describe")
    assert result.exit_code == 1
    assert result.stderr.startswith("dpswd-client: a defect, please report it (ModuleNotFoundError")
