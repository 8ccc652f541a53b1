//! How many actions solve a room from each of its states, found backwards from the solved ones.

use std::collections::HashMap;

use super::room::{Direction, Room, State};

/// States that are looked at before a level is the last one.
const STATES_MAX: usize = 50_000;

/// States by the fewest actions that solve them.
pub(super) struct Ways {
    levels: Vec<Vec<State>>,
    fewest: HashMap<State, usize>,
}

impl Ways {
    /// All states that at most so many actions solve; fewer where a room is so large that
    /// there are too many of them.
    pub(super) fn of(room: &Room, actions_max: usize) -> Self {
        let mut levels = vec![room.solved_states()];
        let mut fewest: HashMap<State, usize> = levels[0].iter().map(|state| (*state, 0)).collect();
        for actions in 1..=actions_max {
            let mut level = Vec::new();
            for state in levels[actions - 1]
                .iter()
                .flat_map(|state| room.before(state))
            {
                fewest.entry(state).or_insert_with(|| {
                    level.push(state);
                    actions
                });
            }
            if level.is_empty() {
                break;
            }
            levels.push(level);
            if fewest.len() > STATES_MAX {
                break;
            }
        }
        Self { levels, fewest }
    }

    /// The states without a box on a target, those that equally many actions solve together.
    pub(super) fn starts(self, room: &Room) -> Vec<Vec<State>> {
        let levels = self.levels.into_iter().map(|level| -> Vec<State> {
            let mut level = level;
            level.retain(|state| room.placed(state) == 0);
            level
        });
        levels.filter(|level| !level.is_empty()).collect()
    }

    /// A shortest solution.
    pub(super) fn solution(&self, room: &Room, state: &State) -> Option<Vec<Direction>> {
        let mut state = *state;
        let mut actions = Vec::new();
        for left in (0..*self.fewest.get(&state)?).rev() {
            let next = Direction::ALL.into_iter().find_map(|action| {
                let next = room.after(&state, action)?;
                (self.fewest.get(&next) == Some(&left)).then_some((action, next))
            });
            let (action, next) = next.expect("a level is reached from the one before it");
            actions.push(action);
            state = next;
        }
        Some(actions)
    }
}
