"""Files of models: graphs of the closed vocabulary, their weights and plain facts, as safetensors.

Nothing in such a file is code. It comes from outside: what is read of it is checked as an upload is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from dpswd.shared.core.errors import DataInvalid, InvalidValue
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.graph import MAX_PARAMETERS, ExtractorGraph

MAX_FILE_BYTES = 3 * 4 * MAX_PARAMETERS
"""Two graphs at their limit, and statistics and names beside them."""


def model_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A model's file, the same bytes in every process; safetensors by itself writes metadata in a random order.

    Args:
        tensors: by name.
        metadata: plain texts.
    """
    return in_one_spelling(save(dict(tensors), metadata=dict(metadata)))


def in_one_spelling(data: bytes, *, without: str | None = None) -> bytes:
    """A safetensors file with its header in canonical JSON.

    Args:
        data: the file.
        without: a key of the metadata that is left out.

    Raises:
        InvalidValue: its header is no JSON object.
    """
    header, end = _header(data)
    header.get("__metadata__", {}).pop(without, None)
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[end:]


def metadata_of(data: bytes) -> dict[str, Any]:
    """What a safetensors file says of itself.

    Args:
        data: the file.

    Raises:
        InvalidValue: its header is no JSON object, or says nothing.
    """
    metadata: dict[str, Any] | None = _header(data)[0].get("__metadata__")
    if metadata is None:
        raise InvalidValue("it is a safetensors file without metadata")
    return metadata


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors begin."""
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:end])
    except (ValueError, RecursionError) as error:
        raise InvalidValue("it is no safetensors file") from error
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__", {}), dict):
        raise InvalidValue("it is no safetensors file")
    return header, end


def read_model_file(path: Path, *, kind: str, form: str, writer: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a file that may come from anybody.

    Args:
        path: the file.
        kind: what it should be, in words, such as "an adapted model".
        form: the format that its metadata must state.
        writer: the command that writes such a file.

    Raises:
        DataInvalid: the file is something else; the message says what does not hold.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataInvalid(f"{path} has more than {MAX_FILE_BYTES} bytes; {kind} is never as large")
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != form:
                raise DataInvalid(f"{path} is not {kind} of format {form}; `{writer}` writes one")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, safetensors.SafetensorError) as error:
        raise DataInvalid(f"{path} is not a safetensors file, or cannot be read") from error
    return metadata, tensors


def rebuilt(part: str, metadata: Mapping[str, str], tensors: Mapping[str, Tensor], device: torch.device) -> Extractor:
    """One graph of a file with its weights.

    Args:
        part: its name in the metadata, and before its tensors' names.
        metadata: of the file.
        tensors: of the file.
        device: where to compute.

    Raises:
        InvalidValue: the graph is missing or none, or its tensors do not fit.
    """
    try:
        spelled = metadata[part].encode("ascii")
    except (KeyError, UnicodeEncodeError) as error:
        raise InvalidValue(f"its {part} is missing or no graph") from error
    return Extractor(ExtractorGraph.from_bytes(spelled), below(part, tensors), device=device)


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one part, by the names that they have in it."""
    return {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


def json_object(name: str, text: str, *, most: int) -> dict[str, Any]:
    """Plain values that a file states.

    Args:
        name: of what is stated, for the message.
        text: JSON.
        most: characters.

    Raises:
        InvalidValue: it is no JSON object, or longer.
    """
    try:
        content = json.loads(text) if len(text) <= most else None
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"its {name} is not JSON") from error
    if not isinstance(content, dict):
        raise InvalidValue(f"its {name} is no object of at most {most} characters")
    return content
