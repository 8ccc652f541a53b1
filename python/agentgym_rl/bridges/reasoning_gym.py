"""`reasoning_gym:NAME?KEY=VALUE`: a dataset of Reasoning Gym. Item n is its entry n, played in one round and
scored by the package; the keys are those of the dataset's config."""

import re
from typing import Any, ClassVar

from ..environment import Environment
from ..errors import AgentgymError, imported, short
from . import split, subclass

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.S)


def environment(name: str, tasks: str | None) -> type[Environment]:
    """The class for a dataset's name."""
    name, options = split(name)
    package = imported("reasoning_gym", "reasoning_gym", f"reasoning_gym:{name}")
    try:
        dataset = package.create_dataset(name, **{"seed": 0, "size": 1_000_000, **options})
        dataset[0]
    except Exception as error:
        raise AgentgymError(f"reasoning_gym:{name} is not made: {short(error)}") from error
    return subclass(
        name, ReasoningGym, dataset=dataset, probe="0",
        instruction="Solve the task. Answer with the solution alone, or put it between <answer> and </answer>.",
        spec={"parser": "raw", "rounds_max": 1, "items": {"wrapping": len(dataset)}},
    )  # fmt: skip


class ReasoningGym(Environment):
    """A dataset of Reasoning Gym."""

    dataset: ClassVar[Any]

    def reset(self, item_id: int) -> str:
        self.entry = self.dataset[item_id % len(self.dataset)]
        return str(self.entry["question"])

    def step(self, action: str) -> tuple[str, float, bool]:
        tagged = ANSWER.findall(action)
        answer = (tagged[-1] if tagged else action).strip()
        score = float(self.dataset.score_answer(answer=answer, entry=self.entry))
        return f"The score is {score:g}.", score, True
