//! A harness for any command line: a server that starts an agent for each episode, in a folder of its own,
//! tells it where the policy is to be asked, and judges what it leaves (docs/harness.md).
//!
//! The protocol is that of an environment. The action of a step is a JSON object with the address of the
//! gateway and the key of the episode; the first one starts the agent, and each waits a while for its end.

mod agent;
mod options;

use crate::server::ServerOptions;
use crate::server::http::{Answer, Asked, HttpRefusal, Method, Route, Routes};
use crate::server::sessions::{Sessions, Table};
use crate::server::validation::{reset, step};
use agent::Run;
pub use options::HarnessOptions;
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Largest file of tasks.
const TASKS_BYTES_MAX: u64 = 256 << 20;
/// How long the gateway may take to be reached.
const REACHED: Duration = Duration::from_secs(5);

/// The server's state.
pub struct Harness {
    options: Arc<HarnessOptions>,
    tasks: Vec<Arc<Value>>,
    sessions: Sessions<Play>,
}

/// A session: its task, and its agent once that was started.
#[derive(Default)]
struct Play {
    task: Option<Arc<Value>>,
    run: Option<Arc<Run>>,
}

impl Drop for Play {
    fn drop(&mut self) {
        if let Some(run) = &self.run {
            run.close();
        }
    }
}

/// What the action of a step holds.
#[derive(Debug, Deserialize)]
struct Order {
    base_url: String,
    api_key: String,
    #[serde(default)]
    calls_max: u64,
    #[serde(default)]
    wait_s: f64,
    /// Seconds in which the gateway has computed so far.
    #[serde(default)]
    gateway_s: f64,
}

/// Reads tasks: a JSON object on each line. `prompt` is what people see of one, and `files` are put into
/// the agent's folder.
///
/// # Errors
/// A file that cannot be read, or the first line that is no task.
pub fn tasks(path: &Path) -> Result<Vec<Value>, String> {
    let shown = path.display();
    let text = crate::files::read_text_within(path, TASKS_BYTES_MAX);
    let text = text.map_err(|why| format!("{shown}: {why}"))?;
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let task = |(number, line): (usize, &str)| {
        let bad = |why: &str| format!("{shown}:{}: {why}", number + 1);
        let task: Value = serde_json::from_str(line).map_err(|error| bad(&error.to_string()))?;
        if task["prompt"].as_str().is_none_or(str::is_empty) {
            return Err(bad("a task is a JSON object with a text `prompt`"));
        }
        agent::files(&task).map_err(|why| bad(&why))?;
        Ok(task)
    };
    let tasks: Vec<Value> = lines.map(task).collect::<Result<_, _>>()?;
    match tasks.is_empty() {
        true => Err(format!("{shown}: holds no task")),
        false => Ok(tasks),
    }
}

impl Harness {
    /// A harness without sessions. A task of a higher number than there are is the first again, and so on.
    pub fn new(options: HarnessOptions, tasks: Vec<Value>, server: &ServerOptions) -> Self {
        Self {
            options: Arc::new(options),
            tasks: tasks.into_iter().map(Arc::new).collect(),
            sessions: Sessions::new(server),
        }
    }

    /// Ends all agents, and returns when they have ended.
    pub fn close(&self) {
        let runs: Vec<Arc<Run>> = (self.sessions.ids().into_iter())
            .filter_map(|id| {
                self.sessions
                    .with(&(id as i64).into(), |play| play.run.clone())?
            })
            .collect();
        runs.iter().for_each(|run| run.close());
        runs.iter().for_each(|run| run.await_end());
    }

    fn create(&self, _: &Asked<'_>) -> Answer {
        let opened = (self.sessions).create(|_| Play::default(), |id, _| json!({ "id": id }));
        opened.ok_or(HttpRefusal::Full)
    }

    fn reset(&self, asked: &Asked<'_>) -> Answer {
        let (id, item) = reset(&asked.fields()?, "id", "data_idx")?;
        let Some(item) = item.as_u64() else {
            return Ok(json!({"error": format!("There is no task {item}.")}));
        };
        let task = &self.tasks[item as usize % self.tasks.len()];
        Ok(self.sessions.answer(&id, |play| {
            *play = Play {
                task: Some(Arc::clone(task)),
                run: None,
            };
            json!({"observation": task["prompt"], "reward": 0.0, "done": false})
        }))
    }

    fn step(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let (id, action) = step(&fields, "id")?;
        let order: Order = match serde_json::from_str(action) {
            Ok(order) => order,
            Err(error) => {
                let error = format!("The action says no gateway to ask ({error}).");
                return Ok(json!({"error": error}));
            }
        };
        let missing = json!({"error": format!("The id {id} is not valid, or was not reset.")});
        let known = self
            .sessions
            .with(&id, |play| (play.task.clone(), play.run.clone()));
        let Some((Some(task), run)) = known else {
            return Ok(missing);
        };
        let run = match run {
            Some(run) => run,
            None => {
                if let Err(why) = reached(&order.base_url) {
                    let error = format!(
                        "The gateway {} cannot be reached from here: {why}",
                        order.base_url
                    );
                    return Ok(json!({"error": error}));
                }
                let keys = (
                    order.base_url.as_str(),
                    order.api_key.as_str(),
                    order.calls_max,
                );
                let run = match Run::start(Arc::clone(&self.options), task, keys) {
                    Ok(run) => run,
                    Err(why) => return Ok(json!({"error": why})),
                };
                let kept = Arc::clone(&run);
                if self
                    .sessions
                    .with(&id, |play| play.run = Some(kept))
                    .is_none()
                {
                    run.close();
                    return Ok(missing);
                }
                run
            }
        };
        run.computed(order.gateway_s);
        // Not within the session, which may be closed meanwhile.
        let wait = Duration::try_from_secs_f64(order.wait_s).unwrap_or_default();
        Ok(run
            .ended_within(wait)
            .unwrap_or_else(|| json!({"observation": "", "reward": null, "done": false})))
    }

    fn observation(&self, asked: &Asked<'_>) -> Answer {
        let id = asked.query_integer("id")?;
        Ok(self.sessions.answer(&id, |play| match &play.task {
            Some(task) => json!({"observation": task["prompt"], "reward": 0.0, "done": false}),
            None => json!({"error": "There is no task before the first reset."}),
        }))
    }

    fn closed(&self, asked: &Asked<'_>) -> Answer {
        let id = asked.body_integer("id")?;
        let run = self.sessions.with(&id, |play| play.run.clone()).flatten();
        if let Some(run) = run {
            run.close();
            run.await_end();
        }
        Ok(json!(self.sessions.close(&id)))
    }
}

impl Routes for Harness {
    const ROUTES: &'static [Route<Self>] = &[
        ("/create", Method::POST, Self::create),
        ("/reset", Method::POST, Self::reset),
        ("/step", Method::POST, Self::step),
        ("/observation", Method::GET, Self::observation),
        ("/close", Method::POST, Self::closed),
    ];

    const SLOW: bool = true;

    fn sessions(&self) -> &dyn Table {
        &self.sessions
    }
}

/// Whether something listens at an address, so that an agent does not fail at it in its own words.
fn reached(address: &str) -> Result<(), String> {
    let url = Url::parse(address).map_err(|error| error.to_string())?;
    let host = url
        .host_str()
        .ok_or("it names no host")?
        .trim_matches(['[', ']']);
    let port = url.port_or_known_default().ok_or("it names no port")?;
    let all = (host, port)
        .to_socket_addrs()
        .map_err(|error| error.to_string())?;
    let mut why = "it has no address".to_owned();
    for at in all {
        match TcpStream::connect_timeout(&at, REACHED) {
            Ok(_) => return Ok(()),
            Err(error) => why = error.to_string(),
        }
    }
    Err(format!(
        "{why}; the worker's --gateway-addr and --gateway-url say where it is"
    ))
}

#[cfg(test)]
mod tests;
