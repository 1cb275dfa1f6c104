"""What a team sees of a change of the ledger's key: nothing stops, and every proof from before goes on proving."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from declarations import quantiles
from drawn_steps import new_step, parameters
from made_home import made_home
from serving_here import serving
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpswd import Hospital, adapt
from dpswd.private_curator.cli.main import main
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.public_client.cli.main import main as client
from dpswd.public_client.curator.receipts import read_pinned
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.public_client.ladder.check import check
from dpswd.shared.core.errors import ProtocolError
from dpswd.shared.core.ledger.keys import LedgerKeys

RECORDS = np.random.default_rng(4).normal(size=(400, 5)).astype(np.float32)


def run(program, *arguments: object, status: int = 0) -> str:
    done = CliRunner().invoke(program, list(map(str, arguments)))
    assert done.exit_code == status, (done.output, done.exception)
    return done.output


def rotate(home: HomeDirectory) -> None:
    run(main, "certificates", "--rotate-ledger-key", "once a year, as agreed", "--home", home.path)


def begun(curator: Curator):
    torch.manual_seed(1)
    module = nn.Linear(5, 3)
    graph = trace(module, (5,))
    uploaded = curator.upload_extractor(graph.to_bytes(), weights_to_bytes(module_weights(module, graph)))
    return curator.open_run(parameters(uploaded, quantiles(2, 4.0, directions=10), batch_size=100, steps=6))


def test_a_run_goes_on_over_two_changes_and_its_receipts_verify_by_any_of_the_keys(tmp_path):
    home, folder = made_home(tmp_path, RECORDS), tmp_path / "run"
    run(main, "add", "two", "--out", tmp_path / "before", "--home", home.path)
    old = (tmp_path / "before" / "ledger.pub").read_text()
    shutil.copy(tmp_path / "before" / "ledger.pub", tmp_path / "credentials")
    with (
        serving(home) as address,
        Curator.connect(address, credentials=tmp_path / "credentials", run_directory=folder) as curator,
    ):
        opened = begun(curator)
        curator.send(new_step(opened))
        pending = new_step(opened)
        first = curator.send(pending)
        for _ in range(2):
            rotate(home)
            curator.send(new_step(opened))
        assert curator.send(pending) == first  # its receipt is of the first key
    with serving(home) as address, Curator.connect(address, credentials=tmp_path / "credentials") as again:
        again.send(new_step(opened))
    # The pinned key is the old one; beside it stand the changes that were seen.
    pinned = read_pinned(tmp_path / "credentials" / "ledger.pub")
    assert (pinned.pinned.hex(), len(pinned.changes)) == (old.strip(), 2)
    run(main, "ledger", "export", "--client", "ml-team", "--out", tmp_path / "view", "--home", home.path)
    run(main, "ledger", "export", "--out", tmp_path / "whole", "--home", home.path)
    run(main, "add", "three", "--out", tmp_path / "after", "--home", home.path)
    for name in ("before", "after"):
        for ledger in ("view", "whole"):
            key = tmp_path / name / "ledger.pub"
            (folder / "ledger.pub").unlink(missing_ok=True)
            said = run(
                client, "check", folder, "--key", key, "--ledger", tmp_path / ledger, "--partial", "--credentials",
                tmp_path / name,
            )  # fmt: skip
            assert "5 receipts" in said or "receipts" in said
    # Without the changes nobody is believed.
    (tmp_path / "old.pub").write_text(old)
    assert "not signed by the ledger's key" in run(
        client,
        "check",
        folder,
        "--key",
        tmp_path / "old.pub",
        "--partial",
        "--credentials",
        tmp_path / "none",
        status=13,
    )


def test_a_key_to_which_nothing_leads_is_refused(tmp_path):
    home = made_home(tmp_path, RECORDS)
    (tmp_path / "credentials" / "ledger.pub").write_text("ab" * 32)
    with serving(home) as address, pytest.raises(ProtocolError, match="another key"):
        Curator.connect(address, credentials=tmp_path / "credentials")


def test_a_model_that_was_certified_before_and_one_after_check_under_either_key(tmp_path):
    home = made_home(tmp_path, RECORDS + 1.0)
    before = home.read_ledger().books.keys
    labels = (torch.from_numpy(RECORDS[:, 0]) > 0).long()
    source = DataLoader(TensorDataset(torch.from_numpy(RECORDS), labels), batch_size=64)
    with serving(home) as address:
        for number in (1, 2):
            torch.manual_seed(2)
            model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
            with Hospital.connect(address, credentials=tmp_path / "credentials") as hospital:
                made = adapt(model, source, hospital, epsilon=5.0, seed=1, device="cpu", progress=False)
            made.save(tmp_path / f"{number}.safetensors")
            if number == 1:
                rotate(home)
    keys = home.read_ledger().books.keys
    assert (before.newest, keys.pinned) == (before.pinned, keys.newest)
    for key in (LedgerKeys(before.pinned, keys.changes), keys):
        for number in (1, 2):
            assert check(Path(tmp_path / f"{number}.safetensors"), key=key).findings == []
    assert check(tmp_path / "2.safetensors", key=before.pinned).findings == []  # its evidence shows the change
    assert check(tmp_path / "2.safetensors", key=bytes(31) + b"\1").findings != []
