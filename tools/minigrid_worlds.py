#!/usr/bin/env python3
"""Compares BabyAI's worlds with those of MiniGrid itself.

The table games/src/babyai/original/worlds.txt holds a digest for each of the 40 levels and the
seeds 0 to 49: of the mission, the limit of moves, the pose, what is carried, and every cell. The
tests of agentgym-games compare our worlds with the table; this script makes the table from MiniGrid,
or compares it:

    scripts/minigrid.sh            # compare, in a virtual environment with the pinned packages
    scripts/minigrid.sh --write    # make the table
    scripts/minigrid.sh --show 12 3    # print what the digest of level 12, seed 3, is made of
"""

import argparse
import contextlib
import io
import pathlib
import sys

TABLE = pathlib.Path(__file__).parents[1] / "games/src/babyai/original/worlds.txt"
SEEDS = 50
LEVELS = """
GoToRedBallGrey GoToRedBall GoToRedBallNoDists GoToObjS6 GoToLocalS8N7 GoToObjMazeS7 GoToImpUnlock
GoToSeqS5R2 GoToRedBlueBall GoToDoor GoToObjDoor Open OpenRedDoor OpenDoorLoc OpenRedBlueDoorsDebug
OpenDoorsOrderN4Debug Pickup UnblockPickup PickupLoc PickupDistDebug PickupAbove PutNextLocalS6N4
PutNextS7N4Carrying Unlock UnlockLocalDist KeyInBox UnlockPickupDist BlockedUnlockPickup
UnlockToUnlock ActionObjDoor FindObjS7 KeyCorridorS6R3 OneRoomS20 MoveTwoAcrossS8N9 SynthS5R2
SynthLoc SynthSeq MiniBossLevel BossLevel BossLevelNoUnlock
""".split()
PINS = {"minigrid": "2.3.1", "gymnasium": "0.29.1", "numpy": "1.26.4"}


def world(level, seed):
    """What is compared of a world, as text."""
    import gymnasium
    import minigrid  # noqa: F401  (registers the levels)

    # MiniGrid prints every attempt that it rejects.
    with contextlib.redirect_stdout(io.StringIO()):
        env = gymnasium.make(f"BabyAI-{level}-v0").unwrapped
        env.reset(seed=seed)
    cells = env.grid.encode().reshape(-1, 3)
    x, y = (int(place) for place in env.agent_pos)
    carried = "nothing"
    if env.carrying:
        carried = " ".join(str(int(part)) for part in env.carrying.encode()[:2])
    return "\n".join(
        [
            env.mission,
            str(int(env.max_steps)),
            f"{x} {y} {int(env.agent_dir)}",
            carried,
            # Column by column: kind, colour and lock.
            " ".join(".".join(str(int(part)) for part in cell) for cell in cells),
        ]
    )


def digest(text):
    """FNV-1a with 64 bits."""
    state = 0xCBF29CE484222325
    for byte in text.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return f"{state:016x}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="make the table")
    parser.add_argument("--show", nargs=2, type=int, metavar=("LEVEL", "SEED"))
    asked = parser.parse_args()
    from importlib.metadata import version

    for package, pinned in PINS.items():
        if version(package) != pinned:
            sys.exit(f"{package} is {version(package)}; the table is of {pinned}: install that one")
    if asked.show:
        print(world(LEVELS[asked.show[0]], asked.show[1]))
        return
    found = [[digest(world(level, seed)) for seed in range(SEEDS)] for level in LEVELS]
    lines = [" ".join([level, *row]) for level, row in zip(LEVELS, found)]
    if asked.write:
        TABLE.write_text("\n".join(lines) + "\n")
    else:
        table = [line.split() for line in TABLE.read_text().splitlines()]
        differences = [
            f"{level} seed {seed}"
            for level, row, known in zip(LEVELS, found, table, strict=True)
            for seed, (mine, listed) in enumerate(zip(row, known[1:], strict=True))
            if mine != listed or level != known[0]
        ]
        if differences:
            sys.exit(f"{TABLE}: {len(differences)} worlds differ: {', '.join(differences[:20])}")
    print(f"{len(LEVELS)} levels, {SEEDS} seeds each: the table is MiniGrid's")


if __name__ == "__main__":
    main()
