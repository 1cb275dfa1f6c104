"""Sampling bounds and privacy loss distributions: for a mathematician.

The modules, from the bottom up:

* ``amplification``: what sampling without replacement gives (WBK9, WBK27, HYB).
* ``c_gamma``, ``pld``, ``profile``: the C_gamma curve, its privacy loss distribution, the full-batch profile.
* ``published``: the papers' own recipes, as labelled baselines that admit nothing.
* ``calibration``: epsilon of a run, and the noise that a target epsilon needs.
* ``crosscheck``: a run's price derived again through autodp.
"""
