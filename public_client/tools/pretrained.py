"""Classifiers of Hugging Face and timm, from their folders or as they are in memory, as networks that can travel.

What torch.fx cannot follow in a forward of transformers goes through ONNX, which has no branches (`read_onnx`).
"""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.public_client.extractor.tracing import evaluating, validate
from dpswd.public_client.onnx.network import read_onnx
from dpswd.public_client.tools.programs import quiet
from dpswd.public_client.tools.trackers import installed
from dpswd.shared.core.errors import DataInvalid, InvalidValue, SettingsError

_KINDS = {"ForImageClassification": "AutoModelForImageClassification",
          "ForSequenceClassification": "AutoModelForSequenceClassification"}  # fmt: skip
_MASKED = -1e4  # beside scores of attention: none of a softmax is left


class Scores(nn.Module):
    """A classifier of transformers, from records to scores.

    Args:
        model: takes pixels, or the numbers of words.
        padding: that stands for no word; None for pixels.
        first: the place of the first word, where places follow from the padding; None where they do not.
    """

    def __init__(self, model: nn.Module, padding: int | None, first: int | None) -> None:
        super().__init__()
        self.model, self.padding, self.first = model, padding, first

    def forward(self, records: Tensor) -> Tensor:
        """(n, ...) float32 to (n, classes)."""
        more: dict[str, Any] = {}
        if self.padding is not None:
            more["attention_mask"] = ((records == float(self.padding)).float() * _MASKED)[:, None, None, :]
            records = records.long()
        if self.first is not None:
            more["position_ids"] = torch.arange(self.first, self.first + records.shape[1])[None]
        scores: Tensor = self.model(records, **more).logits
        return scores


def is_pretrained(model: Any) -> bool:
    """Whether this is a folder, or a model of transformers."""
    folder = isinstance(model, (str, Path)) and Path(model).is_dir()
    return folder or (isinstance(model, nn.Module) and hasattr(model, "main_input_name"))


def network_of(model: Any, records: Tensor) -> nn.Module:
    """The network, in eval mode, from records to scores.

    Args:
        model: a folder as `save_pretrained` or timm's `save_for_hf` writes it, or a model of transformers.
        records: (m, ...) public ones: pixels as the model's processor gives them, or numbers of words.

    Raises SettingsError without the library, DataInvalid where the folder holds no such classifier or it does not take
    such records, InvalidValue where it cannot travel: the words say which layer and what to do.
    """
    if isinstance(model, (str, Path)):
        model = _from_folder(Path(model))
    if not hasattr(model, "main_input_name"):
        network: nn.Module = model.eval()
        return network
    own = copy.deepcopy(model).eval()
    words = own.main_input_name == "input_ids"
    padding = (own.config.pad_token_id or 0) if words else None
    places = any(hasattr(part, "create_position_ids_from_input_ids") for part in own.modules())
    wrapped = Scores(own, padding, padding + 1 if places and padding is not None else None).eval()
    try:
        with torch.no_grad():
            expected = own(records.long(), attention_mask=records != padding) if words else own(records)
            scores = wrapped(records)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape = tuple(records.shape[1:])
        raise DataInvalid(
            f"{type(own).__name__} does not take the source's records of shape {shape}: {error}"
        ) from error
    if not torch.allclose(scores, expected.logits, rtol=1e-3, atol=1e-4):
        raise InvalidValue(
            f"{type(own).__name__} computes other scores where only its padding ({padding}) is masked; put the padding "
            "behind the words"
        )
    problems = validate(wrapped, tuple(records.shape[1:]))
    return _by_onnx(wrapped, records, "; ".join(map(str, problems[:3]))) if problems else wrapped


def _by_onnx(network: Scores, records: Tensor, problems: str) -> nn.Module:
    by_hand: Any = getattr(network.model, "set_attn_implementation", lambda _: None)
    by_hand("eager")
    try:
        import onnxscript  # noqa: F401 - torch's exporter needs it

        with tempfile.TemporaryDirectory() as folder, evaluating(network), quiet():
            file = Path(folder) / "network.onnx"
            torch.onnx.export(
                network, (records,), file, verbose=False, external_data=False,
                dynamic_shapes=({0: torch.export.Dim("n", min=1)},),
            )  # fmt: skip
            return read_onnx(file, records)
    except ImportError as error:
        raise SettingsError(f"{type(network.model).__name__} travels by ONNX; pip install 'dpswd[onnx]'") from error
    except (torch.onnx.OnnxExporterError, DataInvalid, InvalidValue) as error:
        reason = str(error).splitlines()[0]
        raise InvalidValue(
            f"{type(network.model).__name__} cannot travel: {problems}. Nor by way of ONNX: {reason}"
        ) from error


def _from_folder(folder: Path) -> Any:
    config = folder / "config.json"
    if not config.is_file():
        raise DataInvalid(f"{folder} holds no config.json; needed is a folder as save_pretrained writes it")
    facts = json.loads(config.read_text(encoding="utf-8"))
    if not list(folder.glob("*.safetensors")):
        raise DataInvalid(f"{folder} holds no safetensors; other weights run code: save it with save_pretrained anew")
    if "architecture" in facts:
        more = facts.get("model_args", {}) | {"num_classes": facts["num_classes"]}
        (weights,) = folder.glob("model.safetensors")
        return installed("timm").create_model(facts["architecture"], checkpoint_path=str(weights), **more)
    name = next(iter(facts.get("architectures") or ["nothing"]))
    kind = next((kind for ending, kind in _KINDS.items() if name.endswith(ending)), None)
    if kind is None:
        raise DataInvalid(
            f"{folder} holds {name}; needed is a classifier, ...{' or ...'.join(_KINDS)}: fine-tune it as one first"
        )
    made = getattr(installed("transformers"), kind)
    return made.from_pretrained(folder, local_files_only=True, use_safetensors=True, trust_remote_code=False)
