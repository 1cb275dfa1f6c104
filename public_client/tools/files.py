"""Writes an adapted model for other tools."""

from __future__ import annotations

from pathlib import Path

from dpswd.public_client.tools import card as cards
from dpswd.public_client.tools import programs
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.files import write_public


def export(
    path: Path, *, onnx: Path | None = None, program: Path | None = None, card: Path | None = None
) -> list[Path]:
    """Writes what is named, none of it over a file.

    Args:
        path: of the adapted model.
        onnx: ONNX, checked by onnxruntime.
        program: a program of torch.export.
        card: a Hugging Face model card.

    Returns what was written. Raises SettingsError where nothing is named or one exists, InvalidValue where a program
    computes something else.
    """
    files = [file for file in (onnx, program, card) if file is not None]
    if not files:
        raise SettingsError("name what to write: --onnx, --program or --card")
    for file in files:
        if file.exists():
            raise SettingsError(f"{file} exists and is not overwritten; choose another name")
    model = load_adapted(path, device="cpu")
    if onnx is not None or program is not None:
        made = programs.program_of(model)
        data = None if onnx is None else programs.onnx_bytes(model, made, cards.facts_of(path, model))
        if program is not None:
            write_public(program, programs.program_bytes(made))
        if onnx is not None and data is not None:
            write_public(onnx, data)
    if card is not None:
        write_public(card, cards.card_of(path, model).encode())
    return files
