//! SearchQA's routes. Unlike other servers it fails with status 500, even for unknown sessions.

use std::sync::Arc;

use agentgym_envs::server::http::Method;
use serde_json::json;

use crate::searchqa::{Library, Question};
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::{Answer, Asked, HttpRefusal, Route, Routes};
use agentgym_envs::server::sessions::{Sessions, Table};
use agentgym_envs::server::validation::{Problems, integer, integer_nullable, step};
use agentgym_envs::task_index::TaskIndex;

pub(crate) struct Searchqa {
    library: Arc<Library>,
    /// The id of the question that a session plays.
    sessions: Sessions<i64>,
}

impl Searchqa {
    pub(crate) fn new(library: Arc<Library>, options: &ServerOptions) -> Self {
        Self {
            library,
            sessions: Sessions::new(options),
        }
    }

    fn question(&self, id: Option<&TaskIndex>) -> Result<(i64, &Question), HttpRefusal> {
        let id = id.ok_or(HttpRefusal::Failed)?;
        let id: i64 = id.to_string().parse().map_err(|_| HttpRefusal::Failed)?;
        let question = self.library.question(id).ok_or(HttpRefusal::Failed)?;
        Ok((id, question))
    }

    fn create(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let mut problems = Problems::default();
        let item = integer(&fields, "id", &mut problems);
        let item = problems.some(item)?;
        let (item, _) = self.question(Some(&item))?;
        let opened = self.sessions.create(|_| item, |id, _| json!(id));
        opened.ok_or(HttpRefusal::Full)
    }

    fn reset(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let mut problems = Problems::default();
        let id = integer(&fields, "env_idx", &mut problems);
        let item = integer_nullable(&fields, "id", &mut problems);
        let (id, item) = problems.some(id.zip(item))?;
        let (item, question) = self.question(item.as_ref())?;
        let found = self.sessions.with(&id, |played| *played = item);
        found.ok_or(HttpRefusal::Failed)?;
        Ok(json!(self.library.prompt(question)))
    }

    fn step(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let (id, action) = step(&fields, "env_idx")?;
        let item = self.sessions.with(&id, |played| *played);
        let question = self.library.question(item.ok_or(HttpRefusal::Failed)?);
        let question = question.ok_or(HttpRefusal::Failed)?;
        let reply = self.library.step(question, action).map_err(|error| {
            tracing::error!(%error, "a search failed");
            HttpRefusal::Failed
        })?;
        Ok(json!({
            "observation": reply.observation,
            "reward": reply.reward,
            "done": reply.done,
            "info": null,
        }))
    }

    fn observation(&self, asked: &Asked<'_>) -> Answer {
        let id = asked.query_integer("env_idx")?;
        let item = self.sessions.with(&id, |played| *played);
        let question = self.library.question(item.ok_or(HttpRefusal::Failed)?);
        let question = question.ok_or(HttpRefusal::Failed)?;
        Ok(json!(self.library.prompt(question)))
    }
}

impl Routes for Searchqa {
    const ROUTES: &'static [Route<Self>] = &[
        ("/", Method::GET, |_, _| Ok(json!("ok"))),
        ("/list_envs", Method::GET, |server, _| {
            Ok(json!(server.sessions.ids()))
        }),
        ("/create", Method::POST, Self::create),
        ("/reset", Method::POST, Self::reset),
        ("/step", Method::POST, Self::step),
        ("/close", Method::POST, |server, asked| {
            Ok(json!(
                server.sessions.close(&asked.body_integer("env_idx")?)
            ))
        }),
        ("/observation", Method::GET, Self::observation),
    ];

    const SLOW: bool = true;

    fn sessions(&self) -> &dyn Table {
        &self.sessions
    }
}
