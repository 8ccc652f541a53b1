//! The toolbox's routes: those of most of AgentGym's servers. An action is a call in JSON.

use std::ops::RangeInclusive;

use axum::http::Method;
use serde_json::{Value, json};

use super::game::{Reply, Toolbox};
use crate::server::http::{Answer, Asked, Refusal, Route, Routes, finished};
use crate::server::options::ServerOptions;
use crate::server::sessions::{Sessions, Table};
use crate::server::validation::{reset, step};

pub(super) struct ToolboxServer {
    seed: u64,
    terms: RangeInclusive<u32>,
    /// `None` before the first reset.
    sessions: Sessions<Option<Toolbox>>,
}

impl ToolboxServer {
    pub(super) fn new(seed: u64, terms: RangeInclusive<u32>, options: &ServerOptions) -> Self {
        Self {
            seed,
            terms,
            sessions: Sessions::new(options),
        }
    }

    fn reset(&self, asked: &Asked<'_>) -> Answer {
        let (id, item) = reset(&asked.fields()?, "id", "data_idx")?;
        Ok(self.sessions.answer(&id, |game| {
            let started = Toolbox::start(self.seed, &self.terms, &item.to_string());
            told(game.insert(started).last())
        }))
    }

    fn step(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let (id, action) = step(&fields, "id")?;
        Ok(self.sessions.answer(&id, |game| match game {
            None => json!({"error": NO_TASK}),
            Some(game) if game.last().done => finished(&id),
            Some(game) => told(game.step(action)),
        }))
    }

    fn observation(&self, asked: &Asked<'_>) -> Answer {
        let id = asked.query_integer("id")?;
        Ok(self.sessions.answer(&id, |game| match game {
            None => json!({"error": NO_TASK}),
            Some(game) => told(game.last()),
        }))
    }
}

const NO_TASK: &str = "There is no task before the first reset.";

fn told(reply: &Reply) -> Value {
    json!({"observation": reply.observation, "reward": reply.reward, "done": reply.done})
}

impl Routes for ToolboxServer {
    const ROUTES: &'static [Route<Self>] = &[
        ("/", Method::GET, |_, _| {
            Ok(json!("This is environment Toolbox."))
        }),
        ("/create", Method::POST, |server, _| {
            let opened = server
                .sessions
                .create(|_| None, |id, _| json!({ "id": id }));
            opened.ok_or(Refusal::Full)
        }),
        ("/reset", Method::POST, Self::reset),
        ("/step", Method::POST, Self::step),
        ("/close", Method::POST, |server, asked| {
            Ok(json!(server.sessions.close(&asked.body_integer("id")?)))
        }),
        ("/observation", Method::GET, Self::observation),
    ];

    fn sessions(&self) -> &dyn Table {
        &self.sessions
    }
}
