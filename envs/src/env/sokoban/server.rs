//! Sokoban's routes. RAGEN has no server; the routes follow most of AgentGym's.

use axum::http::Method;
use serde_json::{Value, json};

use super::game::{Reply, Sokoban};
use super::generator::Kind;
use super::room::Direction;
use crate::server::http::{Answer, Asked, Refusal, Route, Routes, finished};
use crate::server::options::ServerOptions;
use crate::server::sessions::{Sessions, Table};
use crate::server::validation::{reset, step};

pub(super) struct SokobanServer {
    kind: Kind,
    seed: u64,
    /// `None` before the first reset.
    sessions: Sessions<Option<Sokoban>>,
}

impl SokobanServer {
    pub(super) fn new(kind: Kind, seed: u64, options: &ServerOptions) -> Self {
        Self {
            kind,
            seed,
            sessions: Sessions::new(options),
        }
    }

    fn reset(&self, asked: &Asked<'_>) -> Answer {
        let (id, item) = reset(&asked.fields()?, "id", "data_idx")?;
        Ok(self.sessions.answer(&id, |game| {
            let started = Sokoban::start(self.kind, self.seed, &item.to_string());
            told(game.insert(started).last())
        }))
    }

    fn step(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let (id, action) = step(&fields, "id")?;
        Ok(self.sessions.answer(&id, |game| match game {
            None => json!({"error": NO_GAME}),
            Some(game) if game.last().done => finished(&id),
            Some(game) => told(game.step(action)),
        }))
    }

    fn observation(&self, asked: &Asked<'_>) -> Answer {
        let id = asked.query_integer("id")?;
        Ok(self.sessions.answer(&id, |game| match game {
            None => json!({"error": NO_GAME}),
            Some(game) => told(game.last()),
        }))
    }
}

const NO_GAME: &str = "There is no game before the first reset.";

fn told(reply: &Reply) -> Value {
    json!({"observation": reply.observation, "reward": reply.reward, "done": reply.done})
}

impl Routes for SokobanServer {
    const ROUTES: &'static [Route<Self>] = &[
        ("/", Method::GET, |_, _| {
            Ok(json!("This is environment Sokoban."))
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
        ("/available_actions", Method::GET, |_, _| {
            Ok(json!(Direction::ALL.map(Direction::name)))
        }),
    ];

    fn sessions(&self) -> &dyn Table {
        &self.sessions
    }
}
