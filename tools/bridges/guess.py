"""An environment on verifiers' own MultiTurnEnv, for scripts/bridges.sh: a number that is guessed in a few turns."""

import random

import verifiers
from datasets import Dataset


class Guess(verifiers.MultiTurnEnv):
    async def env_response(self, messages, state, **more):
        number, given = int(state["answer"]), str(messages[-1].content).strip()
        if given == str(number):
            state["final_env_response"] = [verifiers.UserMessage(content="Right.")]
            return state["final_env_response"]
        if not given.isdecimal():
            return [verifiers.UserMessage(content="That is no number.")]
        return [verifiers.UserMessage(content="Higher." if int(given) < number else "Lower.")]


def found(completion, answer, **more):
    return float(any(message.role == "assistant" and str(message.content).strip() == answer for message in completion))


def load_environment(count=1000):
    rows = [{"question": "Guess a number from 0 to 9.", "answer": str(random.Random(n).randint(0, 9))} for n in range(count)]
    return Guess(dataset=Dataset.from_list(rows), rubric=verifiers.Rubric(funcs=[found]), max_turns=5)
