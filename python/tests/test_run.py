"""A run that the installed programs made, read as tables and sent to a tracker; and what goes wrong in between."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from agentgym_rl import AgentgymError, Run
from agentgym_rl.log import COLUMNS, _send, episodes, figures, wandb_records
from agentgym_rl.run import numbers, program

ROOT = Path(__file__).parents[2]
SMALL = (
    "trainer.total_training_steps=2", "trainer.test_freq=2", "data.train_batch_size=4", "data.tasks=[{env: worlds, ids: 0..1000}]",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "run.id=small", "evaluation.sets=[{name: worlds, env: worlds, ids: 1000000..1000002}]",
)  # fmt: skip


class Kept:
    """A tracker in memory."""

    def __init__(self, last: int = -1) -> None:
        self.last, self.got = last, []

    def send(self, iteration, named, rows) -> None:
        self.got.append((iteration, named, rows))

    def close(self) -> None: ...


class Runs(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.store = cls.enterClassContext(tempfile.TemporaryDirectory())
        line = [program("agentgym-submit"), "--quiet", "--store", cls.store, "run", "configs/smoke.yaml", *SMALL]
        subprocess.run(line, cwd=ROOT, check=True, capture_output=True)
        cls.run_ = Run(cls.store, "small")

    def test_episodes_and_turns_are_those_of_the_run(self) -> None:
        episodes = self.run_.episodes().to_pylist()
        played = [row for row in episodes if row["stage"] == "rollout"]
        # 2 iterations, 4 tasks, 4 samples.
        self.assertEqual((len(played), {row["iteration"] for row in played}), (32, {1, 2}))
        turns = self.run_.turns().to_pylist()
        self.assertEqual(len(turns), sum(row["turns"] for row in episodes))
        last = {(t["iteration"], t["stage"], t["part"], t["group"], t["sample"], t["item_id"]): t for t in turns}
        for row in played:
            place = (row["iteration"], "rollout", int(row["part"].split("/")[2]), row["group"], row["sample"], row["item"])
            self.assertEqual(last[place]["reward"], row["reward"])
        self.assertTrue(all(turn["text"] and turn["observation"] is not None for turn in turns))
        only = self.run_.turns(2, "rollout").to_pylist()
        self.assertEqual({(t["iteration"], t["stage"]) for t in only}, {(2, "rollout")})

    def test_tokens_have_what_the_update_read(self) -> None:
        tokens = self.run_.tokens(1).to_pylist()
        sampled = [token for token in tokens if token["loss_mask"]]
        parts = {(part["stage"], part["part"]): part for part in self.run_.parts(1)}
        self.assertEqual(len(sampled), parts["advantage", 0]["metrics"]["loss_tokens"])
        self.assertTrue(all(t["sampled_log_prob"] <= 0 and t["old_log_prob"] is not None and t["entropy"] is not None for t in sampled))
        advantages = {(row["group"], row["sample"]): row["advantage"] for row in self.run_.episodes().to_pylist()
                      if row["stage"] == "rollout" and row["iteration"] == 1}  # fmt: skip
        self.assertGreater(len(set(advantages.values())), 1)
        for token in sampled:
            self.assertAlmostEqual(token["advantage"], advantages[token["group"], token["sample"]], 5)
        self.assertTrue(all(token["advantage"] == 0 for token in tokens if not token["loss_mask"]))
        self.assertEqual({t["advantage"] for t in self.run_.tokens(0, "evaluate").to_pylist()}, {None})

    def test_metrics_and_evaluations_are_those_of_the_programs(self) -> None:
        expected = self.run_.submit("metrics", "small")
        rows = self.run_.metrics().to_pylist()
        found = {(row["iteration"], row["stage"], row["name"]): row["value"] for row in rows if row["kind"] == "metrics"}
        for row in expected["training"]:
            self.assertEqual(found[row["iteration"], "update", "pg_loss"], row["loss"])
        self.assertTrue(any(row["kind"] == "stats" and row["name"] == "wall_s" for row in rows))
        shown = {(row["iteration"], row["stage"]): row for row in self.run_.evaluations().to_pylist()}
        self.assertEqual([place for place in shown], [(0, "evaluate_init"), (0, "evaluate"), (2, "evaluate")])
        self.assertEqual([row["success"] for row in shown.values()], [e["sets"]["worlds"]["success"] for e in expected["evaluations"]])
        self.assertEqual(self.run_.episodes().to_pandas().shape[0], self.run_.episodes().num_rows)

    def test_the_config_has_every_key(self) -> None:
        config = self.run_.config()
        self.assertEqual((config["run"]["seed"], config["actor_rollout_ref"]["rollout"]["n"]), (5, 4))
        self.assertIn("gamma", config["algorithm"])

    def test_a_tracker_gets_each_iteration_once(self) -> None:
        kept = Kept()
        self.assertEqual(_send(self.run_, kept, False, 1), (3, 0))
        self.assertEqual([iteration for iteration, _, _ in kept.got], [0, 1, 2])
        again = Kept(last=1)
        self.assertEqual(_send(self.run_, again, True, 0.1), (1, 2))
        self.assertEqual(again.got, kept.got[2:])
        _, named, rows = kept.got[2]
        (part,) = [part for part in self.run_.parts(2) if part["stage"] == "update"]
        self.assertEqual(named["actor/pg_loss"], part["metrics"]["pg_loss"])
        self.assertEqual(named["critic/score/mean"], named["advantage/reward"])
        self.assertEqual(named["val/test_score/worlds"], named["evaluate/worlds/reward"])
        tokens = [part["stats"]["sampled_tokens"] for part in self.run_.parts(2) if part["stage"] == "rollout"]
        self.assertEqual(named["perf/total_num_tokens"], sum(tokens))
        self.assertGreater(named["timing_s/step"], 0)
        self.assertEqual((len(rows), len(rows[0])), (4, len(COLUMNS)))
        self.assertIn("Goal: craft", rows[0][5])
        self.assertEqual(episodes(self.run_, 0, self.run_.parts(0)), [])
        self.assertFalse(any(name.startswith(("actor/", "train/")) for name in kept.got[0][1]))

    def test_an_iteration_that_is_not_complete_waits(self) -> None:
        asked = self.run_.submit

        def missing(*words):
            found = asked(*words)
            if words == ("inspect", "small"):
                found["iterations"][1]["parts_committed"] -= 1
            return found

        kept = Kept()
        with mock.patch.object(self.run_, "submit", missing):
            _send(self.run_, kept, False, 1)
        self.assertEqual([iteration for iteration, _, _ in kept.got], [0])

    def test_what_is_not_there_is_one_error(self) -> None:
        for run, expected in [(Run(self.store, "other"), "unknown run"), (Run("/nowhere/at/all", "small"), "run small in /nowhere/at/all")]:
            with self.assertRaisesRegex(AgentgymError, expected):
                run.episodes()
            with self.assertRaisesRegex(AgentgymError, expected):
                run.config()
        with self.assertRaisesRegex(AgentgymError, "pip install transformers"):
            self.run_.load_policy()
        with self.assertRaisesRegex(AgentgymError, "ended with 4"):
            self.run_.turns(9)

    def test_programs_that_are_missing_or_of_another_version(self) -> None:
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, AGENTGYM_PROGRAMS=folder):
            with self.assertRaisesRegex(AgentgymError, f"agentgym-submit is not in AGENTGYM_PROGRAMS={folder}; build it"):
                self.run_.episodes()
            other = Path(folder, "agentgym-submit")
            for says, error in [("echo no", "printed no JSON"), ("echo '{\"version\": 2}'", "another version than 1"), ("exit 9", "ended with 9")]:
                other.write_text(f"#!/bin/sh\n{says}\n")
                other.chmod(0o755)
                with self.assertRaisesRegex(AgentgymError, error):
                    self.run_.episodes()
        with mock.patch.dict(os.environ, PATH="", AGENTGYM_PROGRAMS=""), self.assertRaisesRegex(AgentgymError, "not on PATH"):
            self.run_.episodes()


class Pure(unittest.TestCase):
    def test_numbers_leave_out_what_is_none(self) -> None:
        self.assertEqual(list(numbers({"a": {"b": 1}, "c": True, "d": None, "e": "1", "f": [1], "g": 2.5})), [("a/b", 1.0), ("g", 2.5)])

    def test_figures_are_means_over_parts_and_finite(self) -> None:
        part = {"iteration": 1, "stage": "rollout", "part": 0, "set": None, "metrics": {}, "started_unix_s": 10, "wall_s": 2.0}
        parts = [{**part, "stats": {"x": 1.0, "sampled_tokens": 3}}, {**part, "started_unix_s": 11, "stats": {"x": 3.0, "y": float("nan"), "sampled_tokens": 4}}]
        found = figures(parts)
        self.assertEqual((found["stats/rollout/x"], found["perf/total_num_tokens"], found["timing_s/gen"]), (2.0, 7, 3.0))
        self.assertNotIn("stats/rollout/y", found)

    def test_a_wandb_file_that_is_cut_off_anywhere_gives_what_is_whole(self) -> None:
        def framed(kind: int, piece: bytes) -> bytes:
            return b"crc " + len(piece).to_bytes(2, "little") + bytes([kind]) + piece

        long = os.urandom(40_000)
        # Three bytes are left of the first block, in which no header has room.
        first = (1 << 15) - 7 - 10 - 7 - 3
        data = b":W&B123" + framed(1, b"one") + framed(2, long[:first]) + bytes(3) + framed(4, long[first:]) + framed(1, b"two")
        self.assertEqual(list(wandb_records(data)), [b"one", long, b"two"])
        for end in range(0, len(data), 997):
            self.assertEqual(list(wandb_records(data[:end])), [b"one", long, b"two"][: len(list(wandb_records(data[:end])))])
        self.assertEqual(list(wandb_records(json.dumps({"no": "log"}).encode() * 100)), [])


if __name__ == "__main__":
    unittest.main()
