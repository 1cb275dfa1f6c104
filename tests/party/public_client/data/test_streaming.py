"""Source training from a stream holds a batch, and the records that the method asks for; never the stream."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("streaming_training.py")
ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.usefixtures("true_starts")  # of a forked process, pages that are touched anew count as its growth
@pytest.mark.parametrize("records", [200_000, pytest.param(1_000_000, marks=pytest.mark.exhaustive)])
def test_many_records_are_trained_on_and_not_held(records):
    """They are 49 or 244 MiB; the process grows by less than a tenth of the larger beside a training on 40,000."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(records)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    grown, accuracy = done.stdout.split()
    assert int(grown) < 24, done.stdout
    assert float(accuracy) > 0.95
