"""A game on openenv-core's own server, for scripts/bridges.sh: coins, of which both sides take 1 to 3 in turn.

    openenv_coins.py PORT
"""

import random
import socket
import sys

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Take(Action):
    """Take 1 to 3 coins; whoever takes the last one wins."""

    coins: int = Field(..., ge=1, le=3, description="how many, 1 to 3")


class Table(Observation):
    text: str = ""


class Coins(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.left = 0

    def reset(self, seed=None, episode_id=None, **more):
        self.random = random.Random(seed)
        self.left = self.random.choice([5, 6, 7, 9, 10, 11])
        return Table(text=f"Coins: {self.left}.")

    def step(self, action, timeout_s=None, **more):
        self.left -= min(action.coins, self.left)
        if self.left == 0:
            return Table(text="You win.", reward=1.0, done=True)
        self.left -= min(self.left, self.left % 4 or self.random.randint(1, 3))
        if self.left == 0:
            return Table(text="I win.", reward=0.0, done=True)
        return Table(text=f"Coins: {self.left}.", reward=0.0, done=False)

    @property
    def state(self):
        return State()


listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
app = create_app(Coins, Take, Table, max_concurrent_envs=200)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
