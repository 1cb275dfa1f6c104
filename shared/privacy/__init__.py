"""The accountant: what a release costs, and whether a budget still allows it.

Everything here is pure: no file, no socket, no database, no secret. The modules, from the bottom up:

* ``curves``: the exact Renyi curve of the sliced Gaussian mechanism.
* ``events``, ``event_json``: frozen values that describe a release completely enough to be priced for ever.
* ``amplification``: what sampling without replacement gives (WBK9, WBK27, HYB).
* ``c_gamma``, ``pld``, ``profile``: the C_gamma curve, its privacy loss distribution, the full-batch profile.
* ``published``: the papers' own recipes, as labelled baselines that admit nothing.
* ``calibration``: epsilon of a run, and the noise that a target epsilon needs.
* ``filter``: the Renyi filter that admits or refuses adaptively chosen runs.
* ``bracket``: a charge held from below by a pair of neighbours, from above by Theorem 9.
* ``crosscheck``: a run's price derived again through autodp.
"""
