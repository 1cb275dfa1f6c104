"""Evaluation of a graph, one record at a time.

Every feature and every gradient is computed under `torch.func.vmap` of a function of ONE record, the weights and public
tensors. One record can therefore never see another, whatever the graph says: the sensitivity proofs
(docs/privacy, 2 and 5) rest on that, and `check_row_independence` tests it on the machine at hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import vmap

from dpswd.shared.core.errors import DpswdError, InvalidValue
from dpswd.shared.sandbox.graph import ExtractorGraph, operation_of, tensor_name
from dpswd.shared.sandbox.operations import Shape
from dpswd.shared.sandbox.weights import check_weights

CACHED_VALUES = 2**26
"""Up to so many intermediate numbers of a whole batch, `begin` keeps them for the gradients (about 750 MB with what
autograd adds); beyond, they are computed twice."""
CHUNK_VALUES = {"cpu": 2**21, "cuda": 2**28}
"""Numbers in the intermediate values of one chunk of records: on a CPU about what its caches hold (8 MiB), on a GPU a
gigabyte."""

STEP_VALUES = 2**12
"""Numbers that a step of a graph needs to be worth its start: chunks of recurrent layers are larger than caches."""
SCRATCH_VALUES = 2**27
"""Scratch numbers of one chunk of records, half a gigabyte."""

MAX_CHECKED = 2**18
"""Numbers in a tensor whose gradients the row check computes: it runs on every upload and must stay cheap."""


class RowsDepend(DpswdError):
    """Perturbing one record changed another's features: this device or build cannot be used."""


class ForwardPass:
    """One forward pass: features of a batch of records, and on demand the gradient of each record by itself.

    The gradients can be taken later, after a release has been made from the features. Each record is evaluated together
    with its own copy of the declared tensors, under vmap; autograd through the vmapped function then leaves in each
    copy the gradient of its own record. A copy is used by its record alone, so the rows are independent by
    construction, and the whole batch costs one backward pass.

    Attributes:
        outputs: (b, d), the features of each record, detached.
    """

    def __init__(
        self,
        *,
        evaluate: Callable[[Tensor, dict[str, Tensor]], Tensor],
        records: Tensor,
        declared: Mapping[str, Tensor],
        chunk_size: int,
        keep: bool,
    ) -> None:
        self._evaluate = evaluate
        self._declared = declared
        if not len(records):
            raise InvalidValue("a forward pass needs at least one record")
        self._chunks = torch.split(records, chunk_size)
        self._graphs: list[tuple[Tensor, list[Tensor]]] = []
        outputs = []
        for chunk in self._chunks:
            with torch.set_grad_enabled(keep):
                out, copies = self._forward(chunk)
            outputs.append(out.detach())
            if keep:
                self._graphs.append((out, copies))
        self.outputs = torch.cat(outputs)

    def gradients(self, cotangents: Tensor) -> Tensor:
        """The gradient of <cotangent, features> for each record.

        Frees what was kept; a second call evaluates the records again.

        Args:
            cotangents: (b, d), one for each record.

        Returns:
            (b, p), flattened in the order in which the tensors were declared.

        Raises:
            InvalidValue: the cotangents have another shape than the outputs.
        """
        if cotangents.shape != self.outputs.shape:
            raise InvalidValue(f"cotangents must have the outputs' shape {tuple(self.outputs.shape)}")
        graphs, self._graphs = self._graphs, []
        parts = []
        of_chunks = torch.split(cotangents, len(self._chunks[0]))
        for position, (chunk, rows) in enumerate(zip(self._chunks, of_chunks, strict=True)):
            if graphs:
                out, copies = graphs[position]
                graphs[position] = (out.detach(), [])  # lets the graph go as soon as it is used
            else:
                with torch.enable_grad():
                    out, copies = self._forward(chunk)
            if not out.requires_grad:  # all that reaches it stands before a comparison
                parts.append(out.new_zeros(len(chunk), sum(copy[0].numel() for copy in copies)))
                continue
            rows = rows.detach().to(out)
            gradients = torch.autograd.grad(out, copies, rows, allow_unused=True, materialize_grads=True)
            parts.append(torch.cat([gradient.reshape(len(chunk), -1) for gradient in gradients], dim=1))
        return torch.cat(parts)

    def _forward(self, chunk: Tensor) -> tuple[Tensor, list[Tensor]]:
        copies = {
            name: tensor.detach().expand(len(chunk), *tensor.shape).requires_grad_()
            for name, tensor in self._declared.items()
        }
        return self._evaluate(chunk, copies), list(copies.values())


class Extractor:
    """A graph with its weights on a device.

    Attributes:
        graph: the validated graph.
        device: where records are evaluated.

    Raises:
        InvalidValue: the weights, which are copied, are not exactly the graph's, or not finite.
    """

    def __init__(
        self, graph: ExtractorGraph, weights: Mapping[str, Tensor], *, device: torch.device | str = "cpu"
    ) -> None:
        check_weights(graph, weights)
        self.graph = graph
        self.device = torch.device(device)
        self._weights = {
            name: _laid_out(weights[name].detach().to(self.device, copy=True)) for name in graph.tensor_shapes
        }
        self._tensor_names = [
            {name: tensor_name(node.path, name) for name in operation_of(node).tensors(node.attributes)}
            for node in graph.nodes
        ]

    @property
    def weights(self) -> dict[str, Tensor]:
        """The tensors by name (shared, not copied)."""
        return dict(self._weights)

    def features(
        self,
        records: Tensor,
        *,
        names: Sequence[str] = (),
        adapted: Tensor | None = None,
        chunk_size: int | None = None,
    ) -> Tensor:
        """Features of each record by itself, without gradients.

        Args:
            records: (b, *input_shape).
            names: the adapted tensors.
            adapted: their values in this step, (p,), in the order of `names`; None for the uploaded ones.
            chunk_size: records evaluated at once; by default what the device's caches hold.

        Returns:
            (b, feature_dimension), float32, on the extractor's device.
        """
        x = self._place(records)
        evaluate = self._evaluator(self._with(names, adapted))
        with torch.no_grad():
            # vmap refuses an empty batch; its dimension is known without it.
            chunks = torch.split(x, chunk_size or self.default_chunk_size())
            parts = [evaluate(chunk, {}) for chunk in chunks if len(chunk)]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts) if parts else x.new_zeros(0, self.graph.feature_dimension)

    def begin(
        self,
        records: Tensor,
        names: Sequence[str],
        *,
        adapted: Tensor | None = None,
        chunk_size: int | None = None,
    ) -> ForwardPass:
        """Evaluates the records and keeps what their gradients need, so that a release can stand in between.

        Args:
            records: (b, *input_shape).
            names: the declared trainable tensors, in the order of the flat gradient.
            adapted: their values in this step, (p,); None for the uploaded ones.
            chunk_size: records evaluated at once; by default what the device's caches hold.

        Returns:
            The features and, on demand, the gradient of each record.

        Raises:
            InvalidValue: there are no records, or they are of another shape or type; the names are not declarable.
        """
        shapes = self.gradient_shapes(names)
        x = self._place(records)
        weights = self._with(names, adapted)
        return ForwardPass(
            evaluate=self._evaluator(weights),
            records=x,
            declared={name: weights[name] for name in shapes},
            chunk_size=chunk_size or self.default_chunk_size(shapes),
            keep=len(x) * (self.graph.cost.activations + _numbers(shapes)) <= CACHED_VALUES,
        )

    def _evaluator(self, weights: Mapping[str, Tensor]) -> Callable[[Tensor, dict[str, Tensor]], Tensor]:
        """(records, copies of the declared tensors, one for each record) -> features, under vmap."""
        return vmap(lambda record, own: self._run(record, {**weights, **own}))

    def gradient_shapes(self, names: Sequence[str]) -> dict[str, Shape]:
        """Shapes of the declared tensors, in order.

        Raises:
            InvalidValue: unknown, repeated or no names, or one that no gradient reaches.
        """
        shapes = self.graph.parameter_shapes
        unknown = [name for name in names if name not in shapes]
        if unknown or len(set(names)) != len(names) or not names:
            raise InvalidValue(
                f"declare trainable tensors of the graph, each once and at least one; unknown: {unknown[:5]}"
            )
        if cut := [name for name in names if name not in self.graph.learnable]:
            raise InvalidValue(
                f"no gradient reaches {cut[:5]}: an embedding or a comparison stands behind; declare what is after it"
            )
        return {name: shapes[name] for name in names}

    def default_chunk_size(self, declared: Mapping[str, Shape] | None = None) -> int:
        """Records that fit the caches with their own copies of declared tensors, or are worth reading all weights."""
        cost = self.graph.cost
        caches = CHUNK_VALUES.get(self.device.type, CHUNK_VALUES["cuda"])
        fit = max(caches, min(max(STEP_VALUES * cost.steps, cost.parameters), CACHED_VALUES))
        chunk = fit // (cost.activations + _numbers(declared or {}))
        if not declared:  # forwards alone keep nothing for a way back: each value by itself has to fit
            chunk = max(chunk, min(CACHED_VALUES // cost.activations, caches // max(map(math.prod, self.graph.shapes))))
        return max(1, min(chunk, SCRATCH_VALUES // max(1, cost.workspace)))

    def _place(self, records: Tensor) -> Tensor:
        if records.dtype != torch.float32 or tuple(records.shape[1:]) != self.graph.input_shape or not records.dim():
            raise InvalidValue(
                f"records must be float32 of shape (b, {', '.join(map(str, self.graph.input_shape))}), got "
                f"{records.dtype} of {tuple(records.shape)}"
            )
        return records.detach().to(self.device)

    def _with(self, names: Sequence[str], adapted: Tensor | None) -> dict[str, Tensor]:
        """The stored tensors, with the adapted ones in their place."""
        if adapted is None:
            return self._weights
        if adapted.dtype != torch.float32:
            raise InvalidValue(f"adapted values must be float32, got {adapted.dtype}")
        own = split_vector(adapted.detach().to(self.device), self.gradient_shapes(names))
        return self._weights | {name: _laid_out(tensor) for name, tensor in own.items()}

    def _run(self, record: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Evaluates the graph on one record (*input_shape) -> (feature_dimension,)."""
        values = [record]
        for node, names in zip(self.graph.nodes, self._tensor_names, strict=True):
            tensors = {short: weights[name] for short, name in names.items()}
            try:
                values.append(operation_of(node).apply([values[i] for i in node.inputs], node.attributes, tensors))
            except Exception as error:
                error.add_note(f"in node {len(values) - 1} ({node.operation})")
                raise
        return values[-1]


def split_vector(vector: Tensor, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Cuts flat values or gradients (..., p) into named tensors (..., *shape), in the order of `shapes`."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    if vector.shape[-1] != sum(sizes):
        raise InvalidValue(f"the vector has {vector.shape[-1]} numbers, the named tensors {sum(sizes)}")
    parts = torch.split(vector, sizes, dim=-1)
    return {
        name: part.reshape(*vector.shape[:-1], *shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def check_row_independence(extractor: Extractor) -> None:
    """Perturbs one synthetic record in several ways, not-a-number included, and demands the others bit-identical.

    Gradients are checked for the first and the last of the tensors that hold at most `MAX_CHECKED` numbers.

    Args:
        extractor: on the device where it will serve.

    Raises:
        RowsDepend: another row's features, or gradients, changed.
    """
    rows = 4
    generator = torch.Generator().manual_seed(0)  # synthetic records: no one's data
    batch = torch.randn(rows, *extractor.graph.input_shape, generator=generator)
    small = [name for name, shape in extractor.graph.learnable.items() if math.prod(shape) <= MAX_CHECKED]
    names = list(dict.fromkeys((*small[:1], *small[-1:])))
    position = int(torch.randint(rows, (), generator=generator))
    others = [row for row in range(rows) if row != position]
    perturbed = (
        torch.randn(extractor.graph.input_shape, generator=generator),
        torch.full(extractor.graph.input_shape, 1e30),  # overflows to infinity on its way
        torch.full(extractor.graph.input_shape, float("nan")),
    )

    def outputs(records: Tensor) -> list[Tensor]:
        parts = [extractor.features(records, chunk_size=rows)[others]]
        if names:
            forward = extractor.begin(records, names, chunk_size=rows)
            parts.append(forward.gradients(forward.outputs)[others])
        return parts

    reference = outputs(batch)
    for replacement in perturbed:
        changed = batch.clone()
        changed[position] = replacement
        for before, after in zip(reference, outputs(changed), strict=True):
            # Compare bits, so that a not-a-number equals itself.
            if not torch.equal(before.view(torch.int32), after.view(torch.int32)):
                raise RowsDepend(
                    "perturbing one record changed another's features or gradients on this device; "
                    "do not serve records with it"
                )


def _laid_out(tensor: Tensor) -> Tensor:
    """Puts the channels of a convolution's weights innermost on a CPU: convolution and pooling follow their layout."""
    if tensor.dim() != 4 or tensor.device.type != "cpu":
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)


def _numbers(shapes: Mapping[str, Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def compute_in_full_float32() -> None:
    """Keeps CUDA's convolutions and products in this process from TF32's 10 bits, and makes them repeatable.

    A hospital's features should be those that the client's own machine computes, but for the order of float32 sums; and
    the same step twice should have the same ones.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
