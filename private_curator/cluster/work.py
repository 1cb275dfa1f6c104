"""What Dask calls on a node, and what the courier names without loading all that a node is made of."""

from __future__ import annotations


def sum_shard(request: bytes, extractor: tuple[bytes, bytes]) -> bytes:
    """The answer to a task (private_curator/cluster/task.py).

    Args:
        request: the task.
        extractor: graph and weights.
    """
    from dpswd.private_curator.cluster import node

    return node.answer(request, *extractor)
