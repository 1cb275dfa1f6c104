"""An ONNX model in a confined worker, seen from the operator's command: described, opened, asked for features.

The worker has no network, reads no file but libraries, and is ended when it exceeds its time or memory, as for
extractors. What it answers is an array of a size that was agreed before, and checked by the caller.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from dpswd.private_curator.sandbox.arena import Arena, FloatArray, blob, lay_out
from dpswd.private_curator.sandbox.process import LimitReached, WorkerFailed, WorkerProcess, WorkerSettings, list_layers
from dpswd.shared.core.errors import ExtractionStopped, InvalidValue, RequestInvalid
from dpswd.shared.sandbox.graph import MAX_FEATURES

MAX_MODEL_BYTES = (1 << 31) - 1
"""A protocol buffer is not longer; larger models keep their weights in files beside, which are refused."""
_SHOWN = 600  # characters of a refusal that are told
_NOT_STARTED = "ONNX models are evaluated by onnxruntime, which did not start ({}): pip install 'dpswd[embed]'"
_PROGRAM = (sys.executable, "-P", "-m", "dpswd.private_curator.onnx.program")


class OnnxWorker:
    """The worker of a model, until `close`; raises SettingsError without onnxruntime, or where none starts.

    Args:
        model: its bytes.
        memory_bytes: of the worker, beyond what it needs to start.
        seconds: for one batch of records.
        threads: of its arithmetic; 0 leaves onnxruntime's choice.
    """

    def __init__(self, model: bytes, *, memory_bytes: int, seconds: float, threads: int) -> None:
        self._threads = threads
        self._settings = WorkerSettings(
            device="cpu", threads=1, memory_bytes=memory_bytes, seconds=seconds, program=_PROGRAM
        )
        self._arena: Arena | None = None
        self._process = WorkerProcess(self._settings)
        self.features = 0
        """d, after `open`."""
        self.peak_bytes = 0
        """The largest memory of the worker so far, libraries included."""
        try:
            self.confinement = list_layers(self._process.ready(otherwise=_NOT_STARTED))
            descriptor = blob(model)
            try:
                self.description = self._ask({"op": "describe"}, (descriptor,))
            finally:
                os.close(descriptor)
        except BaseException:
            self.close()
            raise

    def open(self, record_shape: Sequence[int], *, feature: str | None) -> int:
        """Loads the model in onnxruntime, and returns d, the numbers of one feature.

        Args:
            record_shape: of one record.
            feature: the output's name; None if there is one only.

        Raises InvalidValue where the model does not take such records, or gives no feature for each.
        """
        wish = {"op": "open", "record_shape": list(record_shape), "feature": feature, "threads": self._threads}
        self.features = int(self._ask(wish)["features"])
        if not 1 <= self.features <= MAX_FEATURES:
            allowed = f"allowed are 1 to {MAX_FEATURES}: pool it in the model"
            raise InvalidValue(f"the model's feature has {self.features} numbers; {allowed}")
        return self.features

    def evaluate(self, records: FloatArray) -> FloatArray:
        """The features (m, d) of these records (m, *record_shape), as the model gives them.

        Raises:
            InvalidValue: the model fails on one of them, exceeds its limits, or mixes the records of a batch.
        """
        slots, size = lay_out([records.shape, (len(records), self.features)])
        files: tuple[int, ...] = ()
        if self._arena is None or self._arena.size < size:
            if self._arena is not None:
                self._arena.close()
            self._arena = Arena.create(size)
            files = (self._arena.descriptor,)
        self._arena.array(slots[0])[...] = records
        answer = self._ask({"op": "embed", "records": slots[0], "features": slots[1]}, files)
        self.peak_bytes = max(self.peak_bytes, int(answer["peak_bytes"]))
        return self._arena.array(slots[1]).copy()

    def close(self) -> None:
        """Ends the worker. Idempotent."""
        self._process.close()
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _ask(self, message: dict[str, Any], files: tuple[int, ...] = ()) -> dict[str, Any]:
        try:
            return self._process.ask(message, files, deadline=time.monotonic() + self._settings.seconds)
        except RequestInvalid as error:
            reason = error.violations[0][1][:_SHOWN]
            raise InvalidValue("".join(sign if sign.isprintable() else "?" for sign in reason)) from error
        except WorkerFailed as error:
            # Its words may quote a record; its type does not.
            kind = dict(error.chain[0]).get("type", "an unknown error")
            raise InvalidValue(
                f"the model fails on a record ({kind}); is it made for such records (shape, scale, whole numbers)?"
            ) from error
        except LimitReached as error:
            raise InvalidValue(
                f"the model took longer than {self._settings.seconds:g} seconds for one batch, or needed more than "
                f"{self._settings.memory_bytes} bytes; give it more with --seconds or --worker-memory-bytes"
            ) from error
        except ExtractionStopped as error:
            raise InvalidValue("the model's process has ended by itself; is the file damaged?") from error
