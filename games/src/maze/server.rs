//! The maze's routes. One process of the original serves several games under prefixes.

use agentgym_envs::server::http::Method;
use serde_json::{Value, json};

use crate::maze::game::{Maze, MazeReply, NoGame};
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::{Answer, Asked, HttpRefusal, Route, Routes, finished};
use agentgym_envs::server::sessions::{Sessions, Table};
use agentgym_envs::server::validation::{reset, step};

pub(crate) struct MazeServer {
    sessions: Sessions<Option<Play>>,
}

/// A game and its latest reply; absent before the first reset.
struct Play {
    maze: Maze,
    last: MazeReply,
}

impl MazeServer {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        Self {
            sessions: Sessions::new(options),
        }
    }

    fn reset(&self, asked: &Asked<'_>) -> Answer {
        let (id, game) = reset(&asked.fields()?, "id", "game")?;
        let number = game.to_string().parse().unwrap_or(i64::MAX);
        Ok(self.sessions.answer(&id, |play| match Maze::start(number) {
            Ok(maze) => {
                let observation = maze.observation();
                let last = MazeReply {
                    observation: observation.clone(),
                    reward: 0.0,
                    done: false,
                };
                *play = Some(Play { maze, last });
                json!({ "observation": observation })
            }
            // The original asserts, without a message, that a game does not start at the goal.
            Err(NoGame::OnGoal) => json!({"error": ""}),
            Err(NoGame::Unknown) if game.negative => {
                json!({"error": "list index out of range"})
            }
            Err(NoGame::Unknown) => json!({"error": format!("The game {game} is not valid.")}),
        }))
    }

    fn step(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let (id, action) = step(&fields, "id")?;
        Ok(self.sessions.answer(&id, |play| match play {
            None => json!({"error": id.to_string()}),
            Some(play) if play.last.done => finished(&id),
            Some(play) => {
                play.last = play.maze.step(action);
                shown(&play.last)
            }
        }))
    }

    fn queried(
        &self,
        asked: &Asked<'_>,
        before: &str,
        view: impl FnOnce(&MazeReply) -> Value,
    ) -> Answer {
        let id = asked.query_integer("id")?;
        Ok(self.sessions.answer(&id, |play| match play {
            None => json!({ "error": before }),
            Some(play) if play.last.done => finished(&id),
            Some(play) => view(&play.last),
        }))
    }
}

/// The original writes a reward of 0 without a decimal point.
fn number(reward: f64) -> Value {
    if reward == 0.0 {
        json!(0)
    } else {
        json!(reward)
    }
}

fn shown(reply: &MazeReply) -> Value {
    json!({"observation": reply.observation, "reward": number(reply.reward), "done": reply.done})
}

fn detailed(reply: &MazeReply) -> Value {
    let mut detail = shown(reply);
    detail["maze_name"] = json!("double_t_maze");
    detail["deleted"] = json!(false);
    detail
}

impl Routes for MazeServer {
    const ROUTES: &'static [Route<Self>] = &[
        ("/", Method::GET, |_, _| {
            Ok(json!("This is environment LMRL-Gym."))
        }),
        ("/maze/create", Method::POST, |server, _| {
            let opened = server
                .sessions
                .create(|_| None, |id, _| json!({ "id": id }));
            opened.ok_or(HttpRefusal::Full)
        }),
        ("/maze/reset", Method::POST, Self::reset),
        ("/maze/step", Method::POST, Self::step),
        ("/maze/observation", Method::GET, |server, asked| {
            server.queried(asked, "'observation'", |last| json!(last.observation))
        }),
        ("/maze/available_actions", Method::GET, |_, _| {
            Ok(json!(Maze::actions()))
        }),
        ("/maze/detail", Method::GET, |server, asked| {
            server.queried(asked, "'goal_position'", detailed)
        }),
    ];

    fn sessions(&self) -> &dyn Table {
        &self.sessions
    }
}
