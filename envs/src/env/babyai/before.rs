//! The rules of before: worlds from a generator of our own; a macro ends at its first reward, and
//! everything in view is on the list of actions. Plans that name no rules play by these.

mod build;
mod grammar;
mod levels;
mod parts;

pub(super) use levels::level;

use super::grid::Primitive;
use super::level::Level;
use super::mission::{Event, Status};

/// Which quirks of the original are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compat {
    /// None of those that hurt training: a success ends the episode however late it comes; a
    /// failure or the limit of moves ends it with reward 0; the score is the reward, counted once;
    /// missions state their order; `toggle` opens a box in front and closes an open door; and a
    /// session can be closed before its first reset.
    #[default]
    Fixed,
    /// All of them: an episode continues after a success with reward 0.5 or less and after a
    /// failure, without a limit of moves; steps without effect add the last reward to the score
    /// again; `then` and `after you` are worded `and`; `toggle` only opens doors; and a session
    /// that a client tried to close before its first reset can never be closed.
    Original,
}

/// What the latest move was worth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Worth {
    pub(super) reward: f64,
    pub(super) done: bool,
}

/// Judges moves.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Judge {
    pub(super) compat: Compat,
    /// The mission succeeded or failed; the world no longer checks it.
    ended: bool,
}

impl Judge {
    pub(super) fn new(compat: Compat) -> Self {
        Self {
            compat,
            ended: false,
        }
    }

    /// Judges the state after a move, the `moves`-th of the episode.
    pub(super) fn judge(
        &mut self,
        level: &mut Level,
        moves: u32,
        primitive: Primitive,
        carried_before: Option<usize>,
    ) -> Worth {
        let fixed = self.compat == Compat::Fixed;
        let mut worth = Worth::default();
        if !self.ended {
            let event = Event {
                primitive,
                carried_before,
            };
            match level.goal.check(&level.grid, &event) {
                Status::Going => {}
                Status::Reached => {
                    self.ended = true;
                    worth.reward = level.reward(moves);
                    worth.done = fixed || worth.reward > 0.5;
                }
                Status::Failed => {
                    self.ended = true;
                    worth.done = fixed;
                }
            }
        }
        worth.done |= fixed && moves >= level.moves_max;
        worth
    }
}
