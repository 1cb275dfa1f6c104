"""Putting adapters into a frozen, source-trained extractor."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

from torch import fx, nn

from shared.errors import InvalidValue
from shared.extractor.adapters import AffineWarp2d, ChannelAffine, FeatureAffine, adapter_parameter_names
from shared.extractor.tracing import VocabularyTracer, is_leaf, trace

PREFIX = "target_adapter"
"""Where the adapters stand in the adapted module: `target_adapter.input_warp.theta` and so on."""

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
    shape = tuple(input_shape)
    trace(module, shape)
    root = copy.deepcopy(module).eval()
    if is_leaf(root):
        root = nn.Sequential(root)
    if hasattr(root, PREFIX):
        raise InvalidValue(f"the module already has {PREFIX!r}; adapt the source-trained extractor itself")
    for parameter in root.parameters():
        parameter.requires_grad_(False)
    graph = VocabularyTracer().trace(root)
    adapters = nn.Module()
    root.add_module(PREFIX, adapters)
    record = next(node for node in graph.nodes if node.op == "placeholder")
    for name, adapter in _input_adapters(shape):
        adapters.add_module(name, adapter)
        _insert_after(graph, _last_input(graph, record), f"{PREFIX}.{name}")
    for node in list(graph.nodes):
        layer = root.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(layer, _CONVOLUTIONS):
            place = _before_adapter(node, root)
            name = _free_name(adapters, "after_" + str(node.target).replace(".", "_"))
            adapters.add_module(name, ChannelAffine(layer.out_channels))
            _insert_after(graph, place, f"{PREFIX}.{name}")
    graph.lint()
    adapted = fx.GraphModule(root, graph, class_name="TargetAdapted")
    return adapted.eval()


def adapter_size(module: nn.Module) -> int:
    """How many numbers the adapters hold: the dimension of the sanitized gradient."""
    parameters = dict(module.named_parameters())
    return sum(math.prod(parameters[name].shape) for name in adapter_parameter_names(module))


def _input_adapters(shape: tuple[int, ...]) -> list[tuple[str, nn.Module]]:
    if len(shape) == 1:
        return [("input_affine", FeatureAffine(shape[0]))]
    affine: list[tuple[str, nn.Module]] = [("input_affine", ChannelAffine(shape[0]))]
    return [("input_warp", AffineWarp2d()), *affine] if len(shape) == 3 else affine


def _last_input(graph: fx.Graph, record: fx.Node) -> fx.Node:
    """The record, or the adapter that was inserted last after it."""
    last = record
    for node in graph.nodes:
        if node.op == "call_module" and str(node.target).startswith(f"{PREFIX}.input_"):
            last = node
    return last


def _before_adapter(node: fx.Node, root: nn.Module) -> fx.Node:
    """A convolution, or the batch norm that alone follows it."""
    users = list(node.users)
    if len(users) == 1 and users[0].op == "call_module":
        follower = root.get_submodule(str(users[0].target))
        if isinstance(follower, _NORMS):
            return users[0]
    return node


def _insert_after(graph: fx.Graph, node: fx.Node, target: str) -> None:
    """Routes every user of a value through an inserted layer."""
    with graph.inserting_after(node):
        inserted = graph.create_node("call_module", target)
    node.replace_all_uses_with(inserted)
    inserted.args = (node,)


def _free_name(parent: nn.Module, wanted: str) -> str:
    name, attempt = wanted, 2
    while hasattr(parent, name):
        name, attempt = f"{wanted}_{attempt}", attempt + 1
    return name
