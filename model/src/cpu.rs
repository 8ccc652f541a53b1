//! A network on the CPU: forward, backward, and the optimizer.

pub(crate) mod adamw;
pub(crate) mod backward;
pub(crate) mod gradients;
mod heads;
pub(crate) mod layer;
pub(crate) mod network;
pub(crate) mod tape;
