"""Records to try a network on, which may look their numbers up: of words, or codes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpswd.shared.sandbox.graph import ExtractorGraph


def made_records(network: ExtractorGraph | nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Of this shape; whole numbers, which all tables have, where there are tables."""
    if isinstance(network, ExtractorGraph):
        rows = [node.attributes["num_embeddings"] for node in network.nodes if node.operation == "embedding"]
    else:
        rows = [table.num_embeddings for table in network.modules() if isinstance(table, nn.Embedding)]
    some = torch.Generator().manual_seed(0)
    return torch.randint(min(rows), shape, generator=some).float() if rows else torch.randn(shape, generator=some)


def are_looked_up(model: nn.Module, records: Tensor) -> bool:
    """Whether embeddings read what varies in records (m, ...), which no affine map may move then."""
    read: list[Tensor] = []
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    hooks = [table.register_forward_pre_hook(lambda _, numbers: read.append(numbers[0])) for table in tables]
    with torch.no_grad():
        model(records)
    for hook in hooks:
        hook.remove()
    columns = records.flatten(1)
    columns = columns[:, (columns != columns[:1]).any(dim=0), None]
    read = [numbers.reshape(len(records), 1, -1) for numbers in read if numbers.numel() % len(records) == 0]
    return any(bool((columns == numbers).all(dim=0).any()) for numbers in read)
