"""``dpswd-client demo`` with two steps where it has hundreds; everything else is the product's."""

from __future__ import annotations

import sys

from dpswd.public_client.cli import demonstration
from dpswd.public_client.cli.main import main

demonstration._SETTINGS |= {"source.epochs": 1, "method.control_steps": 2}
demonstration._METHODS = {
    "rows": {
        "method.name": "rows",
        "method.settings.directions": 8,
        "privacy.batch_size": 898,
        "privacy.steps": 2,
    },
}

if __name__ == "__main__":
    main(["demo", *sys.argv[1:]], prog_name="dpswd-client")
