"""Limits that both parties enforce before anything is parsed into arrays. Each constant gives its reason."""

from __future__ import annotations

# One message: the weights of a 16-million-parameter extractor (64 MB in float32) plus framing.
MAX_MESSAGE_BYTES = 80 * 1024 * 1024
# Directions k of one step; the papers use at most 2000.
MAX_DIRECTIONS = 20_000
# Coefficients L of one direction; beyond it rows are the better release.
MAX_COEFFICIENTS = 512
# Records in one sample; bounds the curator's memory, not privacy.
MAX_BATCH_SIZE = 65_536
# Fewest records in one sample, unless the operator says otherwise: of the time that a step takes, one record's share is
# then a sixteenth.
MIN_BATCH_SIZE = 16
# Records n of a data set that is evaluated as a whole; the largest number of this field on the wire.
MAX_RECORDS = 2**32 - 1
# Adapted parameters p; per-record gradients take batch * p floats, computed in chunks.
MAX_ADAPTED_PARAMETERS = 4_000_000
# Source features m of one step.
MAX_SOURCE_FEATURES = 65_536
# Values of one release (rows * directions, or coefficients * directions).
MAX_RELEASE_VALUES = 32_000_000
# Steps of one run.
MAX_STEPS = 10_000_000
# Values of all records of one sample together, and of all gradients, 4 bytes each: both bound the curator's memory.
MAX_SAMPLE_VALUES = 256 * 1024 * 1024
MAX_GRADIENT_VALUES = 256 * 1024 * 1024
# Classes C of an evaluation; its confusion matrix has C * C cells.
MAX_CLASSES = 1000
# Bins B of an evaluation's confidences; finer ones would hold noise alone.
MAX_BINS = 100
# Of a reply besides its values: seed, receipt, shapes.
FRAMING_BYTES = 4096
# Dimensions of one array.
MAX_RANK = 8
# The grid step of a release is sigma * 2**-GRID_EXPONENT (docs/privacy/noise.md).
GRID_EXPONENT = 11

UNLABELLED = -1
"""Stands for the label of a record that has none, where the operator says that there may be some."""
