"""Generates shared/core/wire/v1 from proto/; run as ``python -m deploy.protocol [output directory]``.

The generated files are checked in, so that a hospital needs no compiler; a test regenerates them and compares.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_PROTO = "proto/dpswd/curator/v1"


def generate(output: Path) -> None:
    """Writes ``shared/core/wire/v1/*_pb2*.py[i]`` under ``output``.

    Raises:
        subprocess.CalledProcessError: protoc refused the contract; its message is on standard error.
    """
    (output / "dpswd" / "shared" / "core" / "wire" / "v1").mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "grpc_tools.protoc", f"-Idpswd/shared/core/wire/v1={_PROTO}",
        f"--python_out={output}", f"--grpc_python_out={output}",
        f"--mypy_out=quiet:{output}", f"--mypy_grpc_out=quiet:{output}",
        f"{_PROTO}/curator.proto",
    ]  # fmt: skip
    subprocess.run(command, cwd=_ROOT, check=True)  # noqa: S603 - a fixed command on our own files


if __name__ == "__main__":
    generate(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else _ROOT)
