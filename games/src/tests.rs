//! What the games' servers, solvers and addresses do, beside the tests of each game.

mod addresses;
mod damaged;
mod originals;
mod reach;
pub(crate) mod servers;
