//! TextCraft's routes and their answers.

use std::sync::Arc;

use agentgym_envs::server::http::Method;
use serde_json::{Value, json};

use crate::textcraft::{Game, Tasks};
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::{Answer, Asked, HttpRefusal, Route, Routes};
use agentgym_envs::server::sessions::{Sessions, Table};
use agentgym_envs::server::validation::{Problems, integer, integer_or_null, step, text_or_null};
use agentgym_envs::task_index::TaskIndex;

pub(crate) struct Textcraft {
    tasks: Arc<Tasks>,
    sessions: Sessions<Play>,
}

/// A game and its latest reply.
struct Play {
    game: Game,
    observation: String,
    reward: u8,
    done: bool,
}

impl Play {
    fn new(tasks: &Tasks, index: &TaskIndex) -> Self {
        let world = tasks.world_at(index);
        Self {
            game: world.game(),
            observation: world.observation(),
            reward: 0,
            done: false,
        }
    }

    /// Runs a command; `Err` is the text of an error reply, and nothing has changed.
    fn step(&mut self, action: &str) -> Result<(), String> {
        let reply = self.game.step(action)?;
        self.observation = reply.observation;
        self.reward = reply.reward;
        self.done = reply.done;
        Ok(())
    }
}

impl Textcraft {
    pub(crate) fn new(tasks: Arc<Tasks>, options: &ServerOptions) -> Self {
        Self {
            tasks,
            sessions: Sessions::new(options),
        }
    }

    /// Opens a session on the task whose index is the new session's id, as the original does.
    fn create(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let mut problems = Problems::default();
        text_or_null(&fields, "commands", &mut problems);
        text_or_null(&fields, "goal", &mut problems);
        problems.none()?;
        let play = |id| {
            let index = TaskIndex::from(i64::try_from(id).unwrap_or(i64::MAX));
            Play::new(&self.tasks, &index)
        };
        let view = |id, play: &Play| json!({"id": id, "observation": play.observation, "done": false, "reward": 0});
        self.sessions.create(play, view).ok_or(HttpRefusal::Full)
    }

    fn reset(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let mut problems = Problems::default();
        let id = integer(&fields, "id", &mut problems);
        let task = integer_or_null(&fields, "data_idx", 0, &mut problems);
        let id = problems.some(id)?;
        Ok(self.sessions.answer(&id, |play| match task.flatten() {
            None => json!({"error": "unsupported operand type(s) for %: 'NoneType' and 'int'"}),
            Some(task) => {
                *play = Play::new(&self.tasks, &task);
                json!({
                    "id": id.as_u64(),
                    "observation": play.observation,
                    "done": play.done,
                    "reward": play.reward,
                })
            }
        }))
    }

    fn step(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let (id, action) = step(&fields, "id")?;
        Ok(self.sessions.answer(&id, |play| match play.step(action) {
            Ok(()) => json!({
                "observation": play.observation,
                "reward": play.reward,
                "done": play.done,
            }),
            Err(text) => json!({"error": text}),
        }))
    }

    fn queried(&self, asked: &Asked<'_>, view: impl FnOnce(&Play) -> Value) -> Answer {
        let id = asked.query_integer("id")?;
        Ok(self.sessions.answer(&id, |play| view(play)))
    }

    /// The original has this path, but not the function that it calls.
    fn absent(&self, asked: &Asked<'_>) -> Answer {
        asked.query_integer("id")?;
        Err(HttpRefusal::Failed)
    }
}

impl Routes for Textcraft {
    const ROUTES: &'static [Route<Self>] = &[
        ("/", Method::GET, |_, _| {
            Ok(json!("This is environment TextCraft."))
        }),
        ("/create", Method::POST, Self::create),
        ("/reset", Method::POST, Self::reset),
        ("/step", Method::POST, Self::step),
        ("/close", Method::POST, |server, asked| {
            Ok(json!(server.sessions.close(&asked.body_integer("id")?)))
        }),
        ("/observation", Method::GET, |server, asked| {
            server.queried(asked, |play| json!(play.observation))
        }),
        ("/detail", Method::GET, |server, asked| {
            server.queried(asked, |play| {
                json!({
                    "observation": play.observation,
                    "done": play.done,
                    "reward": play.reward,
                    "deleted": false,
                })
            })
        }),
        ("/commands", Method::GET, Self::absent),
        ("/goal", Method::GET, Self::absent),
    ];

    fn sessions(&self) -> &dyn Table {
        &self.sessions
    }
}
