"""Lists, as tab-separated text, what the image holds: Python and Debian packages with version and licence."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution, distributions


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


def main() -> None:
    """Writes the list to standard output."""
    rows = {("python", d.metadata["Name"], d.version, licence(d)) for d in distributions()}
    listed = subprocess.run(
        ["/usr/bin/dpkg-query", "--show", "--showformat=${Package}\t${Version}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    # Debian keeps each package's licence in its copyright file, which a slim image leaves out.
    for line in listed.stdout.splitlines():
        name, version = line.split("\t")
        rows.add(("debian", name, version, "see the copyright file of Debian's source package"))
    sys.stdout.write("kind\tname\tversion\tlicence\n")
    sys.stdout.writelines("\t".join(row) + "\n" for row in sorted(rows))


if __name__ == "__main__":
    main()
