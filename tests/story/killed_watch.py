"""A watch that is killed by SIGKILL: in the moment after a round's charge, or after a training's last step.

``python killed_watch.py round WORDS...`` types a command; ``training`` calls the library with what `watch` is given.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import sys
from pathlib import Path

from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.cli.main import main
from dpswd.public_client.experiments.approaches import Trained
from dpswd.public_client.methods.evaluation import Evaluate
from dpswd.public_client.watching import watch


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    if kind == "round":
        watch.write_report = die  # charged, released, and not yet written
        main(words)
    Trained.save = die  # charged, every step drawn, the model not yet written
    directory, model, address, credentials, day, experiment = words
    with Hospital.connect(address, credentials=credentials, purpose="watching") as hospital:
        watch.watch(
            Path(directory), Path(model), hospital, Evaluate(), epsilon=0.3, every=90, appended=True,
            today=dt.date.fromisoformat(day), experiment=Path(experiment),
        )  # fmt: skip
