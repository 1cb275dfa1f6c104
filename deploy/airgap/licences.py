"""Lists, as tab-separated text, what the image holds: Python and Debian packages with version and licence."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path


def licence(distribution: Distribution) -> str:
    """What the package itself declares."""
    metadata = distribution.metadata
    expression = metadata.get("License-Expression")
    if expression:
        return expression
    classifiers = [c.rsplit(" :: ", 1)[-1] for c in metadata.get_all("Classifier") or [] if c.startswith("License ::")]
    if classifiers:
        return "; ".join(classifiers)
    declared = (metadata.get("License") or "").strip().splitlines()
    return declared[0][:100] if declared else "see the package"


def debian_licence(name: str) -> str:
    """The licences that a Debian package's copyright file names, or where to read."""
    path = Path("/usr/share/doc") / name / "copyright"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "see the copyright file of Debian's source package"
    # Machine-readable files have a field for it; the others point to the texts that Debian ships for all.
    fields = re.findall(r"^License: *([^\s,]+)", text, re.MULTILINE)
    named = fields or re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.-]*[A-Za-z0-9])", text)
    return "; ".join(dict.fromkeys(named)) or f"see {path}"


def main() -> None:
    """Writes the list to standard output."""
    rows = {("python", d.metadata["Name"], d.version, licence(d)) for d in distributions()}
    listed = subprocess.run(
        ["/usr/bin/dpkg-query", "--show", "--showformat=${Package}\t${Version}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    for line in listed.stdout.splitlines():
        name, version = line.split("\t")
        rows.add(("debian", name, version, debian_licence(name)))
    sys.stdout.write("kind\tname\tversion\tlicence\n")
    sys.stdout.writelines("\t".join(row) + "\n" for row in sorted(rows))


if __name__ == "__main__":
    main()
