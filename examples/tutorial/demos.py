"""Shows how moves are written, and nothing about which are good: games of a player who takes any
number of coins, in AgentGym's trajectory format. `python demos.py 400 > demos.json`, beside server.py.
"""

import json
import random
import sys

from server import Game

INSTRUCTION = (
    "Coins lie on a table. You and I take 1, 2 or 3 of them in turn; you begin, and whoever takes the "
    "last one wins. Answer with one line: Action: take <number>"
)


def played(item):
    game, player = Game(item), random.Random(-item)
    turns = [{"from": "human", "loss": None, "value": f"{INSTRUCTION}\n\n{game.seen()}"}]
    over = False
    while not over:
        action = f"take {player.randint(1, min(3, game.coins))}"
        turns.append({"from": "gpt", "loss": True, "value": f"Action: {action}"})
        seen, _, over = game.step(action)
        turns.append({"from": "human", "loss": None, "value": seen})
    return {"item_id": f"coins_{item}", "conversations": turns[:-1]}


# Games that are neither trained on nor judged by.
print(json.dumps([played(2_000_000 + n) for n in range(int(sys.argv[1]))]))
