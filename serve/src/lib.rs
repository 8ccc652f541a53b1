//! A policy behind OpenAI's HTTP API and Anthropic's messages, for people and programs that want to talk to it or judge it.
//!
//! One thread owns the engine; requests join and leave its running batch. What a client is told of a
//! token is what the rest of this project computes: ids as they were sampled, and log-probs whose bits
//! are those of scoring. This crate knows the model and HTTP, no run and no store.

mod answer;
mod ask;
mod calls;
mod conversation;
mod fields;
mod messages;
mod owner;
mod refusal;
mod reply;
mod responses;
mod server;
mod spelling;

pub use reply::ServedPolicy;
pub use server::{PolicyServer, ServeOptions, start};
