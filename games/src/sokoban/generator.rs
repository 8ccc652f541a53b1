//! Generates rooms.

use crate::draws::Draws;

use super::room::{Cell, Direction, Room, State};
use super::ways::Ways;

/// Allowed numbers of rows and columns of a room, including its outer walls.
pub(super) const SIZES: std::ops::RangeInclusive<usize> = 6..=12;

/// Parameters of the generated rooms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) boxes: usize,
    /// Every room can be solved in this many actions.
    pub(super) actions: usize,
}

/// A room that can be solved in the allowed actions, and its start state. The length of the
/// shortest solution is drawn first, so that easy and hard rooms are equally frequent; then the
/// start among those with that length and without a box on a target.
pub(super) fn draw(kind: Kind, draws: &mut Draws) -> (Room, State) {
    loop {
        let floor = dig(kind.rows, kind.columns, draws);
        let cells = 0..floor.len() as Cell;
        let mut free: Vec<Cell> = cells.filter(|cell| floor[usize::from(*cell)]).collect();
        // Space for the player and for a push.
        if free.len() < kind.boxes + 2 {
            continue;
        }
        draws.shuffle(&mut free);
        let room = Room::new(kind.columns, floor, &free[..kind.boxes]);
        let starts = Ways::of(&room, kind.actions).starts(&room);
        if !starts.is_empty() {
            let starts = &starts[draws.below(starts.len())];
            let start = starts[draws.below(starts.len())];
            return (room, start);
        }
    }
}

/// The shapes that the random walk digs, three bits for each row. The shapes, the chance of a turn
/// and the number of steps are those of Racanière et al., "Imagination-Augmented Agents for Deep
/// Reinforcement Learning" (2017), as implemented in gym-sokoban 0.0.6.
const SHAPES: [[u8; 3]; 5] = [
    [0b000, 0b111, 0b000],
    [0b010, 0b010, 0b010],
    [0b000, 0b110, 0b010],
    [0b000, 0b110, 0b110],
    [0b000, 0b011, 0b010],
];
const TURN_PERCENT: usize = 35;

/// Digs floor into solid rock; returns for each cell whether it is floor.
fn dig(rows: usize, columns: usize, draws: &mut Draws) -> Vec<bool> {
    let mut floor = vec![false; rows * columns];
    let mut at = (1 + draws.below(rows - 2), 1 + draws.below(columns - 2));
    let mut direction = Direction::ALL[draws.below(4)];
    for _ in 0..17 * (rows + columns) / 10 {
        if draws.percent(TURN_PERCENT) {
            direction = Direction::ALL[draws.below(4)];
        }
        at = match direction {
            Direction::Up => ((at.0 - 1).max(1), at.1),
            Direction::Down => ((at.0 + 1).min(rows - 2), at.1),
            Direction::Left => (at.0, (at.1 - 1).max(1)),
            Direction::Right => (at.0, (at.1 + 1).min(columns - 2)),
        };
        let shape = SHAPES[draws.below(SHAPES.len())];
        for (down, bits) in shape.into_iter().enumerate() {
            for right in (0..3).filter(|right| bits & (0b100 >> right) != 0) {
                let (row, column) = (at.0 + down - 1, at.1 + right - 1);
                let inside = (1..rows - 1).contains(&row) && (1..columns - 1).contains(&column);
                floor[row * columns + column] |= inside;
            }
        }
    }
    floor
}

#[cfg(test)]
mod tests {
    use super::super::room::BOXES_MAX;
    use super::*;

    #[test]
    fn what_leads_to_a_state_and_what_it_leads_to_are_each_others_reverse() {
        for seed in 0..60_u64 {
            let boxes = 1 + seed as usize % BOXES_MAX;
            let kind = Kind {
                rows: 6 + seed as usize % 3,
                columns: 7,
                boxes,
                actions: 12,
            };
            let mut draws = Draws::new("test", &[&seed.to_le_bytes()]);
            let (room, mut state) = draw(kind, &mut draws);
            assert_eq!(room.placed(&state), 0);
            assert_eq!(Room::read(&room.drawn(&state)).1, state);
            for _ in 0..200 {
                for before in room.before(&state) {
                    let mut next = Direction::ALL
                        .map(|action| room.after(&before, action))
                        .into_iter();
                    assert!(
                        next.any(|next| next == Some(state)),
                        "{}",
                        room.drawn(&before)
                    );
                }
                if let Some(next) = room.after(&state, Direction::ALL[draws.below(4)]) {
                    assert!(room.before(&next).any(|before| before == state));
                    state = next;
                }
            }
        }
    }
}
