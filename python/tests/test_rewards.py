"""The server of reward functions: names and versions, and that no failure becomes a number."""

import io
import unittest
from contextlib import redirect_stderr
from typing import Any

import games
from agentgym_rl import AgentgymError
from agentgym_rl.rewards import RewardServer
from test_environment import call


class Rewards(unittest.TestCase):
    def setUp(self) -> None:
        self.errors = io.StringIO()
        self.enterContext(redirect_stderr(self.errors))
        self.url = self.enterContext(RewardServer(games.length, games.judged, games.broken)).url

    def asked(self, function: str, *trajectories: Any) -> tuple[int, Any]:
        return call(self.url, "/", {"function": function, "trajectories": list(trajectories)})

    def style(self, *wanted: Any) -> tuple[int, Any]:
        return self.asked("style-2", *({"item_id": f"coins_{n}", "wanted": value} for n, value in enumerate(wanted)))

    def test_functions_are_found_by_name_and_version(self) -> None:
        self.assertEqual(call(self.url, "/", method="GET")[1], {"functions": ["length", "style-2", "broken"]})
        self.assertEqual(self.asked("length", {"conversations": [1, 2]}, {"conversations": []}), (200, {"rewards": [2.0, 0.0]}))
        status, answer = self.asked("style", {})
        self.assertEqual((status, "served here: length, style-2, broken" in answer["error"]), (404, True))
        self.assertEqual(games.length({"conversations": [1]}), 1.0)

    def test_none_excludes_and_parts_and_reasons_are_kept(self) -> None:
        parts = {"reward": 0.5, "components": {"short": 0.25}, "reason": "brief"}
        excluded = {"reward": None, "components": {}, "reason": ""}
        self.assertEqual(self.style(None, 1, parts, {"reward": None}), (200, {"rewards": [None, 1.0, parts, excluded]}))

    def test_no_failure_is_a_number(self) -> None:
        status, answer = self.asked("broken", {"item_id": "coins_7"})
        self.assertEqual((status, answer), (500, {"error": "broken raised ValueError: no grammar at item coins_7"}))
        self.assertIn("Traceback", self.errors.getvalue())
        for wrong in ("1.0", True, [1], {}, {"reward": "x"}, {"reward": 1, "colour": 2}, {"reward": 1, "components": [1]},
                      {"reward": 1, "components": {"a": "b"}}, {"reward": 1, "reason": 3}, 1e300):  # fmt: skip
            status, answer = self.style(0.5, wrong)
            self.assertEqual(status, 500, wrong)
            self.assertRegex(answer["error"], "^style-2 returned .* at item coins_1: ", wrong)
        # NaN is no JSON, so it comes from within.
        self.assertIn("expected: a finite number", games.judged.__class__(lambda _: float("nan"), "f", None)._problem(float("nan")) or "")

    def test_requests_that_are_wrong(self) -> None:
        self.assertEqual(call(self.url, "/", {"function": "length"})[0], 422)
        self.assertEqual(self.asked("length", 3)[0], 422)

    def test_two_of_one_name_are_refused(self) -> None:
        for functions in ((games.length, games.length), ()):
            with self.assertRaisesRegex(AgentgymError, "names of their own"):
                RewardServer(*functions)


if __name__ == "__main__":
    unittest.main()
