//! Wordle's routes.

use std::sync::Arc;

use agentgym_envs::server::http::Method;
use serde_json::{Value, json};

use crate::wordle::game::{INVALID, OPENING, Wordle, WordleReply, Words};
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::{Answer, Asked, HttpRefusal, Route, Routes, finished};
use agentgym_envs::server::sessions::{Sessions, Table};
use agentgym_envs::server::validation::{reset, step};

pub(crate) struct WordleServer {
    words: Arc<Words>,
    seed: u64,
    sessions: Sessions<Play>,
}

/// A game, its latest reply, and the sum of rewards.
struct Play {
    game: Wordle,
    /// As it was given with the latest reset.
    seed: Value,
    last: WordleReply,
    total: f64,
}

impl Play {
    fn new(server: &WordleServer, seed: &str) -> Self {
        Self {
            game: Wordle::start(&server.words, server.seed, seed),
            seed: Value::Null,
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
    pub(crate) fn new(words: Words, seed: u64, options: &ServerOptions) -> Self {
        Self {
            words: Arc::new(words),
            seed,
            sessions: Sessions::new(options),
        }
    }

    fn reset(&self, asked: &Asked<'_>) -> Answer {
        let (id, seed) = reset(&asked.fields()?, "id", "seed")?;
        Ok(self.sessions.answer(&id, |play| {
            *play = Play::new(self, &seed.to_string());
            play.seed = seed.as_u64().map_or(json!(seed.to_string()), Value::from);
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
            // A reward without a decimal point, but for what is not a word.
            let reward = match last.observation == INVALID {
                true => json!(last.reward),
                false => json!(last.reward as u8),
            };
            json!({"observation": last.observation, "reward": reward, "done": last.done})
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
            let play = |id| Play::new(server, &format!("session {id}"));
            let opened = server.sessions.create(play, |id, _| json!({ "id": id }));
            opened.ok_or(HttpRefusal::Full)
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
                    "reward": play.total as u8,
                    "done": play.last.done,
                    "seed": play.seed,
                    "deleted": false,
                })
            })
        }),
    ];

    fn sessions(&self) -> &dyn Table {
        &self.sessions
    }
}
