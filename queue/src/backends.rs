//! Where jobs wait: one file to a backend.

pub(crate) mod redis;
mod run;
pub(crate) mod sqlite;
