//! A picture of the grid: all that is in it, and which part of it the agent sees.

use super::game::BabyaiGame;
use super::grid::{Cell, Grid, Kind, Lock, Pixel, STEPS, Thing, VIEW, VIEW_MIDDLE};
use agentgym_envs::replica::Replica;
use serde_json::{Value, json};

impl Replica for BabyaiGame {
    fn first(&self) -> String {
        self.last().observation.clone()
    }

    fn step(&mut self, action: &str) -> String {
        Self::step(self, action).observation.clone()
    }

    fn picture(&self) -> Value {
        let grid = self.grid();
        let things = grid
            .things
            .iter()
            .enumerate()
            .filter_map(|(number, thing)| {
                let at = thing.at.filter(|_| grid.carrying != Some(number))?;
                Some(json!({
                    "at": at, "what": thing.kind.name(), "colour": thing.colour.name(),
                    "lock": lock(thing),
                }))
            });
        let carried = grid.carrying.map(|number| {
            let Thing { kind, colour, .. } = &grid.things[number];
            json!({"what": kind.name(), "colour": colour.name()})
        });
        json!({
            "kind": "grid", "goal": self.mission(), "rows": rows(grid), "seen": seen(grid),
            "things": things.collect::<Vec<_>>(), "agent": grid.agent, "facing": grid.facing,
            "carries": carried,
        })
    }
}

fn lock(thing: &Thing) -> Option<&'static str> {
    (thing.kind == Kind::Door).then_some(match thing.lock {
        Lock::Open => "open",
        Lock::Closed => "closed",
        Lock::Locked => "locked",
    })
}

/// Walls as `#`.
fn rows(grid: &Grid) -> Vec<String> {
    let letter = |at| match grid.cell(at) {
        Cell::Wall => '#',
        Cell::Empty | Cell::Thing(_) => '.',
    };
    let row = |y| (0..grid.width).map(|x| letter((x, y))).collect();
    (0..grid.height).map(row).collect()
}

/// The cells that the agent sees, its own first.
fn seen(grid: &Grid) -> Vec<(usize, usize)> {
    let (ahead_x, ahead_y) = STEPS[grid.facing];
    let (right_x, right_y) = STEPS[(grid.facing + 1) % STEPS.len()];
    let pixels = grid.picture();
    let lit = pixels.iter().enumerate();
    lit.filter(|(_, pixel)| **pixel != Pixel::Unseen)
        .filter_map(|(number, _)| {
            let ahead = (number / VIEW) as isize;
            let right = (number % VIEW) as isize - VIEW_MIDDLE as isize;
            let x = grid
                .agent
                .0
                .checked_add_signed(ahead_x * ahead + right_x * right)?;
            let y = grid
                .agent
                .1
                .checked_add_signed(ahead_y * ahead + right_y * right)?;
            (x < grid.width && y < grid.height).then_some((x, y))
        })
        .collect()
}
