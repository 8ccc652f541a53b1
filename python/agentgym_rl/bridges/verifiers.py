"""`verifiers:NAME?KEY=VALUE`: an environment of verifiers (before 0.4), by `load_environment(NAME, KEY=VALUE)`, or one of
the package's own classes, such as `verifiers:ReasoningGymEnv?gym=chain_sum`.

The package runs its own rollout, and this session is the model in it: the rollout waits for the answer that `step`
brings. Item n is row n of its dataset. The reward comes with the end, from the environment's rubric.
"""

import asyncio
import json
import time
from typing import Any, ClassVar

from ..environment import Environment
from ..errors import AgentgymError, imported, short
from . import split, subclass
from .background import Background


def environment(name: str, tasks: str | None) -> type[Environment]:
    """The class for an environment's name."""
    name, options = split(name)
    package = imported("verifiers", "verifiers", f"verifiers:{name}")
    if not hasattr(package, "load_environment"):
        raise AgentgymError(f"verifiers {package.__version__} has no load_environment; it came to an end with 0.3: pip install 'verifiers<0.4'")
    try:
        made = getattr(package, name)(**options) if name in package.__all__ else package.load_environment(name, **options)
        rows = made.get_dataset()
    except Exception as error:
        raise AgentgymError(f"verifiers:{name} is not made: {short(error)}") from error
    rounds = getattr(made, "max_turns", 1)
    return subclass(
        name, Verifiers, package=package, made=made, rows=rows, probe="x",
        spec={
            "parser": "raw", "items": {"wrapping": len(rows)}, "rounds_max": rounds if rounds > 0 else 30,
            "reward_rule": "when_done",
        },
    )  # fmt: skip


class Verifiers(Environment):
    """An environment of verifiers."""

    package: ClassVar[Any]
    made: ClassVar[Any]
    rows: ClassVar[Any]
    loop: Background | None = None

    def reset(self, item_id: int) -> str:
        self.close()
        self.loop = Background()
        text, _, over = self.loop.call(self._begin(item_id % len(self.rows)))
        if over:
            raise ValueError(f"the rollout of row {item_id % len(self.rows)} was over before the first answer")
        return str(text)

    def step(self, action: str) -> tuple[str, float, bool]:
        assert self.loop is not None
        found: tuple[str, float, bool] = self.loop.call(self._answer(action))
        return found

    def close(self) -> None:
        if self.loop is not None:
            self.loop.close()
            self.loop = None

    async def _begin(self, row: int) -> tuple[str, float, bool]:
        self.asked: asyncio.Queue[list[Any]] = asyncio.Queue()
        self.answers: asyncio.Queue[str] = asyncio.Queue()
        self.seen = 0
        rollout = self.made.run_rollout(self.rows[row], self._client(), "policy", {}, state_columns=["completion"])
        self.rollout = asyncio.ensure_future(rollout)
        return await self._turn()

    async def _answer(self, action: str) -> tuple[str, float, bool]:
        self.answers.put_nowait(action)
        # The answer becomes a message too.
        self.seen += 1
        return await self._turn()

    async def _turn(self) -> tuple[str, float, bool]:
        """Waits until the rollout asks for an answer or is over."""
        asked = asyncio.ensure_future(self.asked.get())
        await asyncio.wait([asked, self.rollout], return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            messages = asked.result()
            fresh, self.seen = messages[self.seen :], len(messages)
            return "\n\n".join(str(message.content) for message in fresh), 0.0, False
        asked.cancel()
        output = self.rollout.result()
        if output.get("error"):
            raise RuntimeError(f"the rollout failed: {json.dumps(output['error'], default=str)[:300]}")
        return "The episode is over.", float(output["reward"]), True

    def _client(self) -> Any:
        """A client of verifiers that asks this session in place of a server."""
        types = self.package.types

        async def get_response(client: Any, prompt: list[Any], *rest: Any, **more: Any) -> Any:
            self.asked.put_nowait(list(prompt))
            text = await self.answers.get()
            message = types.ResponseMessage(content=text, finish_reason="stop", is_truncated=False)
            return types.Response(id="0", created=int(time.time()), model="policy", message=message)

        unused = dict.fromkeys(self.package.Client.__abstractmethods__)
        return type("Session", (self.package.Client,), {**unused, "get_response": get_response})(None)
