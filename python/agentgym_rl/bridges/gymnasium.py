"""`gymnasium:ID?KEY=VALUE`: environments of Gymnasium whose actions are a list of names.

The names are those of the environment's own documentation (`- 0: Move left`), or numbers where it has none. What
the policy sees is the text rendering (`ansi`) with its colours in words, else the observation.
The reward is the episode's return so far. The item is the seed of `reset`.
"""

import json
import re
from typing import Any, ClassVar

from ..environment import Environment
from ..errors import AgentgymError, imported, short
from . import split, subclass

COLOUR = re.compile("\x1b\\[([0-9;]*)m")
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def environment(name: str, tasks: str | None) -> type[Environment]:
    """The class for an environment's id."""
    id, options = split(name)
    gymnasium = imported("gymnasium", "gymnasium", f"gymnasium:{id}")

    def make() -> Any:
        try:
            modes = gymnasium.spec(id).entry_point and gymnasium.make(id, **options).metadata.get("render_modes", [])
            return gymnasium.make(id, render_mode="ansi" if "ansi" in modes else None, **options)
        except Exception as error:
            raise AgentgymError(f"gymnasium:{id} is not made: {short(error)}") from error

    tried = make()
    if not isinstance(tried.action_space, gymnasium.spaces.Discrete):
        raise AgentgymError(f"gymnasium:{id} has the actions {tried.action_space}; this bridge plays Discrete ones")
    names = named(tried.unwrapped.__doc__ or "", int(tried.action_space.n))
    first = int(tried.action_space.start)
    text = (tried.unwrapped.__doc__ or id).split("## Action Space")[0].replace("## Description", "")
    instruction = (
        f"{' '.join(text.split())[:600]}\nActions: {', '.join(names)}. Answer with one line: Action: <action>"
    )
    return subclass(
        id, Gymnasium, make=staticmethod(make), actions={name: first + at for at, name in enumerate(names)},
        instruction=instruction, probe=names[0],
        spec={"parser": "action_line", "success": {"reward_above": 0}, "reward_is_total": True, "rounds_max": tried.spec.max_episode_steps or 100},
    )  # fmt: skip


def named(documentation: str, count: int) -> list[str]:
    """The names of the actions as the documentation lists them, in the letters that `action_line` leaves."""
    _, _, actions = documentation.partition("## Action Space")
    found = dict(re.findall(r"^\s*- (\d+): ([^\n(]+)", actions.partition("\n    ## ")[0], re.M))
    names = [" ".join(re.sub(r"[^a-z0-9, ]", " ", found.get(str(at), "").lower()).split()) for at in range(count)]
    return names if all(names) and len(set(names)) == count else [str(at) for at in range(count)]


class Gymnasium(Environment):
    """An environment of Gymnasium."""

    make: ClassVar[Any]
    actions: ClassVar[dict[str, int]]

    def __init__(self) -> None:
        self.played, self.total = self.make(), 0.0

    def reset(self, item_id: int) -> str:
        self.total = 0.0
        # Seeds are 32 bits there.
        observation, _ = self.played.reset(seed=item_id % 2**32)
        return self._seen(observation)

    def step(self, action: str) -> tuple[str, float, bool]:
        number = self.actions.get(" ".join(action.lower().split()))
        if number is None:
            return f"That is no action. Actions: {', '.join(self.actions)}.", self.total, False
        observation, reward, terminated, truncated, _ = self.played.step(number)
        self.total += float(reward)
        return self._seen(observation), self.total, bool(terminated or truncated)

    def close(self) -> None:
        self.played.close()

    def _seen(self, observation: Any) -> str:
        if self.played.render_mode == "ansi":
            return without_colours(self.played.render().lstrip("\n"))
        return json.dumps(plain(observation))


def plain(observation: Any) -> Any:
    """An observation as JSON has it."""
    if isinstance(observation, dict):
        return {str(key): plain(value) for key, value in observation.items()}
    if isinstance(observation, (tuple, list)):
        return [plain(value) for value in observation]
    return observation.tolist() if hasattr(observation, "tolist") else observation


def without_colours(text: str) -> str:
    """A rendering without its escape codes, and below it what they colour."""
    marks, plain_text, colour = [], "", ""
    for at, piece in enumerate(COLOUR.split(text)):
        if at % 2:
            codes = [int(code) for code in piece.split(";") if code]
            colour = next((COLOURS[code % 10] for code in codes if code // 10 in (3, 4) and code % 10 < 8), "")
            continue
        if colour and piece:
            row, column = plain_text.count("\n"), len(plain_text) - plain_text.rfind("\n") - 1
            marks.append(f"{colour}: {piece!r} in line {row + 1}, column {column + 1}")
        plain_text += piece
    return "\n".join([plain_text.rstrip("\n"), *marks])
