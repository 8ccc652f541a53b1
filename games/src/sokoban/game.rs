//! A game of Sokoban as RAGEN plays it: up to five actions per turn, ten per game by default.
//!
//! Rewards are those of gym-sokoban 0.0.6, which RAGEN wraps (`SokobanEnv._calc_reward`), and of
//! RAGEN's `EnvStateManager.step`: the sum over a turn's actions, with a penalty for a turn that is
//! empty or contains an unknown action.

use crate::draws::Draws;
use agentgym_envs::server::games::{Reply, TextGame};

use super::generator::{Kind, draw};
use super::room::{Direction, Room, State};

const STEP: f64 = -0.1;
const ONTO_TARGET: f64 = 1.0;
const OFF_TARGET: f64 = -1.0;
const SOLVED: f64 = 10.0;
const NO_ACTION: f64 = -0.1;

/// Actions of one turn that are executed; further ones are ignored.
const TURN_ACTIONS_MAX: usize = 5;

/// Separates the actions of a turn.
pub(super) const SEPARATOR: &str = "||";

/// A game in progress.
pub(super) struct Sokoban {
    room: Room,
    state: State,
    actions_left: usize,
    last: Reply,
}

impl Sokoban {
    /// The game of an item. It can be solved within its limit of actions.
    pub(super) fn start(kind: Kind, server_seed: u64, item: &str) -> Self {
        let parts: [&[u8]; 2] = [&server_seed.to_le_bytes(), item.as_bytes()];
        let (room, state) = draw(kind, &mut Draws::new("sokoban", &parts));
        Self::of(room, state, kind.actions)
    }

    pub(super) fn of(room: Room, state: State, actions_left: usize) -> Self {
        let last = Reply {
            observation: shown(&room, &state, actions_left),
            reward: 0.0,
            done: false,
        };
        Self {
            room,
            state,
            actions_left,
            last,
        }
    }

    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    pub(super) fn actions_left(&self) -> usize {
        self.actions_left
    }

    fn act(&mut self, action: Direction) -> f64 {
        self.actions_left -= 1;
        let before = self.room.placed(&self.state);
        if let Some(next) = self.room.after(&self.state, action) {
            self.state = next;
        }
        let placed = self.room.placed(&self.state);
        let mut reward = STEP;
        if placed > before {
            reward += ONTO_TARGET;
        } else if placed < before {
            reward += OFF_TARGET;
        }
        if placed == self.room.boxes() {
            reward += SOLVED;
        }
        reward
    }
}

impl TextGame for Sokoban {
    const NOUN: &'static str = "game";

    fn last(&self) -> &Reply {
        &self.last
    }

    /// Executes the actions of a turn: names separated by `||`, in any letter case.
    fn play(&mut self, text: &str) -> &Reply {
        let names = text.split(SEPARATOR).map(str::trim);
        let names = names.filter(|name| !name.is_empty()).take(TURN_ACTIONS_MAX);
        let actions: Vec<Option<Direction>> = names.map(action).collect();
        let all_known = !actions.is_empty() && actions.iter().all(Option::is_some);
        let mut reward = 0.0;
        let mut solved = false;
        for action in actions.into_iter().flatten().take(self.actions_left) {
            reward += self.act(action);
            solved = self.room.placed(&self.state) == self.room.boxes();
            if solved {
                break;
            }
        }
        let mut observation = shown(&self.room, &self.state, self.actions_left);
        if !all_known {
            reward += NO_ACTION;
            let known = Direction::ALL.map(Direction::name).join(", ");
            observation += &format!("\nAn action is one of {known}.");
        }
        self.last = Reply {
            observation,
            reward,
            done: solved || self.actions_left == 0,
        };
        &self.last
    }
}

fn action(name: &str) -> Option<Direction> {
    let mut all = Direction::ALL.into_iter();
    all.find(|action| action.name().eq_ignore_ascii_case(name))
}

fn shown(room: &Room, state: &State, actions_left: usize) -> String {
    let room = room.drawn(state);
    format!("{room}\nYou have {actions_left} actions left.")
}

#[cfg(test)]
mod tests {
    use super::super::ways::Ways;
    use super::*;

    /// Rooms drawn by RAGEN's generator and played at random in gym-sokoban 0.0.6, in RAGEN's
    /// letters: every state and reward, and the number of actions of RAGEN's solution.
    #[test]
    fn states_rewards_and_lengths_of_solutions_are_those_of_the_original() {
        let golden = serde_json::from_str(include_str!("golden.json")).expect("JSON");
        let golden: Vec<serde_json::Value> = golden;
        let mut rewarded = 0;
        for game in &golden {
            let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
            let (room, state) = Room::read(&text(&game["start"]));
            let solution = Ways::of(&room, 100).solution(&room, &state);
            let solution = solution.expect("can be solved");
            assert_eq!(
                solution.len() as u64,
                game["shortest"].as_u64().expect("a length")
            );
            let steps = game["steps"].as_array().expect("steps");
            let mut play = Sokoban::of(room, state, 100);
            for (taken, step) in steps.iter().enumerate() {
                let reply = play.play(&text(&step[0]));
                let shown = format!("{}\nYou have {} actions left.", text(&step[1]), 99 - taken);
                assert_eq!(reply.observation, shown);
                assert_eq!(reply.reward, step[2].as_f64().expect("a reward"));
                assert_eq!(reply.done, step[3].as_bool().expect("a flag"));
                rewarded += usize::from(reply.reward != STEP);
            }
        }
        assert!(golden.len() >= 20 && rewarded >= 40, "{rewarded}");
    }

    #[test]
    fn a_turn_is_five_actions_at_most_and_what_is_none_costs() {
        let start = "######\n#P___#\n#____#\n#____#\n#__XO#\n######";
        let game = || {
            let (room, state) = Room::read(start);
            Sokoban::of(room, state, 7)
        };
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found}");
        let mut play = game();
        // The sixth action is ignored.
        near(
            play.play("right||DOWN|| left || up||Right || jump").reward,
            -0.5,
        );
        assert!(
            play.last()
                .observation
                .ends_with("You have 2 actions left.")
        );
        for (text, costs) in [("", -0.1), ("jump", -0.1), ("|| ||", -0.1)] {
            near(play.play(text).reward, costs);
            let told = &play.last().observation;
            assert!(told.ends_with("2 actions left.\nAn action is one of Up, Down, Left, Right."));
        }
        near(play.play("jump || Up").reward, -0.2);
        assert!(!play.last().done);
        near(play.play("Down || Down").reward, -0.1);
        assert!(play.last().done);
        // Actions after the solution are not executed and cost nothing.
        let mut play = game();
        near(play.play("Down || Down || Down || Right").reward, -0.4);
        near(play.play("Right || Right").reward, 10.9);
        let last = play.last();
        assert!(
            last.done && last.observation.contains("#__P√#"),
            "{}",
            last.observation
        );
    }
}
