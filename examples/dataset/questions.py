"""Questions in the manner of GSM8K: a story with two small numbers, and an answer that shows its sum.

    python questions.py [COUNT] > questions.jsonl
"""

import json
import random
import sys

NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"]
THINGS = ["pears", "coins", "books", "shells"]
STORIES = [
    (1, "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?"),
    (1, "There are {a} {things} in a box and {b} in a bag. How many {things} are there?"),
    (-1, "{name} has {a} {things} and loses {b}. How many {things} are left?"),
    (-1, "Of {a} {things}, {name} gives away {b}. How many {things} does {name} keep?"),
]

draws = random.Random(1)
for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 4000):
    sign, story = draws.choice(STORIES)
    a, b = draws.randint(2, 9), draws.randint(1, 9)
    if sign < 0:
        a, b = max(a, b), min(a, b)
    question = story.format(name=draws.choice(NAMES), things=draws.choice(THINGS), a=a, b=b)
    answer = f"{a} {'+' if sign > 0 else '-'} {b} = {a + sign * b}\n#### {a + sign * b}"
    print(json.dumps({"id": number, "question": question, "answer": answer}))
