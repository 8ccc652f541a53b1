//! Wordle's routes.

use axum::http::Method;
use serde_json::{Value, json};

use crate::env::wordle::game::{OPENING, Wordle, WordleReply};
use crate::server::http::{Answer, Asked, Refusal, Route, Routes, finished};
use crate::server::options::ServerOptions;
use crate::server::sessions::{Sessions, Table};
use crate::server::validation::{reset, step};

pub(crate) struct WordleServer {
    seed: u64,
    sessions: Sessions<Play>,
}

/// A game, its latest reply, and the sum of rewards.
struct Play {
    game: Wordle,
    last: WordleReply,
    total: f64,
}

impl Play {
    fn new(server_seed: u64, seed: &str) -> Self {
        Self {
            game: Wordle::start(server_seed, seed),
            last: WordleReply {
                observation: OPENING.to_owned(),
                reward: 0.0,
                done: false,
            },
            total: 0.0,
        }
    }
}

impl WordleServer {
    pub(crate) fn new(seed: u64, options: &ServerOptions) -> Self {
        Self {
            seed,
            sessions: Sessions::new(options),
        }
    }

    fn reset(&self, asked: &Asked<'_>) -> Answer {
        let (id, seed) = reset(&asked.fields()?, "id", "seed")?;
        Ok(self.sessions.answer(&id, |play| {
            *play = Play::new(self.seed, &seed.to_string());
            json!({"id": id.as_u64(), "observation": OPENING})
        }))
    }

    fn step(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let (id, action) = step(&fields, "id")?;
        Ok(self.sessions.answer(&id, |play| {
            if play.last.done {
                return finished(&id);
            }
            play.last = play.game.step(action);
            play.total += play.last.reward;
            let last = &play.last;
            json!({"observation": last.observation, "reward": last.reward, "done": last.done})
        }))
    }

    fn queried(&self, asked: &Asked<'_>, view: impl FnOnce(&Play) -> Value) -> Answer {
        let id = asked.query_integer("id")?;
        Ok(self.sessions.answer(&id, |play| match play.last.done {
            true => finished(&id),
            false => view(play),
        }))
    }
}

impl Routes for WordleServer {
    const ROUTES: &'static [Route<Self>] = &[
        ("/", Method::GET, |_, _| {
            Ok(json!("This is environment LMRL-Gym."))
        }),
        // A game can be played without a reset; the session number is its seed.
        ("/wordle/create", Method::POST, |server, _| {
            let play = |id| Play::new(server.seed, &format!("session {id}"));
            let opened = server.sessions.create(play, |id, _| json!({ "id": id }));
            opened.ok_or(Refusal::Full)
        }),
        ("/wordle/reset", Method::POST, Self::reset),
        ("/wordle/step", Method::POST, Self::step),
        ("/wordle/observation", Method::GET, |server, asked| {
            server.queried(asked, |play| json!(play.last.observation))
        }),
        ("/wordle/filtered_vocab", Method::GET, |server, asked| {
            server.queried(asked, |play| json!(play.game.left()))
        }),
        ("/wordle/detail", Method::GET, |server, asked| {
            server.queried(asked, |play| {
                json!({
                    "observation": play.last.observation,
                    "reward": play.total,
                    "done": play.last.done,
                })
            })
        }),
    ];

    fn sessions(&self) -> &dyn Table {
        &self.sessions
    }
}
