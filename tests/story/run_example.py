"""One example from its beginning to its end, as it stands: a script, or the code of a notebook's cells.

It starts quickly (`forked_starts`), its replays are tuned shortly (`short_tuning`), and what a notebook types at a
shell runs in this process.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from click.testing import CliRunner

sys.path.append(str(Path(__file__).resolve().parents[1]))

from short_tuning import shortened

from dpswd.private_curator.cli.main import main as curator
from dpswd.public_client.cli.main import main as client

PROGRAMS = {"dpswd-curator": curator, "dpswd-client": client}


def typed(line: str) -> None:
    """A line at a shell; it must succeed."""
    program, *words = shlex.split(line)
    done = CliRunner().invoke(PROGRAMS[program], words)
    print(done.output)
    assert done.exit_code == 0, line


def code_of(path: Path) -> str:
    """The example's code; a line after ``!`` is typed."""
    if path.suffix == ".py":
        return path.read_text()
    cells = [cell["source"] for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    lines = "\n".join("".join(source) for source in cells).splitlines()
    return "\n".join(f"typed({line[1:]!r})" if line[:1] == "!" else line for line in lines)


if __name__ == "__main__":
    example = Path(sys.argv.pop(1))
    with shortened():
        exec(compile(code_of(example), example.name, "exec"), {"__name__": "__main__", "typed": typed})
