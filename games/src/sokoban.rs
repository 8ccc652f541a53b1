//! Sokoban, with RAGEN's rewards and limits: push every box onto a target.

mod demonstration;
mod game;
mod generator;
mod room;
mod scene;
mod server;
mod source;
mod ways;

pub(crate) use source::Source;
