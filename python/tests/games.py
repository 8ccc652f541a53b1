"""Environments and rewards that behave well, and badly in every way that the package has to answer for."""

import random
import sys
import threading
import time
from typing import Any

from agentgym_rl import Environment, reward

opened: list["Coins"] = []
closed: list["Coins"] = []
release = threading.Event()


class Coins(Environment):
    """Both take 1 to 3 coins in turn; whoever takes the last one wins."""

    instruction = "Answer with one line: Action: take <number>"
    probe = "take 1"
    spec = {"rounds_max": 8, "success": {"reward_at_least": 1}}

    def __init__(self) -> None:
        opened.append(self)
        self.inside = 0
        self.most = 0

    def reset(self, item_id: int) -> str:
        self.random = random.Random(item_id)
        self.coins = self.random.choice([n for n in range(5, 20) if n % 4])
        return f"Coins: {self.coins}."

    def step(self, action: str) -> tuple[str, float, bool]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.002)
        self.inside -= 1
        taken = {"take 1": 1, "take 2": 2, "take 3": 3}.get(action, 99)
        if taken > self.coins:
            return f"That is no move. Coins: {self.coins}.", 0.0, False
        self.coins -= taken
        if self.coins == 0:
            return "You win.", 1.0, True
        mine = min(self.coins, self.coins % 4 or self.random.randint(1, 3))
        self.coins -= mine
        return (f"I take {mine} and win.", 0.0, True) if self.coins == 0 else (f"I take {mine}. Coins: {self.coins}.", 0.0, False)

    def close(self) -> None:
        closed.append(self)


class Bad(Environment):
    """Does what the action, or the item, says."""

    RETURNS: dict[str, Any] = {
        "no tuple": "text", "two": ("text", 1.0), "a list": ["text", 1.0, True], "bytes": (b"text", 1.0, True),
        "nan": ("text", float("nan"), False), "infinite": ("text", float("inf"), False), "huge": ("text", 1e300, False),
        "text reward": ("text", "1.0", False), "swapped": ("text", True, 1.0), "truth": ("text", True, False), "none": None, "done as text": ("text", 1.0, "no"),
    }  # fmt: skip

    def reset(self, item_id: int) -> str:
        if item_id == 1:
            raise ValueError("no such task")
        if item_id == 2:
            return 7  # type: ignore[return-value]
        return "ready"

    def step(self, action: str) -> tuple[str, float, bool]:
        if action == "raise":
            raise KeyError("lost")
        if action == "exit":
            sys.exit(3)
        if action == "block":
            release.wait(20)
        if action == "print":
            print("a word on standard output")
        found: tuple[str, float, bool] = self.RETURNS.get(action, ("fine", 0.5, False))
        return found

    def close(self) -> None:
        raise OSError("stuck")


class Unmade(Environment):
    def __init__(self) -> None:
        raise RuntimeError("no licence")


class Unwritten(Environment):
    pass


@reward
def length(trajectory: dict[str, Any]) -> float:
    return float(len(trajectory["conversations"]))


@reward(name="style", version=2)
def judged(trajectory: dict[str, Any]) -> Any:
    return trajectory["wanted"]


@reward
def broken(trajectory: dict[str, Any]) -> float:
    raise ValueError("no grammar")
