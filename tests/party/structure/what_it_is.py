"""Prints what a process can tell of itself as JSON, and ends as it is told: with a status, an error or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

if __name__ == "__main__":
    how = sys.argv[1]
    if how == "waits":
        print("waiting", flush=True)
        time.sleep(60)
    if how == "raises":
        raise ValueError("told to")
    if how == "starts another":
        done = subprocess.run(
            [sys.executable, __file__, "7"], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        print(json.dumps([done.returncode, json.loads(done.stdout)["parent"] == os.getpid()]))
        sys.exit(0)
    files = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    report = {
        "arguments": sys.argv,
        "command": Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0"),
        "directory": str(Path.cwd()),
        "environment": dict(os.environ),
        "parent": os.getppid(),
        "leads a session": os.getsid(0) == os.getpid(),
        "group": os.getpgid(0) == os.getpgid(os.getppid()),
        "path": sys.path,
        "read": sys.stdin.read(),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
        "files": sorted(number for number in files if number < 50 and Path(f"/proc/self/fd/{number}").exists()),
        "written": [(stream.encoding, stream.errors, stream.line_buffering) for stream in (sys.stdout, sys.stderr)],
        "threads": threading.active_count(),
        "bytecode": sys.dont_write_bytecode,
    }
    print(json.dumps(report))
    sys.stderr.write("a word\n")
    sys.exit(int(how))
