"""The accountant: what a release costs, and whether a budget still allows it.

Everything here is pure: no file, no socket, no database, no secret. The modules, from the bottom up:

* ``curves``: the exact Renyi curve of the sliced Gaussian mechanism.
* ``events``, ``event_json``: frozen values that describe a release completely enough to be priced for ever.
* ``filter``: the Renyi filter that admits or refuses adaptively chosen runs.
* ``bracket``: a charge held from below by a pair of neighbours, from above by Theorem 9.
"""
