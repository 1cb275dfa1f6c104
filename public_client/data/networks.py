"""The extractors and classifiers that the command line trains; any `nn.Module` of the closed vocabulary works as well.

An extractor turns records (b, c, h, w) into features (b, d); a classifier turns features into scores (b, classes).
They are two modules because only the extractor travels to the curator.
"""

from __future__ import annotations

from torch import Tensor, nn

from shared.errors import InvalidValue


class DigitsExtractor(nn.Module):
    """The DP-SWD paper's digits network up to its features: 28 x 28 images to d = 320."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.pool1 = nn.MaxPool2d(2)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(32, 20, 5)
        self.pool2 = nn.MaxPool2d(2)
        self.relu2 = nn.ReLU()
        self.flatten = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        """(b, 1, 28, 28) to (b, 320)."""
        x = self.relu1(self.pool1(self.conv1(x)))  # (b, 32, 12, 12)
        x = self.relu2(self.pool2(self.conv2(x)))  # (b, 20, 4, 4)
        features: Tensor = self.flatten(x)
        return features


class SmallDigitsExtractor(nn.Module):
    """The same shape of network for scikit-learn's 8 x 8 digits: d = 96."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(16, 24, 3, padding=1)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        """(b, 1, 8, 8) to (b, 96)."""
        x = self.pool1(self.relu1(self.conv1(x)))  # (b, 16, 4, 4)
        x = self.pool2(self.relu2(self.conv2(x)))  # (b, 24, 2, 2)
        features: Tensor = self.flatten(x)
        return features


class DigitsClassifier(nn.Module):
    """One hidden layer of 100 units on the features, ten classes."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, 100)
        self.relu = nn.ReLU()
        self.scores = nn.Linear(100, 10)

    def forward(self, features: Tensor) -> Tensor:
        """(b, d) to (b, 10)."""
        scores: Tensor = self.scores(self.relu(self.hidden(features)))
        return scores


def digits_network(image_shape: tuple[int, ...]) -> tuple[nn.Module, nn.Module]:
    """Extractor and classifier for one of the two digit sizes.

    Raises:
        InvalidValue: neither (1, 28, 28) nor (1, 8, 8).
    """
    if image_shape == (1, 28, 28):
        return DigitsExtractor(), DigitsClassifier(320)
    if image_shape == (1, 8, 8):
        return SmallDigitsExtractor(), DigitsClassifier(96)
    raise InvalidValue(f"there is no ready network for images of shape {image_shape}; allowed: (1, 28, 28), (1, 8, 8)")
