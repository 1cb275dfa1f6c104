"""``python -m dpswd.private_curator.onnx.program``: a worker that evaluates an ONNX model, confined like any other."""

from __future__ import annotations

from typing import Any

from dpswd.private_curator.sandbox.start import main


def operations() -> Any:
    """The model's messages; numpy's and onnxruntime's threads start here, when the network has been left."""
    from dpswd.private_curator.onnx import model as onnx_model

    return onnx_model.operations()


if __name__ == "__main__":
    main(operations)
