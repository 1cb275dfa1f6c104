"""Preflight starts a real worker and lets it try; the kernel's answer is what counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from dpswd.private_curator.sandbox.pool import WorkerPool
from dpswd.private_curator.sandbox.process import WorkerSettings
from dpswd.private_curator.settings.groups import ComputeSettings
from dpswd.private_curator.steps.engines import examine, make_engine
from dpswd.shared.core.errors import SettingsError

CPU = torch.device("cpu")


def test_a_worker_without_network_passes(tmp_path):
    secret = tmp_path / "ledger.key"
    secret.write_text("secret")
    text = examine(make_engine(ComputeSettings(), CPU), secret=secret)
    assert text.startswith("starts and cannot connect, open a socket, write a file, start a program")


def test_a_worker_that_reaches_the_network_is_detected_whatever_it_says(tmp_path):
    program = (sys.executable, "-P", str(Path(__file__).with_name("unconfined_worker.py")))
    settings = WorkerSettings(device="cpu", threads=1, memory_bytes=1 << 28, seconds=60.0, program=program)
    with pytest.raises(SettingsError, match=r"can connect, open a socket, write a file, start a program .*Linux 5\.13"):
        examine(WorkerPool(settings, workers=1), secret=tmp_path)


def test_extraction_in_the_curators_own_process_is_detected(tmp_path):
    engine = make_engine(ComputeSettings(isolation="in-process"), CPU)
    with pytest.raises(SettingsError, match=r"nothing confines; set compute\.isolation to process"):
        examine(engine, secret=tmp_path)
