//! Sessions that each hold one game, text in and text out, with the answers that most of AgentGym's
//! servers give.

use serde_json::{Value, json};

use super::http::{Answer, Asked, Refusal, finished};
use super::options::ServerOptions;
use super::sessions::{Sessions, Table};
use super::validation::{reset, step};

/// What is to be seen after a turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) observation: String,
    pub(crate) reward: f64,
    pub(crate) done: bool,
}

impl Reply {
    fn told(&self) -> Value {
        json!({"observation": self.observation, "reward": self.reward, "done": self.done})
    }
}

/// A game in progress.
pub(crate) trait Game {
    /// What it is called before there is one.
    const NOUN: &'static str;

    /// The latest reply.
    fn last(&self) -> &Reply;

    /// Plays an action.
    fn play(&mut self, action: &str) -> &Reply;
}

/// The sessions of a server; no game before the first reset.
pub(crate) struct Games<G>(Sessions<Option<G>>);

impl<G: Game + Send> Games<G> {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        Self(Sessions::new(options))
    }

    pub(crate) fn table(&self) -> &dyn Table {
        &self.0
    }

    pub(crate) fn create(&self) -> Answer {
        let opened = self.0.create(|_| None, |id, _| json!({ "id": id }));
        opened.ok_or(Refusal::Full)
    }

    /// `start` makes the game of an item.
    pub(crate) fn reset(&self, asked: &Asked<'_>, start: impl FnOnce(&str) -> G) -> Answer {
        let (id, item) = reset(&asked.fields()?, "id", "data_idx")?;
        Ok(self.0.answer(&id, |game| {
            let started = start(&item.to_string());
            game.insert(started).last().told()
        }))
    }

    pub(crate) fn step(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let (id, action) = step(&fields, "id")?;
        Ok(self.0.answer(&id, |game| match game {
            None => none::<G>(),
            Some(game) if game.last().done => finished(&id),
            Some(game) => game.play(action).told(),
        }))
    }

    pub(crate) fn observation(&self, asked: &Asked<'_>) -> Answer {
        let id = asked.query_integer("id")?;
        Ok(self.0.answer(&id, |game| match game {
            None => none::<G>(),
            Some(game) => game.last().told(),
        }))
    }

    pub(crate) fn close(&self, asked: &Asked<'_>) -> Answer {
        Ok(json!(self.0.close(&asked.body_integer("id")?)))
    }
}

fn none<G: Game>() -> Value {
    json!({"error": format!("There is no {} before the first reset.", G::NOUN)})
}
