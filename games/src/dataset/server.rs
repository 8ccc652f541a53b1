//! The routes, those of most of AgentGym's servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::rows::Row;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::games::{Games, Reply, TextGame};
use agentgym_envs::server::http::{Answer, Asked, Method, Route, Routes};
use agentgym_envs::server::sessions::Table;
use agentgym_envs::server::validation::reset;

/// The rows of a file.
#[derive(Debug)]
pub(super) struct Questions {
    pub(super) rows: BTreeMap<i64, Row>,
}

pub(super) struct DatasetServer {
    questions: Arc<Questions>,
    games: Games<Question>,
}

/// A question that waits for its reply.
pub(super) struct Question {
    questions: Arc<Questions>,
    item: i64,
    last: Reply,
}

impl Question {
    pub(super) fn ask(questions: &Arc<Questions>, item: i64) -> Option<Self> {
        let row = questions.rows.get(&item)?;
        Some(Self {
            questions: Arc::clone(questions),
            item,
            last: Reply {
                observation: row.prompt.clone(),
                reward: 0.0,
                done: false,
            },
        })
    }
}

impl TextGame for Question {
    const NOUN: &'static str = "question";

    fn last(&self) -> &Reply {
        &self.last
    }

    fn play(&mut self, action: &str) -> &Reply {
        let row = &self.questions.rows[&self.item];
        let reward = row.key.grade(action);
        self.last = Reply {
            observation: match reward {
                1.0 => "That is right.".to_owned(),
                0.0 => "That is wrong.".to_owned(),
                part => format!("That is right by {part:.3}."),
            },
            reward,
            done: true,
        };
        &self.last
    }
}

impl DatasetServer {
    pub(super) fn new(questions: Arc<Questions>, options: &ServerOptions) -> Self {
        Self {
            questions,
            games: Games::new(options),
        }
    }

    fn reset(&self, asked: &Asked<'_>) -> Answer {
        let (_, item) = reset(&asked.fields()?, "id", "data_idx")?;
        let number = item.to_string().parse().ok();
        match number.and_then(|number| Question::ask(&self.questions, number)) {
            Some(question) => self.games.reset(asked, |_| question),
            None => Ok(json!({"error": format!("The file has no row {item}.")})),
        }
    }
}

impl Routes for DatasetServer {
    const ROUTES: &'static [Route<Self>] = &[
        ("/", Method::GET, |_, _| {
            Ok(json!("This is environment dataset."))
        }),
        ("/create", Method::POST, |server, _| server.games.create()),
        ("/reset", Method::POST, Self::reset),
        ("/step", Method::POST, |server, asked| {
            server.games.step(asked)
        }),
        ("/close", Method::POST, |server, asked| {
            server.games.close(asked)
        }),
        ("/observation", Method::GET, |server, asked| {
            server.games.observation(asked)
        }),
    ];

    fn sessions(&self) -> &dyn Table {
        self.games.table()
    }
}
