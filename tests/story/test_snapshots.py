"""A snapshot of a whole curator is put back: its clients' receipts notice before anything is charged again."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from declarations import quantiles
from made_home import copied_home, made_home
from raw_client import RawClient
from serving_here import serving
from torch import nn

from dpswd.public_client.curator.stub import Curator
from dpswd.shared.core import errors
from dpswd.shared.core.wire.messages import RunParameters

ACCEPTED = "The snapshot of 3 May was put back by mistake; the budget was lowered, minutes of 5 May."


@pytest.fixture
def site(tmp_path):
    """A curator's home with a client's credentials."""
    return made_home(tmp_path, np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32))


def charged(address, credentials, runs):
    """One run of one step; its receipts stay in `runs`."""
    torch.manual_seed(1)
    name, declaration = quantiles(2, 5.0, directions=10)
    with RawClient(address, credentials=credentials) as raw:
        uploaded = raw.upload(nn.Linear(5, 4))
    parameters = RunParameters(**uploaded, mechanism=name, declaration=declaration.to_bytes(), batch_size=20, steps=1)
    with Curator.connect(address, credentials=credentials, run_directory=runs) as curator:
        curator.open_run(parameters)


@pytest.mark.long
def test_a_client_s_receipts_stop_a_curator_that_was_put_back(site, tmp_path, caplog):
    """Attack: home, ledger and witness of yesterday; epsilon spent fell from 2.387 to 1.294 without a word."""
    credentials, runs = tmp_path / "credentials", tmp_path / "runs"
    shutil.copytree(site.path, tmp_path / "snapshot")
    with serving(site) as address:
        charged(address, credentials, runs)
    shutil.rmtree(site.path)
    shutil.copytree(tmp_path / "snapshot", site.path)
    with pytest.raises(errors.SettingsError, match="states another place"):
        site.open_ledger()
    with site.open_ledger(here=False) as ledger:
        ledger.move(reason="a machine's snapshot keeps the place, and a test's does not")
    with serving(site) as address:
        with pytest.raises(errors.LedgerCorrupt, match="call the operator"):
            Curator.connect(address, credentials=credentials, run_directory=runs)
        assert "put back to an older state" in caplog.text
        assert "accept this state in writing" in caplog.text
        with pytest.raises(errors.LedgerCorrupt, match="call the operator"):  # nobody is charged, receipts or not
            charged(address, credentials, tmp_path / "others")
    with pytest.raises(errors.LedgerCorrupt, match=r"lacks entry \d"):
        site.open_ledger()
    site.accept_ledger(reason=ACCEPTED)
    with serving(site) as address:
        charged(address, credentials, runs)
    with site.open_ledger() as ledger:
        assert ledger.status().runs == 1


@pytest.mark.long
def test_a_copy_that_served_is_counted_and_the_original_goes_on(site, tmp_path):
    """Attack: a client kept a receipt of a served copy, which stopped the original for good."""
    credentials, runs = tmp_path / "credentials", tmp_path / "runs"
    copy = copied_home(site, tmp_path / "copy")
    with serving(copy) as address:
        charged(address, credentials, runs)
    with serving(site) as address, pytest.raises(errors.LedgerCorrupt, match="call the operator"):
        Curator.connect(address, credentials=credentials, run_directory=runs)
    with pytest.raises(errors.LedgerCorrupt, match="lacks entry"):
        site.open_ledger()
    with copy.open_ledger() as ledger:
        entries, released = list(ledger.history()), ledger.status().data_set.epsilon_spent
    assert site.accept_ledger(reason=ACCEPTED, receipts=entries) == 1
    with site.open_ledger() as ledger:
        assert ledger.status().data_set.epsilon_spent == pytest.approx(released)
        assert ledger.verify().ok
    with serving(site) as address:
        charged(address, credentials, runs)
    with site.open_ledger() as ledger:
        assert ledger.status().data_set.runs == 2


def test_a_forged_or_foreign_receipt_changes_nothing(site, tmp_path):
    credentials, runs = tmp_path / "credentials", tmp_path / "runs"
    with serving(site) as address:
        charged(address, credentials, runs)
        file = runs / "receipts.jsonl"
        genuine = file.read_text(encoding="ascii")
        forged = genuine.replace('\\"seq\\":4', '\\"seq\\":900')
        assert forged != genuine
        file.write_text(forged, encoding="ascii")
        with Curator.connect(address, credentials=credentials, run_directory=runs) as curator:
            assert curator.describe().records == 60
        charged(address, credentials, tmp_path / "others")
