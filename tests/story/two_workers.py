"""A process that has two workers, one of them busy, prints their numbers and goes on: ``python two_workers.py``."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from dpswd.private_curator.sandbox.pool import WorkerPool
from dpswd.private_curator.sandbox.process import WorkerSettings

if __name__ == "__main__":
    program = (sys.executable, "-P", str(Path(__file__).with_name("worker_program.py")))
    pool = WorkerPool(WorkerSettings("cpu", 1, 1 << 29, 600.0, program=program), workers=2)
    pool.ready()
    busy, message = pool._idle.get().worker, {"op": "sleep", "seconds": 600}
    threading.Thread(target=busy.ask, args=(message,), kwargs={"deadline": 1e9}).start()
    print(*pool.pids, flush=True)
    time.sleep(600)
