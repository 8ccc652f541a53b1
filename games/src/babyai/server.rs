//! BabyAI's routes.

use agentgym_envs::server::http::Method;
use serde_json::{Value, json};

use crate::babyai::BabyaiGame;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::{Answer, Asked, HttpRefusal, Route, Routes, finished};
use agentgym_envs::server::sessions::{Sessions, Table};
use agentgym_envs::server::validation::{reset, step};
use agentgym_envs::task_index::TaskIndex;

pub(crate) struct Babyai {
    sessions: Sessions<Play>,
}

#[derive(Default)]
struct Play {
    /// `None` before the first reset.
    game: Option<BabyaiGame>,
    /// A client tried to close the session before its first reset, so the original never closes it.
    stuck: bool,
}

/// Formats numbers like the original: 0 without a decimal point.
fn number(value: f64) -> Value {
    if value == 0.0 { json!(0) } else { json!(value) }
}

impl Babyai {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        Self {
            sessions: Sessions::new(options),
        }
    }

    fn reset(&self, asked: &Asked<'_>) -> Answer {
        let (id, item) = reset(&asked.fields()?, "id", "data_idx")?;
        Ok(self
            .sessions
            .answer(&id, |play| match BabyaiGame::start(&item) {
                Ok(game) => {
                    let last = play.game.insert(game).last();
                    json!({
                        "observation": last.observation,
                        "reward": number(last.reward),
                        "score": number(last.score),
                        "deleted": false,
                        "done": last.done,
                    })
                }
                Err(text) => json!({ "error": text }),
            }))
    }

    fn step(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let (id, action) = step(&fields, "id")?;
        Ok(self.sessions.answer(&id, |play| match &mut play.game {
            None => json!({"error": id.to_string()}),
            Some(game) if game.last().done => finished(&id),
            Some(game) => {
                let last = game.step(action);
                json!({
                    "observation": last.observation,
                    "reward": number(last.reward),
                    "score": number(last.score),
                    "done": last.done,
                })
            }
        }))
    }

    fn observation(&self, asked: &Asked<'_>) -> Answer {
        let id = asked.query_integer("id")?;
        Ok(self.sessions.answer(&id, |play| match &play.game {
            None => json!({
                "observation": "Environment not initialized",
                "reward": 0,
                "score": 0,
                "done": false,
                "deleted": false,
            }),
            Some(game) if game.last().done => finished(&id),
            Some(game) => {
                let last = game.last();
                json!({
                    "observation": game.shown(),
                    "reward": number(last.reward),
                    "score": number(last.score),
                    "done": last.done,
                    "deleted": false,
                })
            }
        }))
    }

    /// Pictures are not supported; errors about the session's state are reported as usual.
    fn render(&self, asked: &Asked<'_>) -> Answer {
        let id = asked.body_integer("id")?;
        Ok(self.sessions.answer(&id, |play| match &play.game {
            None => json!({"error": id.to_string()}),
            Some(game) if game.last().done => finished(&id),
            Some(_) => json!({"error": "This server draws no pictures."}),
        }))
    }

    fn close(&self, asked: &Asked<'_>) -> Answer {
        let id = asked.body_integer("id")?;
        Ok(json!(self.closed(&id)))
    }

    fn closed(&self, id: &TaskIndex) -> bool {
        let may_close = self.sessions.with(id, |play| {
            play.stuck |= play.game.is_none();
            !play.stuck
        });
        may_close.unwrap_or(false) && self.sessions.close(id)
    }
}

impl Routes for Babyai {
    const ROUTES: &'static [Route<Self>] = &[
        ("/", Method::GET, |_, _| {
            Ok(json!("This is environment BabyAI."))
        }),
        ("/create", Method::POST, |server, _| {
            let opened = server
                .sessions
                .create(|_| Play::default(), |id, _| json!({ "id": id }));
            opened.ok_or(HttpRefusal::Full)
        }),
        ("/reset", Method::POST, Self::reset),
        ("/step", Method::POST, Self::step),
        ("/close", Method::POST, Self::close),
        ("/render", Method::POST, Self::render),
        ("/observation", Method::GET, Self::observation),
    ];

    fn sessions(&self) -> &dyn Table {
        &self.sessions
    }
}
