"""A reward is a function over a trajectory; `serve_rewards` answers for it at `reward.url`."""

import sys
import traceback
from collections.abc import Callable
from typing import Any, overload

from .errors import AgentgymError, finite, shown, short
from .http import Asked, JsonServer, Refusal

Trajectory = dict[str, Any]
Judge = Callable[[Trajectory], float | None | dict[str, Any]]


class Reward:
    """A function with the name, and the version if it has one, that `reward.function` asks for: `style-2`."""

    def __init__(self, judge: Judge, name: str, version: int | str | None) -> None:
        self.judge, self.name = judge, name if version is None else f"{name}-{version}"
        self.__name__, self.__doc__ = name, judge.__doc__

    def __call__(self, trajectory: Trajectory) -> float | None | dict[str, Any]:
        return self.judge(trajectory)

    def answer(self, trajectory: Trajectory) -> Any:
        """What the protocol has for this trajectory; what cannot be learnt from is a refusal, never a zero."""
        item = trajectory.get("item_id")
        try:
            found = self.judge(trajectory)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            raise Refusal(500, {"error": f"{self.name} raised {short(error)} at item {item}"}) from error
        problem = self._problem(found)
        if problem is not None:
            raise Refusal(500, {"error": f"{self.name} returned {shown(found)} at item {item}: {problem}"})
        if not isinstance(found, dict):
            return None if found is None else finite(found)
        components = {str(key): finite(value) for key, value in found.get("components", {}).items()}
        reward = None if found["reward"] is None else finite(found["reward"])
        return {"reward": reward, "components": components, "reason": found.get("reason", "")}

    @staticmethod
    def _problem(found: Any) -> str | None:
        if not isinstance(found, dict):
            fits = found is None or finite(found) is not None
            return None if fits else "expected: a finite number, None, or a dict with reward, components and reason"
        odd = set(found) - {"reward", "components", "reason"}
        if odd or "reward" not in found:
            return f"expected: the key reward, and if wanted components and reason; found: {', '.join(sorted(map(str, found)))}"
        if found["reward"] is not None and finite(found["reward"]) is None:
            return f"reward is {shown(found['reward'])}; expected: a finite number or None"
        components = found.get("components", {})
        if not isinstance(components, dict) or any(finite(value) is None for value in components.values()):
            return f"components are {shown(components)}; expected: a dict of finite numbers"
        return None if isinstance(found.get("reason", ""), str) else f"reason is {shown(found['reason'])}; expected: str"


@overload
def reward(judge: Judge) -> Reward: ...
@overload
def reward(*, name: str | None = None, version: int | str | None = None) -> Callable[[Judge], Reward]: ...


def reward(judge: Judge | None = None, *, name: str | None = None, version: int | str | None = None) -> Any:
    """Makes a function a reward: it gets `{item_id, reward, success, outcome, conversations}` and returns a number,
    None to exclude the episode, or `{"reward": …, "components": {…}, "reason": "…"}`."""

    def wrapped(judge: Judge) -> Reward:
        return Reward(judge, name or judge.__name__, version)

    return wrapped if judge is None else wrapped(judge)


class RewardServer(JsonServer):
    """The server of reward functions, for `with`."""

    def __init__(self, *functions: Reward, port: int = 0, host: str = "127.0.0.1") -> None:
        self.functions = {function.name: function for function in functions}
        if not functions or len(self.functions) < len(functions):
            raise AgentgymError(f"functions with names of their own are served; these are {[f.name for f in functions]}")
        super().__init__({("POST", "/"): self._rewards, ("GET", "/"): lambda asked: {"functions": list(self.functions)}}, port, host)

    def _rewards(self, asked: Asked) -> Any:
        name, trajectories = asked.fields(function=str, trajectories=list)
        if name not in self.functions:
            raise Refusal(404, {"error": f"reward.function is {name!r}; served here: {', '.join(self.functions)}"})
        if not all(isinstance(trajectory, dict) for trajectory in trajectories):
            raise Refusal(422, {"detail": [{"loc": ["body", "trajectories"], "msg": "a list of objects is expected"}]})
        return {"rewards": [self.functions[name].answer(trajectory) for trajectory in trajectories]}


def serve_rewards(*functions: Reward, port: int = 0, host: str = "127.0.0.1") -> None:
    """Serves reward functions until it is interrupted; prints `listening on URL` on standard output."""
    RewardServer(*functions, port=port, host=host).run()
