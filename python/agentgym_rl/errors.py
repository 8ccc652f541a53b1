"""The package's error, and what several modules ask before they go on."""

import importlib
from numbers import Real
from types import ModuleType
from typing import Any

# Training uses 32-bit floats.
LARGEST = 3.4028234e38


class AgentgymError(Exception):
    """What a user can mend: the message names what was found, where, and what to do."""


def imported(module: str, package: str, purpose: str) -> ModuleType:
    """A module of a package that is optional here, or one line that says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise AgentgymError(f"{purpose} imports {module}, which needs {error.name}: pip install {error.name}") from error
        raise AgentgymError(f"{purpose} needs the package {package}, which is not installed: pip install {package}") from error
    except Exception as error:
        raise AgentgymError(f"{purpose} imports {module}, which failed: {short(error)}; is {package} of this Python?") from error


def finite(value: Any) -> float | None:
    """A number that training can hold, or None: no truth value, no NaN, nothing beyond 32 bits."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = float(value)
    # Nothing compares with NaN.
    return number if abs(number) <= LARGEST else None


def shown(value: Any, limit: int = 120) -> str:
    """A value for a message: its type and its beginning."""
    try:
        text = repr(value)
    except Exception as error:  # A class may break its own repr.
        text = f"<no repr: {type(error).__name__}>"
    return f"{type(value).__name__} {text if len(text) <= limit else text[:limit] + '…'}"


def short(error: BaseException) -> str:
    """An exception for a message; of a group, the first one in it."""
    while inner := getattr(error, "exceptions", None):
        error = inner[0]
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 500 else text[:500] + "…"
