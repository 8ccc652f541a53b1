"""Environments of other packages behind `Environment`, each by a module of its own that imports its package."""

import importlib
import json
from typing import Any
from urllib.parse import parse_qsl

from ..environment import Environment
from ..errors import AgentgymError

KINDS = ("gymnasium", "reasoning_gym", "verifiers", "mcp", "openenv")


def environment(what: str, tasks: str | None = None) -> type[Environment]:
    """The class for `KIND:NAME?KEY=VALUE`; the keys are the package's own, their values JSON or text."""
    kind, colon, name = what.partition(":")
    if not colon or not name or kind not in KINDS:
        raise AgentgymError(f"{what!r} names no bridge; expected: KIND:NAME with KIND of {', '.join(KINDS)}")
    if tasks is not None and kind != "mcp":
        raise AgentgymError("--tasks is for mcp alone: the other packages bring their tasks")
    made: type[Environment] = importlib.import_module(f".{kind}", __package__).environment(name, tasks)
    return made


def split(name: str) -> tuple[str, dict[str, Any]]:
    """NAME and the options behind `?`."""
    name, _, query = name.partition("?")
    options: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return name, options


def subclass(name: str, base: type[Environment], **attributes: Any) -> type[Environment]:
    """A class for one environment of a package; its name is one that a spec may have."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower()).strip("-")[:40] or "bridge"
    return type(base.__name__, (base,), {"name": plain, "__doc__": base.__doc__, **attributes})
