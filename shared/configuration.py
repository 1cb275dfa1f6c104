"""Trees of settings: sections of typed fields from a file, the environment and the command line; later wins.

Each party has one tree (`private_curator.settings.tree`, `public_client.settings`). This module reads the environment,
turns what is wrong into one error that names every setting, and explains a tree for ``--help`` and docs/settings.md.

A variable is named PREFIX + SECTION + two underscores + FIELD; with ``_FILE`` behind it, it names a file that holds the
value, so that a secret need not stand in the environment.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from shared.errors import SettingsError

HIDDEN = "**********"
"""Stands for a secret's value wherever settings are shown."""
_BETWEEN = "__"
_FROM_FILE = "_file"
_MAX_SECRET_BYTES = 64 * 1024


@dataclass(frozen=True)
class Setting:
    """One setting, explained.

    Attributes:
        name: section.field.
        environment: the variable that sets it.
        default: as text; empty where the setting is required.
        unit: of a number, or "".
        allowed: range or choices.
        description: what it means.
        required: whether it has no default.
        secret: whether its value is never shown.
    """

    name: str
    environment: str
    default: str
    unit: str
    allowed: str
    description: str
    required: bool
    secret: bool


class Environment(EnvSettingsSource):
    """The environment of a tree: as pydantic-settings reads it, values in files included, misspelt names refused.

    Raises:
        SettingsError: a variable of this prefix names no setting, or a file that cannot be read.
    """

    def _load_env_vars(self) -> Mapping[str, str | None]:
        given = dict(super()._load_env_vars())
        prefix = self.env_prefix.lower()
        known = {setting.environment.lower() for setting in settings_of(self.settings_cls)}
        for name in list(given):
            # A single underscore is left alone: Kubernetes puts variables of its own there, made from services' names.
            if not name.startswith(prefix) or _BETWEEN not in name or name in known:
                continue
            target = name.removesuffix(_FROM_FILE)
            if target == name or target not in known:
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


def from_command_line(overrides: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """The tree of values that ``--set section.field=value`` gives; lists are written as JSON.

    Raises:
        SettingsError: a name without a section, or a list that is none.
    """
    tree: dict[str, dict[str, object]] = {}
    for dotted, value in overrides.items():
        section, _, name = dotted.partition(".")
        if not name or "." in name:
            raise SettingsError(f"{dotted!r} is no setting; write section.field, for example listen.port")
        tree.setdefault(section, {})[name] = _parsed(dotted, value)
    return tree


def _parsed(name: str, value: str) -> object:
    if not value.startswith("["):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{name}: {value!r} is no JSON list; write for example [1, 28, 28]") from error


def explain_error(error: ValidationError, *, secrets: frozenset[str] = frozenset()) -> str:
    """Everything that is wrong with a tree, in one line; secrets' values are left out."""
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"]) or "settings"
        # A problem of a whole section would show all its values.
        hidden = name in secrets or isinstance(problem["input"], Mapping)
        got = "" if hidden else f" (got {problem['input']!r})"
        lines.append(f"{name}: {problem['msg']}{got}")
    return "; ".join(lines)


def settings_of(tree: type[BaseSettings]) -> list[Setting]:
    """Every setting of a tree, in its order."""
    prefix = str(tree.model_config.get("env_prefix", ""))
    return [
        Setting(
            name=f"{section}.{name}",
            environment=f"{prefix}{section}{_BETWEEN}{name}".upper(),
            default="" if field.is_required() else shown(field.get_default(call_default_factory=True)),
            unit=str(_extra(field, "unit")),
            allowed=str(_extra(field, "allowed")) or _allowed(field),
            description=field.description or "",
            required=field.is_required(),
            secret=_is_secret(field.annotation),
        )
        for section, name, field in _fields(tree)
    ]


def values_of(settings: BaseSettings) -> dict[str, object]:
    """The present value of every setting by name, as JSON knows it; secrets hidden."""
    return {
        f"{section}.{name}": _plain(getattr(getattr(settings, section), name))
        for section, name, _ in _fields(type(settings))
    }


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float) else shown(value)


def shown(value: object) -> str:
    """A value as an operator would write it."""
    if value is None:
        return "none"
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return json.dumps(list(value))
    return str(value)


def markdown(tree: type[BaseSettings]) -> str:
    """A table for each section, for docs/settings.md."""
    lines: list[str] = []
    for section, field in tree.model_fields.items():
        rows = [setting for setting in settings_of(tree) if setting.name.startswith(f"{section}.")]
        if not rows:
            continue
        lines += [f"### `[{section}]`", "", field.description or "", ""]
        lines += ["| setting | default | unit | allowed | meaning |", "|---|---|---|---|---|"]
        for row in rows:
            default = "*required*" if row.required else f"`{row.default}`"
            cells = (f"`{row.name}`", default, row.unit, row.allowed, row.description)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def help_lines(tree: type[BaseSettings]) -> list[tuple[str, str]]:
    """(name, explanation) of every setting, for the ``--help`` of a command."""
    lines = []
    for row in settings_of(tree):
        facts = ["required" if row.required else f"default: {row.default}", row.unit, row.allowed]
        lines.append((row.name, f"{row.description}  [{'; '.join(fact for fact in facts if fact)}]"))
    return lines


def _fields(tree: type[BaseSettings]) -> Iterator[tuple[str, str, FieldInfo]]:
    for section, field in tree.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            for name, inner in kind.model_fields.items():
                yield section, name, inner


def _extra(field: FieldInfo, name: str) -> object:
    extra = field.json_schema_extra
    return extra.get(name, "") if isinstance(extra, dict) else ""


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(_is_secret(inner) for inner in get_args(annotation))


def _allowed(field: FieldInfo) -> str:
    low = high = ""
    for rule in field.metadata:
        if isinstance(rule, annotated_types.Ge):
            low = f"{rule.ge}"
        elif isinstance(rule, annotated_types.Gt):
            low = f"more than {rule.gt}"
        elif isinstance(rule, annotated_types.Le):
            high = f"{rule.le}"
        elif isinstance(rule, annotated_types.Lt):
            high = f"less than {rule.lt}"
        elif isinstance(rule, annotated_types.MinLen):
            low = f"{rule.min_length}"
        elif isinstance(rule, annotated_types.MaxLen):
            high = f"{rule.max_length} characters"
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
    names = {bool: "true, false", int: "whole number", float: "number", str: "text", Path: "path", SecretStr: "secret"}
    return names.get(annotation, "none" if annotation is type(None) else "text")
