"""Debian packages that tests may install: as root, without starting any service, one installation at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path


class CannotInstall(Exception):
    """The packages are missing and cannot be installed; the text says why."""


def install(packages: Sequence[str], *, options: Sequence[str] = ()) -> None:
    """Installs these packages.

    Raises:
        CannotInstall: not root, not Debian, or apt-get failed.
    """
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise CannotInstall(f"missing: {', '.join(packages)}; as root on Debian they would be installed")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Tests run in several processes, and apt-get does not wait for another one that reads package lists.
    with (Path(tempfile.gettempdir()) / "dpswd-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The packages' own services must not start: the tests start and end what they need.
        policy = Path("/usr/sbin/policy-rc.d")
        ours = not policy.exists()
        if ours:
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        try:
            for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *options, *packages]):
                done = subprocess.run(
                    ["apt-get", "-o", "DPkg::Lock::Timeout=300", *arguments],
                    env=environment, capture_output=True, text=True, check=False,
                )  # fmt: skip
                if done.returncode != 0:
                    raise CannotInstall(f"apt-get {arguments[0]} failed: {done.stderr.strip()[-400:]}")
        finally:
            if ours:
                policy.unlink(missing_ok=True)
