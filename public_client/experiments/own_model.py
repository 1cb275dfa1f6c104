"""A team's own network, from its code, and what it trained already, from a file."""

from __future__ import annotations

import copy
import difflib
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dpswd.public_client.ladder.whole_model import split
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.errors import DataInvalid, InvalidValue, SettingsError

_NEEDED = "a network, or a class or function without arguments that makes one or (extractor, classifier)"
_FITTED, _WEIGHTS = (".joblib", ".pkl"), (".safetensors", ".pt", ".pth")


def network_of(code: str) -> Any:
    """Imports FILE.py:NAME or module:NAME, and makes it.

    Raises:
        SettingsError: there is no such file or name, or it makes no network.
    """
    file, _, name = code.rpartition(":")
    path = Path(file)
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)  # of a module, the current one
    try:
        if path.suffix == ".py":
            if not path.is_file():
                raise SettingsError(f"{path} does not exist; --network takes FILE.py:NAME")
            module = _executed(path)
        else:
            module = import_module(file)
    except (ImportError, SyntaxError, NameError, AttributeError) as error:
        raise SettingsError(f"{file} cannot be imported: {error}") from error
    if not hasattr(module, name):
        own = vars(module).items()
        names = [key for key, value in own if _is_model(value) or getattr(value, "__module__", "") == module.__name__]
        close = difflib.get_close_matches(name, names, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise SettingsError(f"{file} has no {name}; it has {', '.join(names) or 'nothing of its own'}{meant}")
    value = getattr(module, name)
    try:
        made = copy.deepcopy(value) if _is_model(value) else value()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingsError(f"{code} is not {_NEEDED}: {error}") from error
    if not _is_model(made):
        raise SettingsError(f"{code} gives a {type(made).__name__}; needed is {_NEEDED}")
    return made


def _executed(path: Path) -> ModuleType:
    """A file as a module, anew each time."""
    spec = spec_from_file_location(f"own_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None, "a .py file has one"
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def own_model(code: str | None, file: Path | None, records: Tensor) -> Model:
    """The team's model in two parts.

    Args:
        code: see `network_of`; None for none.
        file: what is trained already; None where only code is given.
        records: (m, ...) public ones, to find the parts by.

    Raises:
        SettingsError: the file is missing, or is of no known kind.
        DataInvalid: it does not hold such a model, or the model does not take the records.
    """
    if file is not None and not file.exists():
        raise SettingsError(f"{file} does not exist; needed is a model (.joblib, .onnx, a folder) or .safetensors")
    model: Any = None if code is None else network_of(code)
    if file is not None:
        model = _trained(file, model)
    try:
        return split(model, records)
    except InvalidValue:
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        shape = tuple(records.shape[1:])
        raise DataInvalid(f"{code or file} does not take the source's records of shape {shape}: {error}") from error


def _trained(file: Path, model: Any) -> Any:
    """What a file holds: an estimator, a saved model, or weights for a network."""
    if (file.suffix in (".onnx", *_FITTED) or file.is_dir()) and model is not None:
        raise SettingsError(f"{file} is a model by itself; leave --network out")
    if file.suffix == ".onnx" or file.is_dir():
        return file
    if file.suffix in _FITTED:
        import joblib  # comes with scikit-learn

        try:
            return joblib.load(file)  # runs code of the file: it is the team's own, and --model's help says so
        except Exception as error:  # whatever that code raises
            how = "save the fitted classifier with joblib.dump, and name its own modules' folder in PYTHONPATH"
            raise DataInvalid(f"{file} cannot be loaded ({error}); {how}") from error
    if file.suffix not in _WEIGHTS:
        raise SettingsError(
            f"{file} ends in {file.suffix}; needed is one of {', '.join((*_FITTED, '.onnx', *_WEIGHTS))}"
        )
    if model is None:
        raise SettingsError(f"{file} holds weights; name the network that they belong to with --network FILE.py:NAME")
    pair = isinstance(model, tuple)
    holder = nn.ModuleDict({"extractor": model[0], "classifier": model[1]}) if pair else model
    try:
        weights = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
        holder.load_state_dict(weights)
    except (RuntimeError, SafetensorError, TypeError, ValueError, OSError, KeyError, UnpicklingError) as error:
        raise DataInvalid(f"{file} holds no weights of this network (its state_dict): {error}") from error
    return model


def _is_model(value: Any) -> bool:
    pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, nn.Module) for part in value)
    return pair or isinstance(value, nn.Module)
