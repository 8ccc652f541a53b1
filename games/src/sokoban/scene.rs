//! A picture of a room.

use super::game::Sokoban;
use agentgym_envs::replica::Replica;
use agentgym_envs::server::games::TextGame;
use serde_json::{Value, json};

impl Replica for Sokoban {
    fn first(&self) -> String {
        self.last().observation.clone()
    }

    fn step(&mut self, action: &str) -> String {
        self.play(action).observation.clone()
    }

    fn picture(&self) -> Value {
        let drawn = self.room().drawn(self.state());
        let (mut things, mut agent) = (Vec::new(), None);
        let mut rows = Vec::new();
        for (y, line) in drawn.lines().enumerate() {
            for (x, letter) in line.chars().enumerate() {
                if matches!(letter, 'O' | '√' | 'S') {
                    things.push(json!({"at": [x, y], "what": "target", "colour": "green"}));
                }
                if matches!(letter, 'X' | '√') {
                    let placed = letter == '√';
                    things.push(
                        json!({"at": [x, y], "what": "box", "colour": "yellow", "placed": placed}),
                    );
                }
                if matches!(letter, 'P' | 'S') {
                    agent = Some((x, y));
                }
            }
            let walls = line
                .chars()
                .map(|letter| if letter == '#' { '#' } else { '.' });
            rows.push(walls.collect::<String>());
        }
        json!({
            "kind": "grid", "goal": "push every box onto a target", "rows": rows,
            "things": things, "agent": agent, "left": self.actions_left(),
        })
    }
}
