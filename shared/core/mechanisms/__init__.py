"""What a curator can release: one frozen value for each kind, in one folder each.

To add a mechanism, add its folder and its line here, or in `dpswd.shared.published_mechanisms` if only a method of
others' papers asks for it; admission, price, trial, release, receipts, checkpoints, plans and
the mock curator know none by name. docs/privacy derives each one's price.
"""

from collections.abc import Mapping
from types import MappingProxyType

from dpswd.shared.core.mechanisms.class_statistics.mechanism import CLASS_STATISTICS
from dpswd.shared.core.mechanisms.evaluation.mechanism import EVALUATION
from dpswd.shared.core.mechanisms.feature_sums.mechanism import FEATURE_SUMS
from dpswd.shared.core.mechanisms.interface import AnyMechanism
from dpswd.shared.core.mechanisms.quantiles.mechanism import LABELLED_QUANTILES, QUANTILES
from dpswd.shared.core.mechanisms.score_statistics.mechanism import SCORE_STATISTICS

_SUMS = (EVALUATION, CLASS_STATISTICS, FEATURE_SUMS, SCORE_STATISTICS)
_SAMPLED = (QUANTILES, LABELLED_QUANTILES)

MECHANISMS: Mapping[str, AnyMechanism] = MappingProxyType({each.name: each for each in (*_SAMPLED, *_SUMS)})
"""The core's mechanisms by name; no plug-ins, nothing is registered at import. Whoever composes hands a mapping in."""
