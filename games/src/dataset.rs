//! Questions of a person's own file: each is answered by one reply, and a rule grades it.
//!
//! Nothing here draws anything: a row is a task, and the same reply always has the same grade.

mod grade;
mod rows;
mod server;
mod source;

pub(crate) use source::Source;
