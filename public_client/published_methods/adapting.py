"""Putting adapters into a frozen, source-trained extractor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx, nn

from dpswd.public_client.extractor.adapter_layers import (
    PREFIX,
    AffineWarp2d,
    ChannelAffine,
    FeatureAffine,
    LowRankAffine,
)
from dpswd.public_client.extractor.tracing import VocabularyTracer, is_leaf, trace
from dpswd.shared.core.errors import InvalidValue

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def adapt_for_target(module: nn.Module, input_shape: Sequence[int]) -> nn.Module:
    """A copy of a source-trained extractor with adapters in it, identity at first; everything else frozen.

    Images (c, h, w) get an affine warp and a channel affine before the extractor, and a channel affine after each
    convolution (after its batch norm, where one follows at once). Signals (c, l) get the channel affines, vectors (d,)
    a feature affine before the extractor. The copy keeps the original's names, so its frozen weights load by name, and
    is in eval mode.

    Args:
        module: takes (b, *input_shape); unchanged.
        input_shape: of one record.

    Raises:
        ExtractorUnsupported: the module cannot travel as data.
        InvalidValue: the module already has something called `target_adapter`.
    """
    root, graph, adapters = _frozen_copy(module, tuple(input_shape))
    last = _record(graph)
    for name, adapter in _input_adapters(tuple(input_shape)):
        adapters.add_module(name, adapter)
        last = _insert_after(graph, last, f"{PREFIX}.{name}")
    for node in list(graph.nodes):
        layer = root.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(layer, _CONVOLUTIONS):
            place = _before_adapter(node, root)
            name = _free_name(adapters, "after_" + str(node.target).replace(".", "_"))
            adapters.add_module(name, ChannelAffine(layer.out_channels))
            _insert_after(graph, place, f"{PREFIX}.{name}")
    return _adapted(root, graph)


def insert_adapter(module: nn.Module, input_shape: Sequence[int], adapter: nn.Module) -> nn.Module:
    """A copy of a source-trained extractor with one adapter before it; everything else frozen.

    Args:
        module: takes (b, *input_shape); unchanged.
        input_shape: of one record.
        adapter: records to records of the same shape, made of the closed vocabulary; every trainable parameter of a
            copy of it is adapted.

    Raises:
        ExtractorUnsupported: one of the two cannot travel as data.
        InvalidValue: the adapter changes the records' shape or has nothing to train.
    """
    shape = tuple(input_shape)
    own = copy.deepcopy(adapter).eval()
    if not any(parameter.requires_grad for parameter in own.parameters()):
        raise InvalidValue("the adapter has no trainable parameters; nothing could be adapted")
    with torch.no_grad():
        try:
            seen = tuple(own(torch.zeros(2, *shape)).shape[1:])
        except (RuntimeError, ValueError, IndexError) as error:
            raise InvalidValue(f"the adapter cannot take records of shape {shape} ({error})") from error
    if seen != shape:
        raise InvalidValue(f"the adapter turns records of shape {shape} into {seen}; it must keep their shape")
    root, graph, adapters = _frozen_copy(module, shape)
    adapters.add_module("input", own)
    _insert_after(graph, _record(graph), f"{PREFIX}.input")
    adapted = _adapted(root, graph)
    trace(adapted, shape)
    return adapted


def input_adapter(kind: str, input_shape: Sequence[int], *, rank: int = 4) -> nn.Module:
    """A ready adapter by name, the identity at first.

    Args:
        kind: "warp" (affine resampling) for images (c, h, w); "channels" (a gain and a bias each) for images and
            signals (c, l); "features" (a gain and a bias each) and "low-rank" (identity plus a product of two thin
            matrices) for vectors (d,).
        input_shape: of one record.
        rank: of "low-rank", at most d.

    Raises:
        InvalidValue: there is none of this name for this shape.
    """
    shape = tuple(input_shape)
    made: dict[tuple[str, int], Callable[[], nn.Module]] = {
        ("warp", 3): AffineWarp2d,
        ("channels", 2): lambda: ChannelAffine(shape[0]),
        ("channels", 3): lambda: ChannelAffine(shape[0]),
        ("features", 1): lambda: FeatureAffine(shape[0]),
        ("low-rank", 1): lambda: LowRankAffine(shape[0], min(rank, shape[0])),
    }
    if (kind, len(shape)) not in made:
        allowed = sorted(
            {name for name, rank in made if rank == len(shape)} | ({"monotone"} if len(shape) == 1 else set())
        )
        raise InvalidValue(
            f"there is no {kind!r} adapter for records of shape {shape}; allowed: {', '.join(['auto', *allowed])}"
        )
    return made[kind, len(shape)]()


def source_knots(records: Tensor, count: int) -> Tensor:
    """Knots of `MonotoneColumns` at quantiles of public records, pushed apart where a column has ties.

    Args:
        records: (m, d), public.
        count: knots in each column, at least 2.

    Returns:
        (d, count), increasing in each row.

    Raises:
        InvalidValue: the records are not a finite table.
    """
    if records.dim() != 2 or not len(records) or not bool(torch.isfinite(records).all()):
        raise InvalidValue(f"knots need finite records of shape (m, d), got {tuple(records.shape)}")
    levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    knots = torch.quantile(records.to(torch.float64), levels, dim=0).T.contiguous()  # (d, count)
    low, high = records.amin(dim=0).to(torch.float64), records.amax(dim=0).to(torch.float64)
    # A binary column has two values; its inner knots stand close to one of them. Float32 must still tell them apart.
    apart = torch.maximum((high - low).clamp(min=1e-3) / (10 * count), 1e-6 * torch.maximum(low.abs(), high.abs()))
    for column in range(1, count):
        knots[:, column] = torch.maximum(knots[:, column], knots[:, column - 1] + apart)
    return knots.to(torch.float32)


def _frozen_copy(module: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module, fx.Graph, nn.Module]:
    """A frozen copy in eval mode, its graph, and the empty place for adapters in it."""
    trace(module, shape)
    root = copy.deepcopy(module).eval()
    if is_leaf(root):
        root = nn.Sequential(root)
    if hasattr(root, PREFIX):
        raise InvalidValue(f"the module already has {PREFIX!r}; adapt the source-trained extractor itself")
    for parameter in root.parameters():
        parameter.requires_grad_(False)
    adapters = nn.Module()
    graph = VocabularyTracer(shape).trace(root)
    root.add_module(PREFIX, adapters)
    return root, graph, adapters


def _input_adapters(shape: tuple[int, ...]) -> list[tuple[str, nn.Module]]:
    if len(shape) == 1:
        return [("input_affine", FeatureAffine(shape[0]))]
    affine: list[tuple[str, nn.Module]] = [("input_affine", ChannelAffine(shape[0]))]
    return [("input_warp", AffineWarp2d()), *affine] if len(shape) == 3 else affine


def _record(graph: fx.Graph) -> fx.Node:
    record: fx.Node = next(node for node in graph.nodes if node.op == "placeholder")
    return record


def _adapted(root: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    graph.lint()
    return fx.GraphModule(root, graph, class_name="TargetAdapted").eval()


def _before_adapter(node: fx.Node, root: nn.Module) -> fx.Node:
    """A convolution, or the batch norm that alone follows it."""
    users = list(node.users)
    if len(users) == 1 and users[0].op == "call_module":
        follower = root.get_submodule(str(users[0].target))
        if isinstance(follower, _NORMS):
            return users[0]
    return node


def _insert_after(graph: fx.Graph, node: fx.Node, target: str) -> fx.Node:
    """Routes every user of a value through an inserted layer, and returns what the layer gives."""
    with graph.inserting_after(node):
        inserted = graph.create_node("call_module", target)
    node.replace_all_uses_with(inserted)
    inserted.args = (node,)
    return inserted


def _free_name(parent: nn.Module, stem: str) -> str:
    name, attempt = stem, 2
    while hasattr(parent, name):
        name, attempt = f"{stem}_{attempt}", attempt + 1
    return name
