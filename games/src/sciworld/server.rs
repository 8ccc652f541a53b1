//! ScienceWorld's routes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use agentgym_envs::server::http::Method;
use serde_json::{Map, Value, json};

use super::gateway::{Argument, Reply};
use super::simulator::{Interface, Launch, Simulator};
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::{Answer, Asked, HttpRefusal, Route, Routes, finished};
use agentgym_envs::server::sessions::{Sessions, Table};
use agentgym_envs::server::validation::{reset, step};
use agentgym_envs::task_index::TaskIndex;

/// The tasks in the order of their ids. Growing plants, inclined planes and genetics are left out,
/// as AgentGym does.
const TASKS: [&str; 23] = [
    "boil",
    "melt",
    "freeze",
    "change-the-state-of-matter-of",
    "use-thermometer",
    "measure-melting-point-known-substance",
    "measure-melting-point-unknown-substance",
    "power-component",
    "power-component-renewable-vs-nonrenewable-energy",
    "test-conductivity",
    "test-conductivity-of-unknown-substances",
    "find-living-thing",
    "find-non-living-thing",
    "find-plant",
    "find-animal",
    "chemistry-mix",
    "chemistry-mix-paint-secondary-color",
    "chemistry-mix-paint-tertiary-color",
    "lifespan-longest-lived",
    "lifespan-shortest-lived",
    "lifespan-longest-lived-then-shortest-lived",
    "identify-life-stages-1",
    "identify-life-stages-2",
];

/// Heap that a world is counted with: some 11 MB after a few steps were seen.
const WORLD_MB: u64 = 16;

/// The library's limit: an episode ends after more counted moves.
const MOVES_MAX: i64 = 100;

pub(crate) struct Sciworld {
    launch: Launch,
    /// One for each place; a process that has ended gives its place to another one.
    simulators: Mutex<Vec<Arc<Simulator>>>,
    /// Tasks and their number of variations.
    variations: Vec<(&'static str, u64)>,
    sessions: Sessions<Play>,
    first_id: u64,
    /// Number of the next session: a lower one that is not open has been closed.
    next_id: AtomicU64,
}

struct Play {
    world: Interface,
    /// Absent before the first reset.
    shown: Option<Shown>,
}

/// What the latest reset and steps gave.
struct Shown {
    task: &'static str,
    variation: u64,
    description: String,
    observation: String,
    reward: i64,
    score: i64,
    done: bool,
}

impl Shown {
    /// As `/detail` lists it.
    fn detail(&self) -> Value {
        json!({
            "deleted": false,
            "done": self.done,
            "task_name": self.task,
            "var_num": self.variation,
            "task_description": self.description,
            "observation": self.observation,
            "reward": self.reward,
            "score": self.score,
        })
    }
}

/// The reply to a call during which the simulator has ended: the session's world is lost.
fn lost(_: String) -> HttpRefusal {
    HttpRefusal::Failed
}

fn text(reply: Reply) -> String {
    match reply {
        Reply::Text(text) => text,
        other => format!("{other:?}"),
    }
}

fn error(text: impl Into<String>) -> Value {
    json!({ "error": text.into() })
}

impl Sciworld {
    /// Starts the processes. `Err` says what is wrong and what to do.
    pub(crate) fn start(
        launch: Launch,
        processes: u64,
        options: &ServerOptions,
    ) -> Result<Self, String> {
        let simulators: Vec<Arc<Simulator>> = (0..processes)
            .map(|_| Simulator::start(&launch))
            .collect::<Result<_, _>>()?;
        let world = simulators[0].interface()?;
        let variations = TASKS.iter().map(|task| {
            let asked = world.call("getTaskMaxVariations", &[Argument::Text(task)])?;
            match asked {
                Reply::Whole(count @ 1..) => Ok((*task, count as u64)),
                other => Err(format!("the simulator has {other:?} variations of {task}")),
            }
        });
        // A world more than the heap holds would spoil all worlds of its process.
        let worlds_max = processes * (launch.memory_mb / WORLD_MB);
        let limits = ServerOptions {
            sessions_max: options.sessions_max.min(worlds_max as usize),
            ..options.clone()
        };
        Ok(Self {
            variations: variations.collect::<Result<_, _>>()?,
            launch,
            simulators: Mutex::new(simulators),
            sessions: Sessions::new(&limits),
            first_id: options.first_id,
            next_id: AtomicU64::new(options.first_id),
        })
    }

    /// A world in the process whose turn it is, which is started anew if it has ended.
    fn world(&self, number: u64) -> Result<Interface, String> {
        let mut simulators = self
            .simulators
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let place = (number % simulators.len() as u64) as usize;
        if !simulators[place].is_alive() {
            simulators[place] = Simulator::start(&self.launch)?;
        }
        simulators[place].interface()
    }

    fn create(&self) -> Answer {
        // The number is taken before the world is there, so a world is in the table or nowhere.
        let number = self.next_id.load(Ordering::Relaxed);
        let world = self.world(number).map_err(|why| {
            tracing::warn!(why, "no world");
            HttpRefusal::Failed
        })?;
        let play = Play { world, shown: None };
        let opened = self.sessions.create(|_| play, |id, _| id);
        let id = opened.ok_or(HttpRefusal::Full)?;
        self.next_id.fetch_max(id + 1, Ordering::Relaxed);
        Ok(json!({ "id": id }))
    }

    /// The task and variation of an item; negative ones count from the end.
    fn item(&self, item: &TaskIndex) -> Result<(&'static str, u64), &'static str> {
        let Ok(number) = item.to_string().parse::<i64>() else {
            return Err("cannot fit 'int' into an index-sized integer");
        };
        let count: u64 = self.variations.iter().map(|(_, count)| count).sum();
        let number = match number {
            0.. => number,
            _ => number.saturating_add(count as i64),
        };
        let mut left = u64::try_from(number).map_err(|_| "list index out of range")?;
        for (task, count) in &self.variations {
            if left < *count {
                return Ok((task, left));
            }
            left -= count;
        }
        Err("list index out of range")
    }

    /// Uses a session; the error that it has been closed, or never was.
    fn with(&self, id: &TaskIndex, act: impl FnOnce(&mut Play) -> Answer) -> Answer {
        self.sessions.with(id, act).unwrap_or_else(|| {
            let next = self.next_id.load(Ordering::Relaxed);
            let given = id
                .as_u64()
                .is_some_and(|id| (self.first_id..next).contains(&id));
            Ok(error(match given {
                true => format!("The task with environment {id} has been deleted."),
                false => format!("The id {id} is not valid."),
            }))
        })
    }

    fn reset(&self, asked: &Asked<'_>) -> Answer {
        let (id, item) = reset(&asked.fields()?, "id", "data_idx")?;
        self.with(&id, |play| {
            let (task, variation) = match self.item(&item) {
                Ok(item) => item,
                Err(why) => return Ok(error(why)),
            };
            let arguments = [
                Argument::Text(task),
                Argument::Whole(variation as i64),
                Argument::Text(""),
                Argument::Flag(false),
            ];
            play.world.call("load", &arguments).map_err(lost)?;
            let description = play.world.call("getTaskDescription", &[]).map_err(lost)?;
            let mut shown = Shown {
                task,
                variation,
                description: text(description),
                observation: String::new(),
                reward: 0,
                score: 0,
                done: false,
            };
            stepped(&play.world, &mut shown, "look around").map_err(lost)?;
            let reply = json!({
                "task_name": shown.task,
                "var_num": shown.variation,
                "task_description": shown.description,
                "observation": shown.observation,
                "reward": shown.reward,
                "score": shown.score,
                "deleted": false,
                "done": shown.done,
            });
            play.shown = Some(shown);
            Ok(reply)
        })
    }

    fn step(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let (id, action) = step(&fields, "id")?;
        self.with(&id, |play| match &mut play.shown {
            None => Ok(error(
                "'ScienceWorldEnv' object has no attribute 'variationIdx'",
            )),
            Some(shown) if shown.done => Ok(finished(&id)),
            Some(shown) => {
                stepped(&play.world, shown, action).map_err(lost)?;
                Ok(json!({
                    "observation": shown.observation,
                    "reward": shown.reward,
                    "score": shown.score,
                    "done": shown.done,
                }))
            }
        })
    }

    fn close(&self, asked: &Asked<'_>) -> Answer {
        let id = asked.body_integer("id")?;
        // The original lets its exception for a closed or unknown session escape.
        match self.sessions.close(&id) {
            true => Ok(json!(true)),
            false => Err(HttpRefusal::Failed),
        }
    }

    /// Answers a question about a session that is not over.
    fn queried(
        &self,
        asked: &Asked<'_>,
        view: impl FnOnce(&Interface, Option<&Shown>) -> Answer,
    ) -> Answer {
        let id = asked.query_integer("id")?;
        self.with(&id, |play| match &play.shown {
            Some(shown) if shown.done => Ok(finished(&id)),
            shown => view(&play.world, shown.as_ref()),
        })
    }

    fn hint(&self, asked: &Asked<'_>) -> Answer {
        self.queried(asked, |world, _| {
            Ok(json!({
                "possible_actions": world.list("getPossibleActions").map_err(lost)?,
                "possible_objects": world.list("getPossibleObjects").map_err(lost)?,
            }))
        })
    }

    fn state(&self, asked: &Asked<'_>) -> Answer {
        const LISTED: usize = 10;
        self.queried(asked, |world, shown| {
            let mut state = Map::new();
            for (key, method) in [
                ("observation", "freeActionLook"),
                ("inventory", "freeActionInventory"),
                ("task_description", "getTaskDescription"),
                ("goal_progress", "getGoalProgressStr"),
            ] {
                match world.call(method, &[]).map_err(lost)? {
                    Reply::Failed(trace) => return Ok(thrown(world, method, &trace)),
                    reply => state.insert(key.to_owned(), json!(text(reply))),
                };
            }
            for (key, method) in [
                ("possible_actions", "getPossibleActions"),
                ("possible_objects", "getPossibleObjects"),
            ] {
                let mut list = world.list(method).map_err(lost)?;
                list.truncate(LISTED);
                state.insert(key.to_owned(), json!(list));
            }
            let moves = world.call("getNumMoves", &[]).map_err(lost)?;
            state.insert("current_moves".to_owned(), json!(whole(&moves)));
            let info = shown.map_or_else(before, Shown::detail);
            state.insert("environment_info".to_owned(), info);
            Ok(Value::Object(state))
        })
    }
}

/// What is known of a session before its first reset.
fn before() -> Value {
    json!({"deleted": false, "done": false})
}

/// An exception in the words of the Python library.
fn thrown(world: &Interface, method: &str, trace: &str) -> Value {
    let name = world.name();
    error(format!(
        "An error occurred while calling {name}.{method}.\n: {trace}"
    ))
}

fn whole(reply: &Reply) -> i64 {
    match reply {
        Reply::Whole(number) => *number,
        _ => 0,
    }
}

/// Takes a step and notes what it gave.
fn stepped(world: &Interface, shown: &mut Shown, action: &str) -> Result<(), String> {
    let said = world.call("step", &[Argument::Text(action)])?;
    let score = world.call("getScore", &[])?;
    let completed = world.call("getCompleted", &[])?;
    let moves = world.call("getNumMoves", &[])?;
    let (Reply::Real(score), Reply::Flag(completed), Reply::Whole(moves)) =
        (&score, &completed, &moves)
    else {
        return Err(format!(
            "gave score {score:?}, end {completed:?}, moves {moves:?}"
        ));
    };
    // Python's round: a half goes to the even number.
    let score = (score * 100.0).round_ties_even() as i64;
    shown.observation = match said {
        Reply::Text(text) => text,
        other => return Err(format!("gave {other:?} for a step")),
    };
    shown.reward = score - shown.score;
    shown.score = score;
    shown.done = *completed || *moves > MOVES_MAX || score < 0;
    Ok(())
}

impl Routes for Sciworld {
    const ROUTES: &'static [Route<Self>] = &[
        ("/", Method::GET, |_, _| {
            Ok(json!("This is environment ScienceWorld."))
        }),
        ("/create", Method::POST, |server, _| server.create()),
        ("/reset", Method::POST, Self::reset),
        ("/step", Method::POST, Self::step),
        ("/close", Method::POST, Self::close),
        ("/observation", Method::GET, |server, asked| {
            server.queried(asked, |_, shown| {
                Ok(shown.map_or_else(|| error("'observation'"), |shown| json!(shown.observation)))
            })
        }),
        ("/detail", Method::GET, |server, asked| {
            server.queried(asked, |_, shown| {
                Ok(shown.map_or_else(before, Shown::detail))
            })
        }),
        ("/action_hint", Method::GET, Self::hint),
        ("/goals", Method::GET, |server, asked| {
            server.queried(asked, |world, _| {
                const METHOD: &str = "getGoalProgressStr";
                Ok(match world.call(METHOD, &[]).map_err(lost)? {
                    Reply::Failed(trace) => thrown(world, METHOD, &trace),
                    reply => json!({"goals": text(reply)}),
                })
            })
        }),
        ("/task_description", Method::GET, |server, asked| {
            server.queried(asked, |world, _| {
                let told = world.call("getTaskDescription", &[]).map_err(lost)?;
                Ok(json!({"task_description": text(told)}))
            })
        }),
        ("/state", Method::GET, Self::state),
    ];

    /// Each call waits for the simulator.
    const SLOW: bool = true;

    fn sessions(&self) -> &dyn Table {
        &self.sessions
    }
}
