//! ScienceWorld: AgentGym's routes over the simulator of PyPI's scienceworld, a Java program.

mod gateway;
mod server;
mod simulator;
mod source;

pub(crate) use source::Source;

#[cfg(test)]
pub(crate) use gateway::Reply;
#[cfg(test)]
mod tests;
