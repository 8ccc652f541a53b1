//! The fewest actions that solve a room from each state, by search backwards from the solved ones.

use std::collections::HashMap;

use super::room::{Direction, Room, State};

/// The search stops after the level at which it has seen more states than this.
const STATES_MAX: usize = 50_000;

/// States, by the fewest actions that solve them.
pub(super) struct Ways {
    levels: Vec<Vec<State>>,
    fewest: HashMap<State, usize>,
}

impl Ways {
    /// All states that can be solved in at most `actions_max` actions; fewer if the room has too
    /// many states.
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

    /// The states without a box on a target, grouped by the fewest actions that solve them.
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
