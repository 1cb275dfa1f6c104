"""``python -m private_curator.worker.onnx_program``: a worker that evaluates an ONNX model, confined like any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from private_curator.worker.start import main

if TYPE_CHECKING:
    from private_curator.worker.loop import Operation


def operations() -> Mapping[str, Operation]:
    """The model's messages; numpy's and onnxruntime's threads start here, when the network has been left."""
    from private_curator.worker import onnx_model

    return onnx_model.operations()


if __name__ == "__main__":
    main(operations)
