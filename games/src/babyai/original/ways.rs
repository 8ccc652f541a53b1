//! The ways that the original finds: with the fewest moves, through what the agent sees now.
//!
//! What is out of sight counts as free, and so does every door: a macro that runs into something
//! ends there. The region that is searched is the view and, when the agent faces right or down, the
//! row behind it; when it faces down or left, the column to the right of the view. All of this was
//! read off the lists of actions and the ends of macros in recorded episodes.

use std::collections::VecDeque;

use crate::babyai::grid::{Grid, Kind, Pixel, Pos, Primitive, VIEW, VIEW_MIDDLE};

/// Cells of the region: the row behind, the view and the column to its right.
const SIDE: usize = VIEW + 1;

/// A cell of the region, by rows from behind the agent and columns from the left; and a heading, 0
/// being the agent's and the next one a turn to the right.
type Pose = (usize, usize, usize);

const START: Pose = (1, VIEW_MIDDLE, 0);

/// All ways from where the agent stands.
pub(crate) struct Ways<'a> {
    grid: &'a Grid,
    /// In the order of their distance, with the place of the pose before in this list.
    poses: Vec<(Pose, Option<(usize, Primitive)>)>,
}

/// The cell in front.
fn ahead((row, column, heading): Pose) -> Option<(usize, usize)> {
    let (row, column) = match heading {
        0 => (row + 1, column),
        1 => (row, column + 1),
        2 => (row.checked_sub(1)?, column),
        _ => (row, column.checked_sub(1)?),
    };
    (row < SIDE && column < SIDE).then_some((row, column))
}

impl<'a> Ways<'a> {
    pub(crate) fn new(grid: &'a Grid) -> Self {
        let (behind, right) = match grid.facing {
            0 => (true, false),
            1 => (true, true),
            2 => (false, true),
            _ => (false, false),
        };
        let picture = grid.picture();
        let is_free = |row: usize, column: usize| match (row, column) {
            (0, column) => behind && (column < VIEW || right),
            (_, VIEW) => right,
            (row, column) => match picture[(row - 1) * VIEW + column] {
                Pixel::Empty | Pixel::Unseen => true,
                Pixel::Wall => false,
                Pixel::Thing(kind, ..) => kind == Kind::Door || (row, column) == (1, VIEW_MIDDLE),
            },
        };
        let mut seen = [[[false; 4]; SIDE]; SIDE];
        seen[START.0][START.1][START.2] = true;
        let mut poses = vec![(START, None)];
        let mut open = VecDeque::from([0]);
        while let Some(place) = open.pop_front() {
            let pose = poses[place].0;
            let (row, column, heading) = pose;
            let forward = ahead(pose).filter(|(row, column)| is_free(*row, *column));
            let next = [
                Some(((row, column, (heading + 3) % 4), Primitive::Left)),
                Some(((row, column, (heading + 1) % 4), Primitive::Right)),
                forward.map(|(row, column)| ((row, column, heading), Primitive::Forward)),
            ];
            for (to, primitive) in next.into_iter().flatten() {
                if !std::mem::replace(&mut seen[to.0][to.1][to.2], true) {
                    open.push_back(poses.len());
                    poses.push((to, Some((place, primitive))));
                }
            }
        }
        Self { grid, poses }
    }

    /// The fewest moves that bring the agent in front of a cell, facing it. `None` if there is no
    /// way.
    pub(crate) fn to(&self, target: Pos) -> Option<Vec<Primitive>> {
        let (ahead_by, right_by) = self.grid.seen_from_agent(target);
        let row = usize::try_from(ahead_by + 1).ok()?;
        let column = usize::try_from(right_by + VIEW_MIDDLE as isize).ok()?;
        let fits = |(pose, _): &(Pose, _)| ahead(*pose) == Some((row, column));
        let mut place = self.poses.iter().position(fits)?;
        let mut way = Vec::new();
        while let Some((before, primitive)) = self.poses[place].1 {
            way.push(primitive);
            place = before;
        }
        way.reverse();
        Some(way)
    }
}
