"""What the accountant achieves: the papers' table, a figure, speed beside autodp and dp_accounting, their digits.

``python -m benchmarks.accountant table|figure|speed|crosscheck``
"""

import os

# Before numpy is loaded: the contenders' times are compared on one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")
