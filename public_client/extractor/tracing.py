"""From the ML team's `nn.Module` to a graph, on the client's side.

`torch.fx` runs the module's forward method once with symbolic values; layers of the vocabulary are leaves. What was
traced is then lowered node by node. Nothing stops at the first problem: `validate` reports all of them, each by the
layer's path with what to use instead. At last the rebuilt extractor is compared with the module on synthetic records,
so that a difference which tracing cannot see (an in-place operation on an aliased value) cannot travel unnoticed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

from dpswd.public_client.extractor.calls import FUNCTIONS, INSTEAD, METHODS, NAMED
from dpswd.public_client.extractor.functions import Function
from dpswd.public_client.extractor.lowering import UNKNOWN, Builder, Problem, Refused, Traced, Truth
from dpswd.public_client.extractor.made_records import made_records
from dpswd.public_client.extractor.modules import ELSE, lower_module
from dpswd.public_client.extractor.rewriting import REWRITES
from dpswd.public_client.extractor.sizes import with_batch
from dpswd.public_client.extractor.tracer import VocabularyTracer, is_leaf
from dpswd.public_client.extractor.unlowered import Held, Unlowered, Whole
from dpswd.public_client.extractor.views import concatenate, item
from dpswd.shared.core.errors import ExtractorUnsupported, InvalidValue
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.graph import ExtractorGraph, operation_of, tensor_name
from dpswd.shared.sandbox.operations import Shape

AGREEMENT = 1e-3
"""Largest difference between module and rebuilt extractor, relative to the largest feature: float32 sums in another
order differ by 1e-5 in deep networks; a wrong operation differs by order one."""
_VIEWS = {"getitem", "reshape", "permute", "contiguous", "expand"}
_OF_SIZES = ("size", "dim", math.sqrt)  # of what is known they are numbers while it is traced
_CONTROL_FLOW = "move branches and loops on values or shapes out of forward (torch.fx runs it once, on symbols)"
_EMBEDDED = (
    "A frozen backbone need not travel: the hospital's operator can turn records into its features with "
    "`dpswd-curator records embed --model backbone.onnx` (docs/ml-team/extractors.md), and what is behind it travels"
)


def trace(module: nn.Module, input_shape: Sequence[int]) -> ExtractorGraph:
    """Traces a module into a graph of the closed vocabulary.

    Args:
        module: batch norm in eval mode; takes (b, *input_shape), gives (b, d).
        input_shape: of one record.

    Raises:
        ExtractorUnsupported: with every problem, by the layer's path and with what to use instead.
    """
    graph, problems = _attempt(module, tuple(input_shape))
    if graph is None:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        hint = f"\n{_EMBEDDED}" if any(problem.outside for problem in problems) else ""
        raise ExtractorUnsupported(f"the extractor cannot travel as data:\n{listed}{hint}")
    return graph


def module_weights(module: nn.Module, graph: ExtractorGraph) -> dict[str, Tensor]:
    """The tensors of a traced module that its graph names, detached."""
    state = dict(module.named_buffers(remove_duplicate=False)) | module.state_dict()  # buffers need not persist
    if missing := sorted(set(graph.tensor_shapes) - set(state)):
        raise InvalidValue(f"the module lacks tensors of the graph: {missing[:5]}")
    tensors = {name: state[name].detach() for name in graph.tensor_shapes}
    exact = (torch.bool, torch.int32, torch.int64)  # truths and places are numbers in a graph
    return {name: tensor.float() if tensor.dtype in exact else tensor for name, tensor in tensors.items()}


def weights_to_bytes(weights: Mapping[str, Tensor]) -> bytes:
    """Serialises float32 tensors; the same tensors give the same bytes on any machine."""
    for name, tensor in weights.items():
        if tensor.dtype != torch.float32:
            raise InvalidValue(f"{name} is {tensor.dtype}; only float32 travels, call module.float() first")
    ordered = {name: weights[name].detach().cpu().contiguous().clone() for name in sorted(weights)}
    return bytes(safetensors.torch.save(ordered))


def validate(module: nn.Module, input_shape: Sequence[int]) -> list[Problem]:
    """All the reasons why a module cannot travel as data; an empty list if it can. No curator is asked."""
    return _attempt(module, tuple(input_shape))[1]


def _attempt(module: nn.Module, input_shape: Shape) -> tuple[ExtractorGraph | None, list[Problem]]:
    traced = _trace(module, input_shape)
    if isinstance(traced, Problem):
        return None, [traced, *_scan(module)]
    lowering = _Lowering(module, traced, input_shape)
    output = lowering.run()
    if lowering.problems or output is None:
        return None, lowering.problems
    try:
        graph = lowering.graph(output)
        _compare(module, graph)
    except Refused as refusal:
        return None, [Problem("", refusal.reason, refusal.instead)]
    except InvalidValue as error:
        return None, [Problem("", str(error), "use a smaller or differently shaped extractor")]
    return graph, []


def _trace(module: nn.Module, input_shape: Shape) -> fx.Graph | Problem:
    if is_leaf(module):  # a single layer: its own forward must not be traced into
        graph = fx.Graph()
        graph.output(graph.call_module("", (graph.placeholder("input"),)))
        return graph
    for proxied in (True, False):  # a forward that branches on a buffer needs its values
        tracer = VocabularyTracer(input_shape)
        tracer.proxy_buffer_attributes = proxied
        try:
            return tracer.trace(module)
        except Exception as error:  # noqa: BLE001 - the module's own code ran, and may fail in any way
            reason = f"tracing failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            problem = Problem(tracer.failed_at or "", reason[:300], _CONTROL_FLOW)
    return problem


def _scan(module: nn.Module) -> list[Problem]:
    """Problems that show layer by layer, for a module that cannot be traced as a whole."""
    problems = []
    for path, child in module.named_modules():
        try:
            if is_leaf(child):
                lower_module(Builder((1,)), child, path, (UNKNOWN,), {})
        except Refused as refusal:
            problems.append(Problem(path, refusal.reason, refusal.instead))
    return problems


class _Lowering:
    """One pass over a traced program."""

    def __init__(self, module: nn.Module, traced: fx.Graph, input_shape: Shape) -> None:
        self.problems: list[Problem] = []
        self._module = module
        self._traced = traced
        self._input_shape = input_shape
        self._builder = Builder(input_shape)
        self._values: dict[fx.Node, Any] = {}
        self._inputs = 0

    def run(self) -> Traced | None:
        """Lowers what the output needs; None where it is no tensor of the graph."""
        self._traced.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
        output = None
        for node in self._traced.nodes:
            if node.op == "output":
                output = self._resolve(node.args[0])
            else:
                self._values[node] = self._lower(node)
        if isinstance(output, Traced):
            return output
        own = Refused(f"forward returns {type(output).__name__}, not one tensor", "return one tensor (b, features)")
        own = output.refused("returning") if isinstance(output, Unlowered) else own
        self.problems.append(Problem("", own.reason, own.instead))
        return None

    def graph(self, output: Traced) -> ExtractorGraph:
        """The graph of what the output needs, renumbered."""
        if len(output.shape) != 1:
            raise Refused(f"the output has shape {output.shape} per record, not a vector", "end with nn.Flatten()")
        keep: set[int] = set()
        stack = [output.number]
        while stack:
            number = stack.pop()
            if number and number not in keep:
                keep.add(number)
                stack.extend(self._builder.nodes[number - 1].inputs)
        numbers = {0: 0} | {old: new for new, old in enumerate(sorted(keep), start=1)}
        remaining = (self._builder.nodes[old - 1] for old in sorted(keep))
        nodes = tuple(replace(node, inputs=tuple(numbers[i] for i in node.inputs)) for node in remaining)
        graph = ExtractorGraph(nodes, self._input_shape)
        _refuse_tied(self._module, graph)
        _refuse_not_finite(self._module, graph)
        return graph

    def _lower(self, node: fx.Node) -> Any:
        path = str(node.target) if node.op == "call_module" else _module_path(node)
        try:
            self._refuse_in_place(node)
            return self._dispatch(node)
        except Refused as refusal:
            self.problems.append(Problem(path, refusal.reason, refusal.instead))
        except (TypeError, IndexError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
            what = f"{_name(node)} is called in a way that is not in the vocabulary ({error})"
            self.problems.append(Problem(path, what[:300], "use the plain form in docs/ml-team/extractors.md"))
        return UNKNOWN

    def _dispatch(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            self._inputs += 1
            if self._inputs == 1:
                return self._builder.record()
            if node.args:
                return node.args[0]  # the default value of a further argument
            raise Refused(f"forward takes a second input {node.name!r}", "take one tensor of records")
        arguments = self._resolve(node.args)
        options = self._resolve(node.kwargs)
        if node.op == "call_module":
            layer = self._module.get_submodule(str(node.target))
            return lower_module(self._builder, layer, str(node.target), arguments, options)
        if node.op == "get_attr":
            return self._held(str(node.target))
        if node.op == "call_method":
            lower = METHODS.get(str(node.target))
        else:
            lower = FUNCTIONS.get(node.target) or NAMED.get(getattr(node.target, "__name__", ""))
        name, given = _name(node).strip(".()"), (*arguments, *options.values())
        among = [one for each in given for one in (each if isinstance(each, (list, tuple)) else (each,))]
        if any(one is UNKNOWN for one in among) and (lower or name in REWRITES or node.target in _OF_SIZES):
            return UNKNOWN
        return self._call(lower or _without_word(_name(node)), name, *arguments, **options)

    def _call(self, lower: Function, name: str, *arguments: Any, **options: Any) -> Any:
        """Lowers a function or method; what is no value of a record yet decides itself what it can be taken to."""
        if not arguments and "input" in options:
            arguments = (options.pop("input"),)
        first, others = arguments[0], (*arguments[1:], *options.values())
        if isinstance(first, Unlowered):
            return first.called(self._builder, name, lower, *arguments[1:], **options)
        among = tuple(first) if isinstance(first, (tuple, list)) else ()
        if lower not in (concatenate, item) and any(isinstance(entry, (Traced, Unlowered)) for entry in among):
            raise Refused(
                f"{name} of several tensors at once", "unpack them, as _, (h, c) = lstm(x) and then h[-1], and take one"
            )
        for entry in (*(among if lower is concatenate else ()), *others):
            if isinstance(entry, Unlowered) and not isinstance(entry, Held):
                raise entry.refused(name)
        return _as_truth(first, name, lower(self._builder, *arguments, **options), others)

    def _held(self, target: str) -> Unlowered:
        """A tensor that forward reads itself."""
        trained = dict(self._module.named_parameters(remove_duplicate=False)).get(target)
        value = trained if trained is not None else dict(self._module.named_buffers(remove_duplicate=False)).get(target)
        made = getattr(self._module, target, None) if value is None else value  # torch.arange(10), in forward
        if isinstance(made, Tensor) and made.dtype in (torch.int64, torch.int32) and trained is None:
            return Whole(target, made.detach().cpu(), tuple(made.shape), complete=value is not None)
        if value is None:
            raise Refused(f"forward reads {target!r}, which is no parameter or buffer", "register it with the module")
        if value.dtype not in (torch.float32, torch.bool):
            raise Refused(f"{target} is {value.dtype}; only float32 travels", "call .float()")
        shape = tuple(value.shape)
        return Held(target, shape, trained is not None, shape, truth=value.dtype == torch.bool)

    def _refuse_in_place(self, node: fx.Node) -> None:
        """An in-place operation changes a value that others may still read; the graph would not."""
        if not node.all_input_nodes or len(node.all_input_nodes[0].users) < 2:
            return
        if node.op == "call_module":
            in_place = bool(getattr(self._module.get_submodule(str(node.target)), "inplace", False))
        else:
            name = str(node.target) if node.op == "call_method" else ""
            in_place = bool(node.kwargs.get("inplace")) or (name.endswith("_") and not name.endswith("__"))
        if in_place:
            raise Refused("works in place on a value that is used elsewhere too", "use inplace=False")

    def _resolve(self, argument: Any) -> Any:
        return fx.node.map_arg(with_batch(argument), lambda node: self._values[node])


def _without_word(name: str) -> Function:
    plain = name.strip(".()").rstrip("_")
    what = "in this form mixes records, or is" if plain in REWRITES else "is"

    def refuse(*_: Any, **__: Any) -> None:
        raise Refused(f"{name} {what} not in the vocabulary", INSTEAD.get(plain, ELSE))

    return refuse


def _as_truth(first: Any, name: str, result: Any, others: tuple[Any, ...]) -> Any:
    """A view of truths holds truths; as a float it holds numbers."""
    if not isinstance(first, Truth) or not isinstance(result, Traced):
        return result
    number = name in ("float", "type_as") or any(isinstance(other, torch.dtype) for other in others)
    if not number and (isinstance(result, Truth) or name in _VIEWS):
        return Truth(result.number, result.shape)
    return Traced(result.number, result.shape)


def _module_path(node: fx.Node) -> str:
    """Path of the module whose forward called a function."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(next(reversed(stack))) if stack else ""


def _name(node: fx.Node) -> str:
    return f".{node.target}()" if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))


def _refuse_tied(module: nn.Module, graph: ExtractorGraph) -> None:
    """One tensor under two names would receive only part of its gradient under each."""
    owners: dict[int, str] = {}
    for node in graph.nodes:
        for name in operation_of(node).parameters(node.attributes):
            tensor = module.get_parameter(tensor_name(node.path, name))
            if owners.setdefault(id(tensor), node.path) != node.path:
                tied = f"{node.path}.{name} is tied to a tensor of {owners[id(tensor)]}"
                raise Refused(tied, "call the same layer twice, or untie them")


def _refuse_not_finite(module: nn.Module, graph: ExtractorGraph) -> None:
    """Weights that a diverged training left behind."""
    for name, tensor in module_weights(module, graph).items():
        if not bool(torch.isfinite(tensor).all()):
            raise Refused(
                f"{name} holds NaN or infinity", "load weights from before it diverged, or train at a lower rate"
            )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode for a moment; every layer's own mode comes back."""
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for child, training in modes:
            child.training = training


def without_parametrizations(network: nn.Module) -> nn.Module:
    """A copy whose weights are plain tensors: bounds and norms of weights are for training."""
    made = copy.deepcopy(network)
    for part in list(made.modules()):
        for name in list(getattr(part, "parametrizations", ())):
            parametrize.remove_parametrizations(part, name)
        for hook in [hook for hook in part._forward_pre_hooks.values() if isinstance(hook, WeightNorm)]:
            remove_weight_norm(part, hook.name)
    return made


def _compare(module: nn.Module, graph: ExtractorGraph) -> None:
    """Runs module and rebuilt extractor on two synthetic records."""
    weights = module_weights(module, graph)
    device = next((tensor.device for tensor in weights.values()), torch.device("cpu"))
    records = made_records(graph, (2, *graph.input_shape)).to(device)
    asked = [node.attributes["constant"] for node in graph.nodes if node.operation == "equal_to"]
    for number in asked[:1]:  # padding, which made numbers would hardly meet
        records[1].view(-1)[-(records[1].numel() // 3) :] = number
    with torch.no_grad(), evaluating(module):
        expected = module(records.clone())
    rebuilt = Extractor(graph, weights, device=device).features(records)
    scale = float(expected.abs().max()) + 1e-6
    difference = float((expected - rebuilt).abs().max()) if expected.shape == rebuilt.shape else float("inf")
    if not difference <= AGREEMENT * scale:
        raise Refused(
            "the rebuilt extractor computes something else than the module",
            "avoid in-place operations on shared values, code that depends on the mode or on state, and padding that "
            "nn.TransformerEncoder sets to 0 in evaluation only (enable_nested_tensor=False)",
        )
