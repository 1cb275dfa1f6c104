"""Probes: where a network's channels are watched and moved.

A probe brings a layer's channels to the source's mean 0 and deviation 1, applies one gain and one offset for each,
tells each record's statistics, and undoes the first step: at gain 1 and offset 0 the network computes what it did. A
record tells of a channel its mean and deviation over the places; where there is one place, the square.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dpswd.public_client.extractor.adapter_layers import ChannelAffine, FeatureAffine
from dpswd.public_client.extractor.made_records import are_looked_up
from dpswd.public_client.extractor.sequence_layers import written_out
from dpswd.public_client.models.trees import OfEstimator
from dpswd.shared.core.errors import InvalidValue

BatchNorm = (nn.BatchNorm1d, nn.BatchNorm2d)
_NORMS = (nn.LayerNorm, nn.GroupNorm)
_WATCHED = (OfEstimator, BatchNorm, _NORMS, (nn.Conv1d, nn.Conv2d, nn.Linear))  # the first kind that a network has
_TINY, _FARTHEST = 1e-6, 1e4  # bound of public statistics: in some networks a single record grows for ever
_LEAST_EPS = 1e-12  # that travels: a batch normalisation which is delivered has it in its variance already
_WIDTHS = ("in_channels", "num_features", "input_size", "in_features", "embed_dim")
INPUT, AT_ONCE = "input", 256  # records whose statistics are computed together


@dataclass(frozen=True)
class Place:
    """One layer whose channels are watched.

    Attributes:
        path: of the module in the network; `INPUT` for the records themselves.
        channels: c.
        last: whether channels are the last side and not the first after the records'.
        sides: of what the layer gives, with the records' side.
        center: (c,) of the source.
        spread: (c,) of the source, positive.
        scores: whether it is the last layer, which is watched and never asked for by itself.
    """

    path: str
    channels: int
    last: bool
    sides: int
    center: Tensor
    spread: Tensor
    scores: bool = False

    @property
    def single(self) -> bool:
        """Whether a record has one value a channel."""
        return self.sides == 2


class Probe(nn.Module):
    """See the file; `seen` holds the statistics (m, 2 c) of the records that went through last.

    Args:
        place: what is watched.
        weight: (c,) of the affine map that follows the standard one: the spread, or ones where a norm follows.
        bias: (c,) of the same.
    """

    def __init__(self, place: Place, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.place = place
        kind = FeatureAffine if place.last else ChannelAffine
        self.standard, self.moved, self.back = (kind(place.channels) for _ in range(3))
        with torch.no_grad():
            self.standard.gain.copy_(1.0 / place.spread)
            self.standard.bias.copy_(-place.center / place.spread)
            self.back.gain.copy_(weight)
            self.back.bias.copy_(bias)
        self.requires_grad_(False)
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Maps (m, c, ...), or (m, ..., c)."""
        z = self.moved(self.standard(x))
        self.seen = self._statistics(z)
        moved: Tensor = self.back(z)
        return moved

    def move(self, offset: Tensor, gain: Tensor) -> None:
        """Undoes that channels have these offsets (c,), in deviations of the source's, and gains (c,)."""
        with torch.no_grad():
            self.moved.gain.copy_(1.0 / gain)
            self.moved.bias.copy_(-offset / gain)

    def _statistics(self, z: Tensor) -> Tensor:
        if self.place.single:
            return torch.cat((z, z * z), dim=1)
        if self.place.last:
            z = z.transpose(1, 2) if self.place.sides == 3 else z.permute(0, 3, 1, 2)
        sides = tuple(range(2, self.place.sides))
        mean = z.mean(sides)
        return torch.cat((mean, torch.sqrt(torch.relu((z * z).mean(sides) - mean * mean) + _TINY)), dim=1)


class Probed(nn.Module):
    """A copy of a network with probes; from records to all layers' statistics (m, d).

    The last are of a network the classes' probabilities and the sum of their squares, (m, C + 1).

    Attributes:
        model: from records to scores, with the probes in it.
        probes: in the order of evaluation.
        layers: how many are asked for by themselves.
    """

    def __init__(self, model: nn.Module, places: tuple[Place, ...]) -> None:
        super().__init__()
        self.first: Probe | None = None
        self.model = _opened(model).requires_grad_(False)
        self.probes: list[Probe] = []  # no ModuleList: each is in the network already
        self.layers = sum(not place.scores for place in places)
        self.is_network = not any(isinstance(module, OfEstimator) for module in self.model.modules())
        for place in places:
            if place.path == INPUT:
                self.first = probe = Probe(place, place.spread, place.center)
            else:
                module = self.model.get_submodule(place.path)
                if isinstance(module, BatchNorm):  # its affine map stays, and what timm's do behind it
                    one, zero = torch.ones(place.channels), torch.zeros(place.channels)
                    probe = Probe(place, one, zero)
                    module.running_mean, module.running_var = zero, one - module.eps
                    put(self.model, place.path, nn.Sequential(probe, module))
                else:
                    probe = Probe(place, place.spread, place.center)
                    put(self.model, place.path, nn.Sequential(module, probe))
            self.probes.append(probe)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        scores = self.model(x if self.first is None else self.first(x))
        seen = [probe.seen for probe in self.probes]
        for probe in self.probes:
            probe.seen = None
        if self.is_network:
            shares = torch.softmax(scores, dim=1)
            seen += [shares, (shares * shares).sum(dim=1, keepdim=True)]
        return torch.cat([each for each in seen if each is not None], dim=1)

    def where(self, moves: Sequence[Tensor], *, undone: bool) -> nn.Module:
        """A copy of the network for records whose channels have moved, layer by layer; undone as the probes do or not.

        Moves (2, c) of each probe are offsets, and logarithms of variances, in units of the source's.
        """
        made = copy.deepcopy(self)
        with torch.no_grad():
            for probe, (offset, log) in zip(made.probes, moves, strict=False):  # none of scores
                gain, bias = (probe.moved.gain.clone(), probe.moved.bias) if undone else (torch.ones(1), 0.0 * offset)
                probe.moved.gain.copy_(gain * (0.5 * log).exp())
                probe.moved.bias.copy_(gain * offset + bias)
        return made.model if made.first is None else nn.Sequential(made.first, made.model)

    def adapted_names(self) -> tuple[str, ...]:
        """Of the gains and offsets, in the order of the probes."""
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        return tuple(names[id(own)] for probe in self.probes for own in (probe.moved.gain, probe.moved.bias))

    def delivered(self) -> tuple[nn.Module | None, nn.Module]:
        """What moves the records, if anything does, and the network: new statistics, or affine maps of channels."""
        made = copy.deepcopy(self.model)
        probes = {name: module for name, module in made.named_modules() if isinstance(module, Probe)}
        for name, probe in probes.items():
            path = name.rpartition(".")[0]
            *_, last = made.get_submodule(path).children()
            if isinstance(last, BatchNorm):
                last.running_mean, variance = (each.float() for each in _running_statistics(probe))
                last.running_var = (variance - last.eps).clamp(min=0.0)
                put(made, path, last)
            elif probe.place.scores:
                put(made, path, made.get_submodule(path + ".0"))
            else:
                put(made, name, _plain(probe))
        return None if self.first is None else _plain(self.first), made


def statistics_of(probed: Probed, records: Tensor) -> Tensor:
    """Statistics (m, d) of records (m, ...), float32."""
    with torch.no_grad():
        return torch.cat([probed(part).clamp(-_FARTHEST, _FARTHEST) for part in torch.split(records, AT_ONCE)])


def put(model: nn.Module, path: str, module: nn.Module) -> None:
    """Replaces the submodule at a path."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def find_places(model: nn.Module, records: Tensor) -> tuple[Place, ...]:
    """The layers whose channels can be moved, in the order of evaluation.

    Batch normalisations where there are some; else the outputs of layer and group normalisations, or of convolutions
    and linear layers, but the last; an estimator's scores. Channels of sequences and columns of tables too.

    Args:
        model: from records to scores; it stays as it is.
        records: (m, ...) public ones, of which centers and spreads are taken where the network has none.

    Raises:
        InvalidValue: there is nothing to move.
    """
    model = _opened(model)
    by_kind = ([(path, part) for path, part in model.named_modules() if isinstance(part, kinds)] for kinds in _WATCHED)
    chosen = next(filter(None, by_kind), [])
    outputs = dict(_outputs(model, chosen, records))
    layers = tuple(filter(None, (_place(path, model.get_submodule(path), each) for path, each in outputs.items())))
    if layers and isinstance(model.get_submodule(layers[-1].path), (nn.Conv1d, nn.Conv2d, nn.Linear)):
        # What it computes are the scores. Nothing else tells what recurrent layers make of the records.
        recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
        layers = (*layers[:-1], replace(layers[-1], scores=True)) if recurrent else layers[:-1]
    if records.dim() <= 3 and not are_looked_up(model, records):
        layers = (_of_values(INPUT, records, last=records.dim() == 2 or _reads_sequences(model, records)), *layers)
    if not layers:
        raise InvalidValue(
            "the model has no layer with channels to move (BatchNorm, LayerNorm, GroupNorm, convolutions, linear "
            "layers); choose another method"
        )
    return layers


def _opened(model: nn.Module) -> nn.Module:
    """A copy in which each layer is called, those within torch's encoders too."""
    model = copy.deepcopy(model).cpu().eval()
    for module in model.modules():
        module.__class__ = written_out(module) or module.__class__
    return model


def _outputs(model: nn.Module, parts: Sequence[tuple[str, nn.Module]], records: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What layers that are called once compute of the records, in the order of evaluation."""
    called: list[tuple[str, Tensor]] = []
    for path, module in parts:  # of a copy, so that they stay
        module.register_forward_hook(lambda _, _inputs, output, path=path: called.append((path, output)))
    with torch.no_grad():
        model(records)
    yield from (each for each in called if sum(each[0] == path for path, _ in called) == 1)


def _place(path: str, module: nn.Module, output: Tensor) -> Place | None:
    if output.dim() not in (2, 3, 4):
        return None
    if isinstance(module, BatchNorm):
        mean, variance = module.running_mean, module.running_var
        if mean is None or variance is None:  # it takes each batch's own, which no record has by itself
            return None
        spread = torch.sqrt(variance + module.eps)
        return Place(path, module.num_features, output.dim() == 2, output.dim(), mean.clone(), spread)
    last = isinstance(module, nn.Linear) or output.dim() == 2
    if isinstance(module, nn.LayerNorm):
        last = tuple(module.normalized_shape) == (output.shape[-1],)
    return _of_values(path, output, last=last)


def _of_values(path: str, values: Tensor, *, last: bool) -> Place:
    axis = values.dim() - 1 if last else 1
    flat = values.detach().double().movedim(axis, -1).flatten(0, -2)
    spread = flat.std(dim=0)
    spread = torch.where(spread > _TINY * (1.0 + flat.abs().amax(dim=0)), spread, torch.ones_like(spread))
    return Place(path, flat.shape[1], last, values.dim(), flat.mean(dim=0).float(), spread.float())


def _reads_sequences(model: nn.Module, records: Tensor) -> bool:
    """Whether the last side are the channels: of the first layer's width, else the shorter, or read by attention."""
    first, last = records.shape[1:]
    if first != last:
        widths = (getattr(part, name, 0) for part in model.modules() for name in _WIDTHS)
        return bool(next((width for width in widths if width in (first, last)), min(first, last)) == last)
    return not any(isinstance(part, (nn.Conv1d, nn.BatchNorm1d)) for part in model.modules())


def _running_statistics(probe: Probe) -> tuple[Tensor, Tensor]:
    """Means and variances (c,), float64, of channels that a probe brings to the source's."""
    gain, place = probe.moved.gain.double(), probe.place
    return place.center - place.spread * probe.moved.bias / gain, (place.spread / gain).square()


def _plain(probe: Probe) -> nn.Module:
    """The three affine maps of a probe as one: a batch normalisation with its statistics where channels come first."""
    place, (mean, variance) = probe.place, _running_statistics(probe)
    weight = probe.back.gain * probe.moved.gain.sign()  # no variance tells of an inversion
    if place.last and not place.single:
        affine, gain = FeatureAffine(place.channels), weight * variance.rsqrt()
        with torch.no_grad():
            affine.gain.copy_(gain)
            affine.bias.copy_(probe.back.bias - gain * mean)
        return affine
    made = (nn.BatchNorm2d if place.sides == 4 else nn.BatchNorm1d)(place.channels, eps=_LEAST_EPS)
    made.running_mean, made.running_var = mean.float(), variance.float()
    made.weight, made.bias = (nn.Parameter(own.detach().clone()) for own in (weight, probe.back.bias))
    return made.eval()
