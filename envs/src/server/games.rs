//! Sessions that each hold one game, text in and text out, with the answers that most of AgentGym's
//! servers give.

use serde_json::{Value, json};

use super::http::{Answer, Asked, HttpRefusal, finished};
use super::options::ServerOptions;
use super::sessions::{Sessions, Table};
use super::validation::{reset, step};

/// What is to be seen after a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Text for the model.
    pub observation: String,
    /// Of this turn, or in all, as the spec says.
    pub reward: f64,
    /// Whether the game is over.
    pub done: bool,
}

impl Reply {
    fn told(&self) -> Value {
        json!({"observation": self.observation, "reward": self.reward, "done": self.done})
    }
}

/// A game in progress.
pub trait TextGame {
    /// What it is called before there is one.
    const NOUN: &'static str;

    /// The latest reply.
    fn last(&self) -> &Reply;

    /// Plays an action.
    fn play(&mut self, action: &str) -> &Reply;
}

/// The sessions of a server; no game before the first reset.
pub struct Games<G>(Sessions<Option<G>>);

impl<G: TextGame + Send> Games<G> {
    /// No session yet.
    pub fn new(options: &ServerOptions) -> Self {
        Self(Sessions::new(options))
    }

    /// The open sessions.
    pub fn table(&self) -> &dyn Table {
        &self.0
    }

    /// Opens a session.
    pub fn create(&self) -> Answer {
        let opened = self.0.create(|_| None, |id, _| json!({ "id": id }));
        opened.ok_or(HttpRefusal::Full)
    }

    /// `start` makes the game of an item.
    pub fn reset(&self, asked: &Asked<'_>, start: impl FnOnce(&str) -> G) -> Answer {
        let (id, item) = reset(&asked.fields()?, "id", "data_idx")?;
        Ok(self.0.answer(&id, |game| {
            let started = start(&item.to_string());
            game.insert(started).last().told()
        }))
    }

    /// Plays an action.
    pub fn step(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let (id, action) = step(&fields, "id")?;
        Ok(self.0.answer(&id, |game| match game {
            None => none::<G>(),
            Some(game) if game.last().done => finished(&id),
            Some(game) => game.play(action).told(),
        }))
    }

    /// The latest reply again.
    pub fn observation(&self, asked: &Asked<'_>) -> Answer {
        let id = asked.query_integer("id")?;
        Ok(self.0.answer(&id, |game| match game {
            None => none::<G>(),
            Some(game) => game.last().told(),
        }))
    }

    /// Closes a session.
    pub fn close(&self, asked: &Asked<'_>) -> Answer {
        Ok(json!(self.0.close(&asked.body_integer("id")?)))
    }
}

fn none<G: TextGame>() -> Value {
    json!({"error": format!("There is no {} before the first reset.", G::NOUN)})
}
