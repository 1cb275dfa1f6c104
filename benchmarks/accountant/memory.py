"""Peak memory of the accountant in a process of its own: prints megabytes after import and at the peak (Linux)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.accountant.settings import SETTINGS, TARGETS
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.accounting.pricing import filter_for
from dpswd.shared.core.privacy.budget import PrivacyBudget

MEASURED = "all of the table's `auto` calibrations and their admissions"


def _megabytes() -> float:
    # Not getrusage: its maximum is inherited from the process that started this one.
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


def main() -> None:
    base = _megabytes()
    for setting in SETTINGS:
        for target in TARGETS:
            run = setting.rows(calibrate_sigma(setting.rows, epsilon=target, delta=setting.delta))
            budget = filter_for(PrivacyBudget(target, setting.delta), run)
            budget.admit(budget.zero(), budget.price(run))
    print(base, _megabytes())


if __name__ == "__main__":
    main()
