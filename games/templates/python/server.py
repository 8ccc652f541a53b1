"""An environment for AgentGym: a game of coins. Start it with

    uvicorn server:app --port 36100
"""

import itertools
import random
import time

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

app = FastAPI()
sessions = {}
# No number of a server that ran before is given again.
numbers = itertools.count(time.time_ns() // 1_000_000)


class Game:
    """Both take 1 to 3 coins in turn; whoever takes the last one wins."""

    def __init__(self, item):
        # The same item is the same game, and the same moves bring the same replies.
        self.random = random.Random(item)
        self.coins = self.random.choice([n for n in range(5, 20) if n % 4])
        self.over = False

    def seen(self):
        return f"Coins: {self.coins}."

    def step(self, action):
        """Observation, reward, and whether the game is over."""
        taken = {"take 1": 1, "take 2": 2, "take 3": 3}.get(action, 99)
        if taken > self.coins:
            return f"That is no move. {self.seen()}", 0.0, False
        self.coins -= taken
        if self.coins == 0:
            return "You win.", 1.0, True
        mine = self.coins % 4 if self.random.random() < 0.5 else 0
        mine = mine or self.random.randint(1, min(3, self.coins))
        self.coins -= mine
        if self.coins == 0:
            return f"I take {mine} and win.", 0.0, True
        return f"I take {mine}. {self.seen()}", 0.0, False


class Session(BaseModel):
    id: int


class Reset(Session):
    data_idx: int


class Step(Session):
    action: str


def game(session):
    """The game of a session that was reset and is not over."""
    if sessions.get(session.id) is None:
        raise HTTPException(404, f"no game in session {session.id}")
    return sessions[session.id]


@app.post("/create")
def create():
    number = next(numbers)
    sessions[number] = None
    return {"id": number}


@app.post("/reset")
def reset(body: Reset):
    if body.id not in sessions:
        raise HTTPException(404, f"no session {body.id}")
    sessions[body.id] = Game(body.data_idx)
    return {"observation": sessions[body.id].seen()}


@app.post("/step")
def step(body: Step):
    played = game(body)
    if played.over:
        raise HTTPException(409, "the game has finished")
    observation, reward, played.over = played.step(body.action)
    return {"observation": observation, "reward": reward, "done": played.over}


@app.post("/close")
def close(body: Session):
    return sessions.pop(body.id, False) is not False
