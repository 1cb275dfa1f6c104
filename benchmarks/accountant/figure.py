"""docs/privacy/figures/epsilon-vs-steps.png: what every bound says of M-U, from one step to a million."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.accountant.published import Recipe, calibrate_sigma, epsilon
from benchmarks.accountant.settings import PUBLISHED, Setting
from benchmarks.records import Rows
from dpswd.shared.accounting.bounds import Bound
from dpswd.shared.core.privacy.events import RunEvent

STEPS = np.unique(np.geomspace(1, 1e6, 37).round().astype(int))
HIGHEST = 100.0
"""Above it a guarantee is empty; the curves leave the figure there."""

LINES = {
    Recipe.BERNSTEIN_PUBLISHED: ("#8c8c8c", "--", "DP-SWD, Bernstein as its code (no guarantee)"),
    Recipe.BERNSTEIN: ("#8c8c8c", ":", "DP-SWD, Bernstein as printed (no guarantee)"),
    Recipe.CLT: ("#8c8c8c", "-.", "DP-SWD, CLT (no guarantee)"),
    Bound.WBK9: ("#56b4e9", "-", "wbk9, exact curve"),
    Bound.WBK27: ("#0072b2", "-", "wbk27, exact curve"),
    Bound.C_GAMMA: ("#e69f00", "-", "c-gamma"),
    Bound.HYB: ("#009e73", "-", "hyb"),
    Bound.PLD: ("#cc79a7", "-", "pld"),
    Bound.AUTO: ("#000000", (0, (1, 2.5)), "auto: what is charged"),
}


def write(path: Path, rows: Rows) -> None:  # noqa: ARG001 - a picture has no rows of its own
    """Draw two panels: the published sigma, and the sigma that auto needs for epsilon 3."""
    setting = PUBLISHED[1].setting
    ours = calibrate_sigma(setting.rows, epsilon=3.0, delta=setting.delta)
    panels = (
        (PUBLISHED[1].bernstein, f"σ = {PUBLISHED[1].bernstein:g}: published for ε = 10"),
        (ours, f"σ = {ours:.3f}: ε = 3 by auto"),
    )
    figure, axes = plt.subplots(1, 2, figsize=(12.5, 5.4), sharey=True)
    for axis, (sigma, title) in zip(axes, panels, strict=True):
        for bound, (color, style, label) in LINES.items():
            values = np.array([_epsilon(setting, sigma, int(steps), bound) for steps in STEPS])
            width, order = (3.0, 3) if bound is Bound.AUTO else (1.7, 2)
            axis.plot(STEPS, values, color=color, linestyle=style, linewidth=width, zorder=order, label=label)
        axis.axvline(setting.steps, color="#bbbbbb", linewidth=0.8)
        axis.text(setting.steps * 1.1, 1.3e-3, f"T = {setting.steps:,}", color="#666666", fontsize=9)
        axis.set(xscale="log", yscale="log", xlim=(1, 1e6), ylim=(1e-3, HIGHEST), xlabel="steps T", title=title)
        axis.grid(alpha=0.25, which="major")
    axes[0].set_ylabel(f"ε at δ = {setting.delta:g}")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False, fontsize=9)
    law = f"d = {setting.features}, k = {setting.directions}"
    figure.suptitle(f"DP-SWD's M-U run: {law}, n = {setting.records}, b = {setting.batch}")
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
    print(f"wrote {path}")


def _epsilon(setting: Setting, sigma: float, steps: int, bound: Bound | Recipe) -> float:
    run = RunEvent(step=setting.rows(sigma).step, steps=steps)
    value = epsilon(run, setting.delta, bound)
    # One point above the frame is drawn, so that a line leaves it; epsilon 0 has no place on a logarithmic axis.
    return value if 0.0 < value <= 10.0 * HIGHEST else float("nan")
