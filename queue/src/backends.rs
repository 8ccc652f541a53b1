//! The queue backends, one file each.

pub(crate) mod redis;
mod run;
pub(crate) mod sqlite;
