//! A store of numbers and a calculator, used by calls of tools: put under one key what comes of
//! the numbers under others.

mod demonstration;
mod game;
mod server;
mod source;

pub(crate) use source::Source;
