"""Makes this directory's helper module importable."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package
