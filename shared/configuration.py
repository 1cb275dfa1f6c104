"""Trees of settings: groups of typed fields from a TOML file, the environment and the command line; later wins.

Each party has one tree (`dpswd.private_curator.settings.tree`, `dpswd.public_client.settings`). This module reads its
sources, turns what is wrong into one error that names every setting, and explains a tree for ``--help`` and
docs/reference/settings.md.

A group is a section of the file. A variable is named PREFIX + GROUP + two underscores + FIELD; with ``_FILE`` behind
it, it names a file that holds the value, so that a secret need not stand in the environment.
"""

from __future__ import annotations

import difflib
import inspect
import json
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as SourceError

from dpswd.shared.core.errors import SettingsError

_BETWEEN = "__"
_FROM_FILE = "_file"
_MAX_SECRET_BYTES = 64 * 1024
# Names of pydantic's bounds, and how they are told.
_LOWEST = {"ge": "{}", "gt": "more than {}", "min_length": "{}"}
_HIGHEST = {"le": "{}", "lt": "less than {}", "max_length": "{} characters"}


@dataclass(frozen=True)
class Setting:
    """One setting, explained.

    Attributes:
        name: group.field.
        environment: the variable that sets it.
        default: as text; empty where the setting is required.
        unit: of a number, or "".
        allowed: range or choices.
        description: what it means.
        required: whether it has no default.
        form: how a value is written, where no range says it.
    """

    name: str
    environment: str
    default: str
    unit: str
    allowed: str
    description: str
    required: bool
    form: str = ""


class _Environment(EnvSettingsSource):
    """The environment of a tree: as pydantic-settings reads it, values in files included, misspelt names refused.

    Raises:
        SettingsError: a variable of this prefix names no setting, or a file that cannot be read.
    """

    def _load_env_vars(self) -> Mapping[str, str | None]:
        given = dict(super()._load_env_vars())
        prefix = self.env_prefix.lower()
        assert issubclass(self.settings_cls, SettingsTree)
        environment = {row.environment.lower() for row in settings_of(self.settings_cls)}
        meant = {name.replace(_BETWEEN, "_"): name for name in environment}
        for name in list(given):
            if name in meant and name not in environment:
                text = f"write {meant[name].upper()}, with two underscores between section and field"
                raise SettingsError(f"the environment's {name.upper()} names no setting; {text}")
            # Other single underscores are left alone: Kubernetes makes variables of its own there, of services' names.
            if not name.startswith(prefix) or _BETWEEN not in name or name in environment:
                continue
            target = name.removesuffix(_FROM_FILE)
            if target == name or target not in environment:
                raise SettingsError(f"the environment's {name.upper()} names no setting; `settings` lists all of them")
            if target in given:
                raise SettingsError(f"both {target.upper()} and {name.upper()} are set; leave one out")
            given[target] = _content(name, given.pop(name))
        return given


def _content(name: str, path: str | None) -> str:
    try:
        with Path(path or "").open("rb") as file:
            return file.read(_MAX_SECRET_BYTES).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        kind = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise SettingsError(f"{name.upper()} names {path}, which cannot be read ({kind})") from None


def setting(default: Any, meaning: str, *, unit: str = "", allowed: str = "", **bounds: Any) -> Any:
    """A field of a group.

    Args:
        default: its value where no source has one.
        meaning: for the operator.
        unit: of a number.
        allowed: range or choices, where type and bounds do not tell them.
        bounds: pydantic's, for example ``ge=1``.
    """
    schema: dict[str, Any] = {name: text for name, text in (("unit", unit), ("allowed", allowed)) if text}
    return Field(default, description=meaning, json_schema_extra=schema or None, **bounds)


class SettingsGroup(BaseModel):
    """Settings that belong together; its docstring stands in docs/reference/settings.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def checked(cls, name: str, fields: Mapping[str, object]) -> Self:
        """The group of this name from plain values; None stands for a default.

        Raises:
            SettingsError: every value that is out of range.
        """
        try:
            return cls.model_validate({field: value for field, value in fields.items() if value is not None})
        except ValidationError as error:
            raise SettingsError(f"{name}: {_explained(error, {row.name: row for row in _rows_of(cls)})}") from error


class SettingsTree(BaseSettings):
    """All settings of one party: one field for each group."""

    model_config = SettingsConfigDict(env_nested_delimiter=_BETWEEN, extra="forbid", frozen=True)

    file: Path = Field(description="The TOML file; it need not exist.")

    @classmethod
    def from_sources(cls, file: Path, overrides: Mapping[str, str] | None = None) -> Self:
        """Reads the tree.

        Args:
            file: TOML; need not exist.
            overrides: values from the command line by dotted name, for example ``{"listen.port": "0"}``.

        Raises:
            SettingsError: a file that cannot be read, an unknown field, or a value out of range; all at once.
        """
        try:
            return cls(file=file, **_from_command_line(overrides or {}))
        except ValidationError as error:
            raise SettingsError(_explained(error, {row.name: row for row in settings_of(cls)})) from None
        except SourceError as error:  # a list in the environment that is no JSON
            raise SettingsError(f"the environment: {error}; write lists as JSON, for example [1, 28, 28]") from None
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{file} is not valid TOML: {error}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{file} cannot be read ({type(error).__name__})") from error

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line, then environment, then the file; the first that has a value wins."""
        file = init_settings.init_kwargs["file"]  # type: ignore[attr-defined]
        return init_settings, _Environment(settings_cls), TomlConfigSettingsSource(settings_cls, file)


def _from_command_line(overrides: Mapping[str, str]) -> dict[str, Any]:
    """The tree of values that ``--set group.field=value`` gives; lists are written as JSON."""
    tree: dict[str, Any] = {}
    for dotted, value in overrides.items():
        group, _, name = dotted.partition(".")
        if not name or "." in name:
            raise SettingsError(f"{dotted!r} is no setting; write section.field, for example listen.port")
        try:
            tree.setdefault(group, {})[name] = json.loads(value) if value.startswith("[") else value
        except json.JSONDecodeError as error:
            raise SettingsError(f"{dotted}: {value!r} is no JSON list; write for example [1, 28, 28]") from error
    return tree


def _explained(error: ValidationError, settings: Mapping[str, Setting]) -> str:
    """Everything that is wrong with a tree, in one line, in the words of the settings' own page.

    Args:
        error: pydantic's, whose words are Python's.
        settings: all of them by name, as the error's places begin.
    """
    lines: dict[str, str] = {}
    for problem in error.errors():
        place = [str(part) for part in problem["loc"]]
        name = ".".join(place) or "settings"
        row = next((settings[tried] for tried in (".".join(place[:2]), *place[:1]) if tried in settings), None)
        # A problem of a whole group would show all its values.
        got = "" if isinstance(problem["input"], Mapping) else f" is {_given(problem['input'])}"
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, settings, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; `settings` lists all"
            lines[name] = f"{name}: there is no such setting{hint}"
        elif problem["type"] == "missing":
            lines[name] = f"{name} is missing; it has no default"
        elif problem["type"] in ("value_error", "assertion_error"):
            message = str(problem["msg"]).removeprefix("Value error, ")
            lines[row.name if row else name] = f"{row.name if row else name}{got}: {message}"
        elif row is not None and row.allowed:
            unit = f", in {row.unit}" if row.unit else ""
            lines.setdefault(row.name, f"{row.name}{got}; allowed: {row.allowed}{unit}")
        else:
            lines[name] = f"{name}{got}: {problem['msg']}"
    return "; ".join(lines.values())


def _given(value: object) -> str:
    """A refused value as it was written."""
    return json.dumps(value) if isinstance(value, str | int | float | bool | list) else str(value)


def settings_of(tree: type[SettingsTree]) -> list[Setting]:
    """Every setting of a tree, in its order."""
    prefix = str(tree.model_config.get("env_prefix", ""))
    return [
        replace(row, name=f"{group}.{row.name}", environment=f"{prefix}{group}{_BETWEEN}{row.name}".upper())
        for group, fields in _groups(tree)
        for row in _rows_of(fields)
    ]


def _rows_of(group: type[SettingsGroup]) -> list[Setting]:
    """The settings of one group, by their own names."""
    return [
        Setting(
            name=name,
            environment="",
            default="" if field.is_required() else _shown(field.default),
            unit=_extra(field, "unit"),
            allowed=_extra(field, "allowed") or _allowed(field),
            description=field.description or "",
            required=field.is_required(),
            form=_extra(field, "allowed"),
        )
        for name, field in group.model_fields.items()
    ]


def explained(tree: type[SettingsTree], present: SettingsTree | None = None) -> list[dict[str, Any]]:
    """Every setting as plain values for the ``settings`` commands, with its value in `present`."""
    rows = []
    for row in settings_of(tree):
        value = {} if present is None else {"value": _plain(attrgetter(row.name)(present))}
        default = "required" if row.required else row.default
        rows.append({"name": row.name, **value, "default": default, "unit": row.unit, "allowed": row.allowed})
        rows[-1] |= {"environment": row.environment, "description": row.description}
    return rows


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float) else _shown(value)


def _shown(value: object) -> str:
    """A value as an operator would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(list(value)) if isinstance(value, tuple) else str(value)


def markdown(tree: type[SettingsTree]) -> str:
    """A table for each group, for docs/reference/settings.md; what is allowed tells a default, or the form."""
    lines: list[str] = []
    for name, group in _groups(tree):
        rows = [row for row in settings_of(tree) if row.name.startswith(f"{name}.")]
        lines += [f"### `[{name}]`", "", inspect.getdoc(group) or "", ""]
        lines += ["| setting | default | meaning |", "|---|---|---|"]
        for row in rows:
            default = "*required*" if row.required else f"`{row.default}`"
            form = f" ({row.form})" if row.form and row.default in ("none", "[]") else ""
            cells = (f"`{row.name}`", default, f"{row.description}{form}")
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def help_lines(tree: type[SettingsTree]) -> list[tuple[str, str]]:
    """(name, explanation) of every setting, for the ``--help`` of a command."""
    lines = []
    for row in settings_of(tree):
        facts = ["required" if row.required else f"default: {row.default}", row.unit, row.allowed]
        lines.append((row.name, f"{row.description}  [{'; '.join(fact for fact in facts if fact)}]"))
    return lines


def _groups(tree: type[SettingsTree]) -> Iterator[tuple[str, type[SettingsGroup]]]:
    for name, field in tree.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, SettingsGroup):
            yield name, field.annotation


def _extra(field: FieldInfo, name: str) -> str:
    extra = field.json_schema_extra
    return str(extra.get(name, "")) if isinstance(extra, dict) else ""


def _allowed(field: FieldInfo) -> str:
    low = high = ""
    for rule in field.metadata:
        low = next((text.format(getattr(rule, name)) for name, text in _LOWEST.items() if hasattr(rule, name)), low)
        high = next((text.format(getattr(rule, name)) for name, text in _HIGHEST.items() if hasattr(rule, name)), high)
    if low and high:
        return f"{low} to {high}" if low != high.split()[0] else high.replace("characters", "character")
    return (
        f"at least {low}"
        if low and not low.startswith("more")
        else low or (f"at most {high}" if high else "") or (_kind(field.annotation))
    )


def _kind(annotation: Any) -> str:
    """What a field without a range takes."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin is Literal:
        return ", ".join(str(choice) for choice in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(inner) for inner in get_args(annotation)))
    if origin is tuple:
        inner = get_args(annotation)
        if len(inner) == 2 and inner[1] is not Ellipsis:
            return "two numbers"
        return f"list of {_kind(inner[0])}s"
    names = {bool: "true, false", int: "whole number", float: "number", str: "text", Path: "path"}
    return names.get(annotation, "none" if annotation is type(None) else "text")
