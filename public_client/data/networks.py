"""The extractors and classifiers that the command line trains; any `nn.Module` of the closed vocabulary works as well.

An extractor turns records (b, c, h, w) into features (b, d); a classifier turns features into scores (b, classes).
They are two modules because only the extractor travels to the curator.
"""

from __future__ import annotations

from torch import nn

from dpswd.shared.core.errors import InvalidValue

_HIDDEN, _FEATURES = 64, 32  # of the ready network for tables


def digits_network(image_shape: tuple[int, ...]) -> tuple[nn.Module, nn.Module]:
    """Extractor and classifier for one of the two digit sizes.

    Args:
        image_shape: (1, 28, 28), for the DP-SWD paper's network with d = 320 features, or (1, 8, 8), for the same
            shape of network with d = 96.

    Returns:
        The extractor, and a classifier with one hidden layer and ten scores.

    Raises:
        InvalidValue: the images have another shape.
    """
    layers: tuple[nn.Module, ...]
    if image_shape == (1, 28, 28):
        features = 320
        layers = (nn.Conv2d(1, 32, 5), nn.MaxPool2d(2), nn.ReLU())  # (b, 32, 12, 12)
        layers += (nn.Conv2d(32, 20, 5), nn.MaxPool2d(2), nn.ReLU())  # (b, 20, 4, 4)
    elif image_shape == (1, 8, 8):
        features = 96
        layers = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))  # (b, 16, 4, 4)
        layers += (nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))  # (b, 24, 2, 2)
    else:
        raise InvalidValue(
            f"there is no ready network for records of shape {image_shape}; bring your own (--network FILE.py:NAME); "
            "ready are (d,), (1, 8, 8), (1, 28, 28)"
        )
    classifier = nn.Sequential(nn.Linear(features, 100), nn.ReLU(), nn.Linear(100, 10))
    return nn.Sequential(*layers, nn.Flatten()), classifier


def ready_network(record_shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """Extractor and classifier where the caller brings none.

    Args:
        record_shape: (1, 8, 8) or (1, 28, 28) for digits, (d,) for tables.
        classes: of the labels.

    Raises:
        InvalidValue: there is none for this shape.
    """
    if len(record_shape) == 1:
        layers = (nn.Linear(record_shape[0], _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _FEATURES), nn.ReLU())
        # Columns come in their own units; the source's mean and deviation bring them to one scale.
        scaled = nn.BatchNorm1d(record_shape[0], affine=False)
        return nn.Sequential(scaled, *layers), nn.Linear(_FEATURES, classes)
    if classes > 10:
        raise InvalidValue(f"the ready digits network has ten classes, the labels {classes}; bring your own")
    return digits_network(record_shape)
