"""Serves a curator that offers a mechanism of the tests' own: ``serve_own_mechanism.py HOME [POINT ACTION]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import serve_with_stops
from own_mechanism import CLIPPED_MEAN

from dpswd.shared.published_mechanisms import ALL_MECHANISMS

if __name__ == "__main__":
    serve_with_stops.main(sys.argv[1:], mechanisms={**ALL_MECHANISMS, CLIPPED_MEAN.name: CLIPPED_MEAN})
