//! A level: its name, its world and its mission.

use super::grid::Grid;
use super::mission::Goal;

/// Names, in the order of the item ids.
pub const LEVELS: [&str; 40] = [
    "GoToRedBallGrey",
    "GoToRedBall",
    "GoToRedBallNoDists",
    "GoToObjS6",
    "GoToLocalS8N7",
    "GoToObjMazeS7",
    "GoToImpUnlock",
    "GoToSeqS5R2",
    "GoToRedBlueBall",
    "GoToDoor",
    "GoToObjDoor",
    "Open",
    "OpenRedDoor",
    "OpenDoorLoc",
    "OpenRedBlueDoorsDebug",
    "OpenDoorsOrderN4Debug",
    "Pickup",
    "UnblockPickup",
    "PickupLoc",
    "PickupDistDebug",
    "PickupAbove",
    "PutNextLocalS6N4",
    "PutNextS7N4Carrying",
    "Unlock",
    "UnlockLocalDist",
    "KeyInBox",
    "UnlockPickupDist",
    "BlockedUnlockPickup",
    "UnlockToUnlock",
    "ActionObjDoor",
    "FindObjS7",
    "KeyCorridorS6R3",
    "OneRoomS20",
    "MoveTwoAcrossS8N9",
    "SynthS5R2",
    "SynthLoc",
    "SynthSeq",
    "MiniBossLevel",
    "BossLevel",
    "BossLevelNoUnlock",
];

/// A world and its mission.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Level {
    pub(crate) grid: Grid,
    pub(crate) goal: Goal,
    /// Limit of primitive moves; the reward depends on it.
    pub(crate) moves_max: u32,
}

impl Level {
    /// What reaching the goal at this move is worth.
    pub(crate) fn reward(&self, moves: u32) -> f64 {
        1.0 - 0.9 * (f64::from(moves) / f64::from(self.moves_max))
    }
}
