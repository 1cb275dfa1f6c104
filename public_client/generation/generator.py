"""A generator of labelled records, and its file. More rows cost nothing: it is made of released and public numbers.

A generator is data, never code: a decoder, and for some methods a classifier that labels what was decoded, both graphs
of the closed vocabulary. A record of class c is

    decoder([z, e_c]),  z standard normal of the latent dimension, e_c the one-hot class,

so that an affine sampler, a network of a paper and a decoder of features are all the same kind of value; of some
methods an image is then deformed a little. The file is safetensors, and what is read of it is checked as an upload is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.evidence.certificate import certified
from dpswd.public_client.evidence.evidence import Evidence
from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.public_client.generation.deformation import MAX_DEFORMATION, NORMALS, deformed
from dpswd.public_client.generation.schema import Schema
from dpswd.shared.core.errors import DataInvalid, InvalidValue
from dpswd.shared.devices import resolve_device
from dpswd.shared.files import write_public
from dpswd.shared.models.adapted import CERTIFICATE
from dpswd.shared.models.model_file import json_object, model_bytes, read_model_file, rebuilt
from dpswd.shared.sandbox.building import Extractor

FORMAT = "dpswd-generator-4"
MAX_ROWS = 1_000_000
"""Of one call: a number with too many zeros would otherwise fill the memory before anybody looks."""
MAX_TRIES = 100
"""Of a row: a file that asks for more would draw for days."""
_MAX_FACTS_CHARACTERS = 1_000_000
_AT_A_TIME = 1000  # records; what is drawn does not depend on it
_DECODER, _LABELLER = "decoder", "labeller"
_LAW = ("record_shape", "shares", "low", "high", "deformation", "tries", "temperature", "chosen_labels")


@dataclass(frozen=True, eq=False)
class Generator:
    """A fitted generator.

    Attributes:
        decoder: latents with one-hot classes (k + C,) to the values of a record, flat.
        record_shape: of one record.
        shares: (C,) of the classes, adding up to 1.
        labeller: records to C scores, by which a drawn record is labelled; None: by the class that it was drawn for.
        low: least value of a record; None: any.
        high: largest.
        deformation: of drawn images, see `deformed`; 0: none.
        tries: draws of a row, at most, until the labeller's likeliest class is the one that it was drawn for.
        temperature: scores are divided by it before they become probabilities.
        schema: of a table's columns: drawn values are brought to what it allows.
        chosen_labels: a row's label is the labeller's likeliest class; False: one drawn with its probabilities.
        facts: where it comes from: guarantee, neighbours, accountant, method, seeds, receipts; plain values.
        evidence: makes what it follows from; None of one that was read.
        credentials: of the connection; their key signs the certificate.
    """

    decoder: Extractor
    record_shape: tuple[int, ...]
    shares: tuple[float, ...]
    labeller: Extractor | None = None
    low: float | None = None
    high: float | None = None
    deformation: float = 0.0
    tries: int = 1
    temperature: float = 1.0
    schema: Schema | None = None
    chosen_labels: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)
    evidence: Callable[[], Evidence] | None = None
    credentials: Path | None = None

    def __post_init__(self) -> None:
        classes, values = len(self.shares), math.prod(self.record_shape)
        if not classes or not all(0.0 <= share <= 1.0 for share in self.shares) or abs(sum(self.shares) - 1.0) > 1e-6:
            raise InvalidValue(f"the classes' shares are {self.shares}; they must be at least 0 and add up to 1")
        taken, given = self.decoder.graph.input_shape, self.decoder.graph.feature_dimension
        if len(taken) != 1 or taken[0] <= classes or given != values:
            raise InvalidValue(
                f"the decoder takes {taken} and gives {given} values; needed are (latent + {classes},) and {values}"
            )
        if self.labeller is not None:
            graph = self.labeller.graph
            if (graph.input_shape, graph.feature_dimension) != (self.record_shape, classes):
                raise InvalidValue(
                    f"the labeller takes {graph.input_shape} and gives {graph.feature_dimension} scores; needed are "
                    f"{self.record_shape} and {classes}"
                )
        if not 1 <= self.tries <= (MAX_TRIES if self.labeller is not None and self.chosen_labels else 1):
            raise InvalidValue(f"tries is {self.tries}; allowed are 1, and where a labeller chooses up to {MAX_TRIES}")
        if not (math.isfinite(self.temperature) and self.temperature > 0.0):
            raise InvalidValue(f"the temperature is {self.temperature}; it must be positive and finite")
        if not 0.0 <= self.deformation <= (MAX_DEFORMATION if len(self.record_shape) == 3 else 0.0):
            raise InvalidValue(f"deformation is {self.deformation}; allowed: 0, for images up to {MAX_DEFORMATION}")
        if self.schema is not None and self.record_shape != (len(self.schema.columns),):
            raise InvalidValue(f"the schema has {len(self.schema.columns)} columns for records of {self.record_shape}")

    def on(self, device: torch.device) -> Generator:
        """The same generator that draws on a device; what is drawn is on the CPU, and the same but for rounding."""

        def moved(part: Extractor) -> Extractor:
            return Extractor(part.graph, part.weights, device=device)

        return replace(self, decoder=moved(self.decoder), labeller=self.labeller and moved(self.labeller))

    @property
    def classes(self) -> int:
        """C."""
        return len(self.shares)

    @property
    def latent(self) -> int:
        """k, the dimension of z."""
        return int(self.decoder.graph.input_shape[0]) - self.classes

    def with_facts(self, facts: Mapping[str, Any]) -> Generator:
        """The same generator that says where it comes from."""
        return replace(self, facts=dict(facts))

    def sample(self, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Draws n labelled records (n, ...) float32 and their classes (n,) int64. Free: nobody is asked.

        The same seed gives the same records, and more rows begin with the same ones.

        Raises:
            InvalidValue: rows is out of range.
        """
        return self.draw(rows, seed)[:2]

    def sample_soft(self, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Records as of `sample`, and probabilities of the classes (n, C): the labeller's, or 1 of the class drawn."""
        records, _, probabilities = self.draw(rows, seed)
        return records, probabilities

    def batches(self, rows: int, *, batch_size: int = 128, seed: int = 0) -> DataLoader[tuple[Tensor, Tensor]]:
        """Labelled batches of rows drawn once, shuffled anew in each pass: a source for `DomainAdaptation.fit`."""
        return source_loader(Labelled(*self.sample(rows, seed)), batch_size=batch_size, seed=seed)

    def draw(self, rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """What `sample` and `sample_soft` return, from one draw: records, classes and probabilities of the classes."""
        if not 1 <= rows <= MAX_ROWS:
            raise InvalidValue(f"{rows} rows were asked for; allowed are 1 to {MAX_ROWS} at a time")
        records, classes, probabilities = [], [], []
        chance = torch.tensor(self.shares, dtype=torch.float64)
        width = self.latent + (NORMALS if self.deformation else 0)
        with torch.no_grad():
            for part, start in enumerate(range(0, rows, _AT_A_TIME)):
                # Each part from its own generator: what a row is does not depend on how many are asked for.
                own = torch.Generator().manual_seed((seed * 1_000_003 + part) % 2**63)
                count = min(_AT_A_TIME, rows - start)
                asked = torch.multinomial(chance, _AT_A_TIME, replacement=True, generator=own)[:count]
                made, scores = torch.empty(count, *self.record_shape), torch.empty(count, self.classes)
                left = torch.arange(count)
                for _ in range(self.tries):
                    # For every row: what a row's next draw is does not depend on how the others went.
                    z = torch.randn((_AT_A_TIME, width), generator=own)[left]
                    made[left], scores[left] = self._made(z, asked[left])
                    left = left[scores[left].argmax(dim=1) != asked[left]]
                    if not len(left):
                        break
                if self.labeller is None:
                    labels, likely = asked, scores
                else:
                    likely = torch.softmax(scores / self.temperature, dim=1)
                    labels = scores.argmax(dim=1) if self.chosen_labels else _drawn_of(likely, own)
                records.append(made)
                classes.append(labels)
                probabilities.append(likely)
        return torch.cat(records), torch.cat(classes), torch.cat(probabilities)

    def _made(self, z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Records of these normal numbers and classes (b,), and scores; without a labeller one-hot classes."""
        kinds = functional.one_hot(labels, self.classes).float()
        latents, normals = z[:, : self.latent], z[:, self.latent :]
        made = self.decoder.features(torch.cat([latents, kinds], dim=1)).cpu().reshape(-1, *self.record_shape)
        made = deformed(made, normals, self.deformation)
        if self.low is not None or self.high is not None:
            made = made.clamp(min=self.low, max=self.high)
        if self.schema is not None:
            made = self.schema.snapped(made)
        return made, kinds if self.labeller is None else self.labeller.features(made).cpu()

    def save(self, path: str | Path) -> None:
        """Writes the generator to one file, whole or not at all, with its certificate in it and beside it.

        Args:
            path: the file, safetensors.
        """
        parts = {_DECODER: self.decoder} | ({} if self.labeller is None else {_LABELLER: self.labeller})
        tensors: dict[str, Tensor] = {}
        metadata = {"format": FORMAT}
        for name, part in parts.items():
            metadata[name] = part.graph.to_bytes().decode("ascii")
            tensors |= {f"{name}.{key}": value.cpu().contiguous() for key, value in part.weights.items()}
        law = {name: getattr(self, name) for name in _LAW}
        metadata["law"] = json.dumps(law | {"schema": None if self.schema is None else self.schema.to_json()})
        metadata["facts"] = json.dumps(dict(self.facts), sort_keys=True)
        data, path = model_bytes(tensors, metadata), Path(path)
        certificate = "" if self.evidence is None else certified(path, self.evidence(), self.credentials)(data)
        if certificate:
            data = model_bytes(tensors, metadata | {CERTIFICATE: certificate})
        write_public(path, data)


def traced(module: nn.Module, *shape: int) -> Extractor:
    """A decoder or labeller, its module in evaluation mode, as a generator holds it.

    Args:
        module: (b, *shape) to (b, values): for a decoder latents beside one-hot classes to a record's values, flat.
        shape: of what it takes: latent + C, or that of a record.

    Raises:
        ExtractorUnsupported: it uses something outside of the closed vocabulary.
    """
    graph = trace(module.cpu().eval(), shape)
    return Extractor(graph, module_weights(module, graph), device=torch.device("cpu"))


def _drawn_of(probabilities: Tensor, own: torch.Generator) -> Tensor:
    """A class (b,) of each row (b, C); a row's does not depend on how many rows are asked for."""
    places = torch.rand((_AT_A_TIME, 1), generator=own)[: len(probabilities)]
    return (probabilities.cumsum(dim=1)[:, :-1] < places).sum(dim=1)


def load_generator(path: str | Path, *, device: str = "cpu") -> Generator:
    """Reads what `Generator.save` wrote, onto "auto", "cpu" or "cuda"; no code of the file is run, whoever made it.

    Raises:
        DataInvalid: the file is something else; the message says what does not hold.
    """
    path = Path(path)
    metadata, tensors = read_model_file(path, kind="a generator", form=FORMAT, writer="dpswd-client generate")
    try:
        return _generator(metadata, tensors, resolve_device(device))
    except (InvalidValue, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataInvalid(f"{path} is not a generator: {error}") from error


def _generator(metadata: Mapping[str, str], tensors: Mapping[str, Tensor], device: torch.device) -> Generator:
    law = json.loads(metadata["law"])

    def bound(name: str) -> float | None:
        return None if law[name] is None else float(law[name])

    return Generator(
        decoder=rebuilt(_DECODER, metadata, tensors, device),
        record_shape=tuple(int(side) for side in law["record_shape"]),
        shares=tuple(float(share) for share in law["shares"]),
        labeller=rebuilt(_LABELLER, metadata, tensors, device) if _LABELLER in metadata else None,
        low=bound("low"),
        high=bound("high"),
        deformation=float(law["deformation"]),
        tries=int(law["tries"]),
        temperature=float(law["temperature"]),
        schema=None if law["schema"] is None else Schema.from_json(law["schema"]),
        chosen_labels=bool(law["chosen_labels"]),
        facts=json_object("facts", metadata["facts"], most=_MAX_FACTS_CHARACTERS),
    )
