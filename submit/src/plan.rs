//! What `plan` says of a run before it starts: its screen, and the counts, sizes and memory on it.

pub(crate) mod advice;
pub(crate) mod check;
pub(crate) mod device;
pub mod document;
pub mod measured;
pub(crate) mod memory;
pub mod model_size;
pub(crate) mod moves;
mod parts;
mod sizes;
mod texts;
pub(crate) mod trial;
pub mod view;
