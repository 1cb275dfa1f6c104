"""The battery's public sources: data, a pool that targets are drawn from, and a small model, trained once and kept."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import heart, office
from benchmarks.vectors import Domain, principal_components, standardised
from dpswd.public_client.data.datasets import Labelled, load_mnist, load_usps, resize_usps
from dpswd.public_client.data.source import source_loader, train_source

FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts the idx files."""
_MANY = 10_000  # source records of the larger data sets
_USPS = 5_000
_COLUMNS = 10  # of heart: those that most hospitals mostly have


@dataclass(frozen=True)
class Origin:
    """A source-trained model, its data, and what targets are made of.

    Attributes:
        kind: "images", "vectors" or "tables".
        source: labelled, public; the model has seen it.
        pool: of the same kind, unseen: what made shifts begin with.
        elsewhere: real targets by name.
        extractor: trained on the source, or a fixed map.
        classifier: trained on the source.
    """

    kind: str
    source: Labelled
    pool: Labelled
    elsewhere: dict[str, Labelled]
    extractor: nn.Module
    classifier: nn.Module


ORIGINS = ("mnist", "usps", "fashion", "amazon", "caltech10", "cleveland", "adult")
"""Names of sources."""


def load(name: str, seed: int, *, data_dir: Path, cache: Path) -> Origin:
    """One source with the model of one seed, trained if it is not in the cache.

    Args:
        name: one of `ORIGINS`.
        seed: of the model.
        data_dir: folder with the .npz files.
        cache: where models are kept.
    """
    kind, source, pool, elsewhere = _data(name, data_dir)
    torch.manual_seed(seed)
    extractor, classifier, epochs = _model(name, source)
    file = cache / f"{name}-{seed}.pt"
    if file.exists():
        states = torch.load(file, weights_only=True)
        extractor.load_state_dict(states["extractor"])
        classifier.load_state_dict(states["classifier"])
    else:
        loader = source_loader(source, batch_size=64, seed=seed)
        train_source(extractor, classifier, loader, epochs=epochs)
        cache.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(f".{os.getpid()}")  # several processes may train the same one
        torch.save({"extractor": extractor.state_dict(), "classifier": classifier.state_dict()}, fresh)
        fresh.replace(file)
    return Origin(kind, source, pool, elsewhere, extractor.eval(), classifier.eval())


def _data(name: str, data_dir: Path) -> tuple[str, Labelled, Labelled, dict[str, Labelled]]:
    if name == "mnist":
        source, pool = _halves(_smaller(load_mnist(data_dir)), _MANY)
        return "images", source, pool, {"usps": _smaller(load_usps(data_dir, geometry="stretched"))}
    if name == "usps":
        source, pool = _halves(_smaller(load_usps(data_dir, geometry="stretched")), _USPS)
        return "images", source, _joined(pool, _usps_test(data_dir)), {"mnist": _smaller(load_mnist(data_dir))}
    if name == "fashion":
        return "images", *_halves(_smaller(_fashion()), _MANY), {}
    if name in office.SITES:
        sites = office.load(data_dir / "office_caltech10_surf.npz")
        source, pool = _halves(sites[name].labelled(), len(sites[name].labels) // 2)
        others = {other: site.labelled() for other, site in sites.items() if other != name}
        return "vectors", source, pool, others
    if name == "cleveland":
        hospitals = heart.load(data_dir / "heart_uci.npz", _COLUMNS)
        values = {
            key: Labelled(torch.from_numpy(one.records[:, :_COLUMNS]), torch.from_numpy(one.labels))
            for key, one in hospitals.items()
        }
        own = values.pop(name)
        source, pool = _halves(own, 150)
        return "tables", source, pool, values
    source, pool = _halves(_adult(data_dir), _MANY)
    return "tables", source, pool, {}


def _model(name: str, source: Labelled) -> tuple[nn.Module, nn.Module, int]:
    """Extractor, classifier and passes over the source."""
    classes, domain = int(source.labels.max()) + 1, Domain(name, source.images.numpy(), source.labels.numpy())
    if source.images.dim() == 4:
        extractor = nn.Sequential(
            nn.Conv2d(1, 12, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(12, 24, 3), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(),
        )  # fmt: skip
        return extractor, nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, classes)), 10
    if name == "adult":
        standard = standardised(domain)
        extractor = nn.Sequential(
            standard, nn.Linear(standard.out_features, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()
        )
        return extractor, nn.Linear(32, classes), 6
    fixed = standardised(domain) if name == "cleveland" else principal_components(domain, office.COMPONENTS)
    return fixed, nn.Linear(fixed.out_features, classes), 60


def _halves(data: Labelled, count: int) -> tuple[Labelled, Labelled]:
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    return data.part(order[:count]), data.part(order[count:])


def _joined(first: Labelled, second: Labelled) -> Labelled:
    return Labelled(torch.cat((first.images, second.images)), torch.cat((first.labels, second.labels)))


def _smaller(data: Labelled) -> Labelled:
    """14 x 14 pixels: a quarter of the time, so that a battery of hundreds of runs is affordable."""
    return Labelled(functional.avg_pool2d(data.images, 2), data.labels)


def _pixels(images: np.ndarray) -> Tensor:  # type: ignore[type-arg]
    return torch.from_numpy(images.astype(np.float32)).unsqueeze(1) / 127.5 - 1.0


def _usps_test(data_dir: Path) -> Labelled:
    with np.load(data_dir / "usps16.npz", allow_pickle=False) as archive:
        images = resize_usps(_pixels(archive["x_test"]), geometry="stretched")
        return _smaller(Labelled(images, torch.from_numpy(archive["y_test"].astype(np.int64))))


def _fashion() -> Labelled:
    with gzip.open(FASHION / "train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(FASHION / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), dtype=np.uint8, offset=8)
    return Labelled(_pixels(images), torch.from_numpy(labels.astype(np.int64)))


def _adult(data_dir: Path) -> Labelled:
    with np.load(data_dir / "adult.npz", allow_pickle=False) as archive:
        records = archive["x"].astype(np.float32)
        label = [i for i, column in enumerate(archive["feature_names"]) if column.startswith("income")]
        columns = [i for i in range(records.shape[1]) if i not in label]
        return Labelled(torch.from_numpy(records[:, columns]), torch.from_numpy(archive["y"].astype(np.int64)))
