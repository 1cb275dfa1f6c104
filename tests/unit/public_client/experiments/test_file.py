"""Experiment files: what is wrong is named by its path, options replace keys, defaults print and read back."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.cli.main import main
from dpswd.public_client.experiments.file import read_experiment
from dpswd.shared.core.errors import SettingsError

EXAMPLE = Path(__file__).parents[4] / "docs" / "ml-team" / "two-hospitals.toml"


def write(tmp_path, text, name="exp.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def invoke(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_the_annotated_example_is_valid_and_names_two_curators():
    example = read_experiment(EXAMPLE)
    assert [curator.name for curator in example.curators] == ["north", "south"]
    assert example.curators[0].credentials == EXAMPLE.parent / "credentials/north"
    assert example.output.save == EXAMPLE.parent / "results/adapted.safetensors"


def test_toml_and_yaml_say_the_same(tmp_path):
    toml = write(tmp_path, "seeds = [0, 1]\n[privacy]\nepsilon = 0.5\nsteps = 40\n[data]\ntask = 'mnist-usps'\n")
    yaml = write(tmp_path, "seeds: [0, 1]\nprivacy: {epsilon: 0.5, steps: 40}\ndata: {task: mnist-usps}\n", "exp.yaml")
    assert read_experiment(toml) == read_experiment(yaml)
    assert read_experiment(toml).privacy.wishes() == {"epsilon": 0.5, "steps": 40}


def test_the_printed_experiment_reads_back_to_itself(tmp_path):
    path = write(tmp_path, "[privacy]\nepsilon = 0.5\n[method]\nname = 'all-weights'\n")
    printed = invoke(
        "train", "--experiment", path, "--seed", 3, "--set", "method.settings.clip_norm=2", "--print-experiment"
    )
    assert printed.exit_code == 0, printed.output
    again = read_experiment(write(tmp_path, printed.stdout, "again.yaml"))
    assert again == read_experiment(path, {"seeds": [3], "method.settings.clip_norm": 2})
    assert again.privacy.epsilon == 0.5


def test_options_replace_keys_and_defaults_do_not(tmp_path):
    path = write(tmp_path, "device = 'cpu'\n[privacy]\nepsilon = 0.5\n[method.settings]\ndirections = 7\n")
    printed = read_experiment(
        write(tmp_path, invoke("train", "--experiment", path, "--epsilon", 2, "--print-experiment").stdout, "p.yaml")
    )
    assert (printed.privacy.epsilon, printed.method.settings, printed.device) == (2.0, {"directions": 7}, "cpu")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[privacy]\nepsilonn = 1", r"privacy.epsilonn is unknown; did you mean epsilon\? allowed: epsilon, delta"),
        ("[privacy]\nepsilon = -1", r"privacy.epsilon: input should be greater than 0 \(given: -1\)"),
        ("[privacy]\nepsilon = nan", "privacy.epsilon: input should be a finite number|greater than 0"),
        ("[data]\ngeometry = 'round'", r"data.geometry: input should be 'stretched' .* \(given: 'round'\)"),
        ("[[curators]]\naddress = 'north'", "curators.0.address: .*; curators.0.credentials is missing"),
        ("seeds = []", "seeds: "),
        ("[output]\nresume = true", "output.resume needs output.checkpoint"),
        ("seeds = [1, 2]\n[output]\ncheckpoint = 'run'", "give one seed"),
        (
            "[[curators]]\nname='a'\naddress='x:1'\ncredentials='c'\n[[curators]]\nname='a'\naddress='y:1'\ncredentials='c'",
            "curators: have the names a, a; each must be given once",
        ),
        ("x = [", "exp.toml is not valid TOML"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(tmp_path, text, says):
    path = write(tmp_path, text)
    with pytest.raises(SettingsError, match=says):
        read_experiment(path)
    result = invoke("train", "--experiment", path)
    assert result.exit_code == 3
    assert len(result.stderr.strip().splitlines()) == 1


def test_files_that_are_no_experiments(tmp_path):
    with pytest.raises(SettingsError, match=r"must end in \.toml"):
        read_experiment(write(tmp_path, "{}", "exp.json"))
    with pytest.raises(SettingsError, match="not valid YAML"):
        read_experiment(write(tmp_path, "a: [", "exp.yml"))
    with pytest.raises(SettingsError, match="no keys at its top"):
        read_experiment(write(tmp_path, "- a\n- b", "exp.yaml"))
    with pytest.raises(SettingsError, match="cannot be read"):
        read_experiment(tmp_path / "none.toml")
    with pytest.raises(SettingsError, match="holds a value, no section"):
        read_experiment(None, {"name": "x", "name.inner": 1})


def test_every_wish_of_the_privacy_section_is_an_argument_of_a_plan():
    everything = {"privacy.epsilon": 1.0, "privacy.steps": 3, "privacy.batch_size": 20}
    assert set(read_experiment(None, everything).privacy.wishes()) == {"epsilon", "steps", "batch_size"}
    assert set(read_experiment(None, everything).privacy.wishes()) <= set(signature(Hospital.plan).parameters)


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("statistics", "prior = 'wavelet'", "prior is 'wavelet'; allowed: source, none"),
        ("all-weights", "clip = 2.0", "all-weights has no clip; its settings are alignment_weight, averaging"),
        ("all-weights", "directions = 1.5", "directions is 1.5; it must be a whole number of at least 1"),
    ],
)
def test_a_methods_settings_are_checked_before_anything_is_trained(tmp_path, method, settings, says):
    path = write(tmp_path, f"[method]\nname = '{method}'\n[method.settings]\n{settings}\n")
    result = invoke("train", "--experiment", path)
    assert result.exit_code == 9
    assert says in result.stderr


def test_the_schema_describes_every_key():
    schema = json.loads(invoke("train", "--print-schema").stdout)
    for name, definition in schema["$defs"].items():
        for key, value in definition["properties"].items():
            assert value.get("description"), f"{name}.{key} has no description"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--curator", "a:1", "--curator", "b:2", "--credentials", "c"], "belong together"),
        (["--set", "epsilon"], "KEY=VALUE"),
        (["--method", "magic"], "there is no method 'magic'; allowed: ladder, source-only, control, replay"),
        (["--method", "pseudolabels"], "did you mean 'pseudo-labels'"),
        (["--method", "replay", "--evaluate-epsilon", "0.1"], "replay compares nothing; leave the method out"),
    ],
)
def test_wrong_options_are_one_sentence(words, says):
    result = invoke("train", *words)
    assert result.exit_code in (3, 9)
    assert says in result.stderr
