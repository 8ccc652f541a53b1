//! A picture of the maze.

use super::game::Maze;
use agentgym_envs::replica::Replica;
use serde_json::{Value, json};

impl Replica for Maze {
    fn first(&self) -> String {
        self.observation()
    }

    fn step(&mut self, action: &str) -> String {
        Self::step(self, action).observation
    }

    fn picture(&self) -> Value {
        let ((row, column), (goal_row, goal_column)) = self.places();
        json!({
            "kind": "grid", "goal": "find the way to the goal", "rows": Self::walls(),
            "things": [{"at": [goal_column, goal_row], "what": "goal", "colour": "green"}],
            "agent": [column, row],
        })
    }
}
