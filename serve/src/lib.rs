//! A policy behind OpenAI's HTTP API and Anthropic's messages, for people and programs that want to talk
//! to it or judge it ([`start`]), and the same API for agents whose answers another program samples
//! ([`gateway()`]).
//!
//! One thread owns the engine; requests join and leave its running batch. What a client is told of a
//! token is what the rest of this project computes: ids as they were sampled, and log-probs whose bits
//! are those of scoring. This crate knows the model and HTTP, no run and no store.

mod answer;
mod ask;
mod calls;
mod conversation;
mod fields;
mod gateway;
mod messages;
mod owner;
mod refusal;
mod reply;
mod responses;
mod server;
mod spelling;
mod wire;

pub use gateway::{AgentAnswer, AgentRequest, Gateway, Sampler, gateway};
pub use refusal::Refusal;
pub use reply::ServedPolicy;
pub use server::{PolicyServer, ServeOptions, start};
