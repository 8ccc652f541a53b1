//! The environments that a program brings with it ([`provide`]), and their servers inside its process.
//!
//! With those of the crate `games` an address selects one so: `builtin` is TextCraft with our own recipe table,
//! `builtin:worlds?depths=1-3&lines=4-8&words=lexicon` generated worlds, `builtin:folder?path=DIR`
//! a folder of recipe files. The others: `builtin:babyai`, `builtin:maze`,
//! `builtin:wordle?seed=0`, `builtin:searchqa?corpus=FILE&questions=FILE&top_k=3` (without files:
//! our own passages), `builtin:sokoban?size=6`, `builtin:sciworld?jar=FILE`,
//! `builtin:toolbox?terms=1-3&seed=0`. Servers listen on a free loopback port and are used
//! over HTTP like any other.

pub mod options;
pub mod registered;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use clap::FromArgMatches;

use crate::demonstration::Solver;
use crate::error::EnvError;
use crate::replica::Replica;
use crate::server::{ServerHandle, ServerOptions, serve};
pub use options::Limits;
pub use registered::{ArgumentError, Registered};
use registered::{GameTasks, OpenSolver};

const SCHEME: &str = "builtin";

/// The rules of the built-in games: the original servers', world by world. By rules 1, those of before, BabyAI and
/// the maze were games of our own and prompts named no tools.
pub const RULES: u32 = 2;

static PROVIDED: OnceLock<&[Registered]> = OnceLock::new();

/// The environments that `builtin:` addresses of this process mean; the first call counts.
pub fn provide(all: &'static [Registered]) {
    let _ = PROVIDED.set(all);
}

/// The environments that were provided.
///
/// # Errors
/// None were, as half a sentence.
pub fn all() -> Result<&'static [Registered], &'static str> {
    let provided = PROVIDED.get().copied();
    provided.ok_or("this program brings no environments")
}

/// Why nothing is played by other rules of the built-in games than [`RULES`]; `what` comes before the
/// number, as half a sentence.
pub fn other_rules(what: &str, rules: impl std::fmt::Display) -> String {
    format!(
        "{what} by rules {rules} of the built-in games, and this version plays by rules {RULES} alone; version 0.3 plays \
         by 1 and 2. What was played can be viewed, exported and verified here"
    )
}

/// Whether an environment address denotes a built-in server.
pub fn is_builtin(address: &str) -> bool {
    address == SCHEME
        || address
            .strip_prefix(SCHEME)
            .is_some_and(|rest| rest.starts_with([':', '?']))
}

/// The parsed form of a built-in address.
#[derive(Clone, Debug)]
pub struct BuiltinAddress {
    /// Where tasks come from.
    pub source: BuiltinTasks,
    /// Limits of the server.
    pub options: ServerOptions,
}

/// Tasks of a built-in environment.
#[derive(Clone, Debug)]
pub struct BuiltinTasks {
    row: &'static Registered,
    tasks: Arc<dyn GameTasks>,
}

impl BuiltinTasks {
    /// The tasks selected by the options of an environment's subcommand.
    pub fn from_matches(
        row: &'static Registered,
        matches: &clap::ArgMatches,
    ) -> Result<Self, ArgumentError> {
        let tasks = (row.from_matches)(matches)?;
        Ok(Self { row, tasks })
    }

    /// The name of the environment that the tasks belong to.
    pub fn env(&self) -> &'static str {
        self.row.spec.name
    }

    /// Checks the files that a server of these tasks would need, without reading them.
    pub fn check_files(&self) -> Result<(), EnvError> {
        self.tasks.check_files()
    }

    /// The numbers of all tasks, where they are those of a file, which is read.
    pub fn items(&self) -> Result<Option<Vec<i64>>, EnvError> {
        self.tasks.items()
    }

    /// Whether a solver supports this style. Reads no files.
    pub fn check_style(&self, style: &str) -> Result<(), EnvError> {
        self.open_solver(style).map(drop)
    }

    /// The solver of these tasks. `style` selects how its solutions are written.
    pub fn solver(&self, style: &str) -> Result<Arc<dyn Solver>, EnvError> {
        self.open_solver(style)?()
    }

    /// A task to be played again and looked at. `Err`: why it cannot be.
    ///
    /// # Errors
    /// No such task, or files that cannot be read, as half a sentence.
    pub fn replica(&self, item_id: i64) -> Result<Box<dyn Replica>, String> {
        self.tasks.replica(item_id)
    }

    /// The style of the solutions in the text that a preset's tokenizer is trained on. `None`: the
    /// text contains none.
    pub fn corpus_style(&self) -> Option<&'static str> {
        self.tasks.corpus_style()
    }

    /// Starts a server of these tasks; port 0 picks a free one. `progress` gets the bytes read so
    /// far and in total when a corpus is read for the first time.
    pub async fn serve(
        self,
        addr: SocketAddr,
        options: ServerOptions,
        mut progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<ServerHandle, EnvError> {
        let prefix = self.row.spec.path_prefix;
        let limits = options.clone();
        let app = tokio::task::spawn_blocking(move || self.tasks.app(&limits, &mut progress))
            .await
            .expect("reading tasks does not panic")?;
        serve(app, prefix, addr, options).await
    }

    fn open_solver(&self, style: &str) -> Result<OpenSolver<'_>, EnvError> {
        self.tasks
            .solver(style)
            .map_err(|problem| EnvError::Address {
                address: format!("{SCHEME}:{}", self.env()),
                problem,
            })
    }
}

/// The address of a built-in environment with these options.
pub fn address(name: &str, options: &[(&str, &str)]) -> String {
    let head = format!("{SCHEME}:{name}?");
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    head + &query.extend_pairs(options).finish()
}

/// Parses a built-in address; nothing is opened or started.
pub fn parse(address: &str) -> Result<BuiltinAddress, EnvError> {
    let rest = address.strip_prefix(SCHEME).unwrap_or_default();
    let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
    let bad = |problem: String| EnvError::Address {
        address: address.to_owned(),
        problem,
    };
    if !address.starts_with(SCHEME) {
        return Err(bad(format!("it does not begin with {SCHEME:?}")));
    }
    let all = all().map_err(|problem| bad(problem.to_owned()))?;
    let mut rows = all
        .iter()
        .flat_map(|row| row.addresses.iter().map(move |form| (row, form)));
    let (row, form) = rows.find(|(_, form)| form.suffix == name).ok_or_else(|| {
        let known = all.iter().flat_map(|row| row.addresses);
        let known: Vec<&str> = known
            .map(|form| form.suffix)
            .filter(|s| !s.is_empty())
            .collect();
        bad(format!("{name:?} is not one of {}", known.join(", ")))
    })?;
    let matches = form.read(query, row.arguments).map_err(bad)?;
    let tasks = (row.from_address)(&matches).map_err(|e| bad(e.to_string()))?;
    let limits = Limits::from_arg_matches(&matches).map_err(|e| bad(e.to_string()))?;
    Ok(BuiltinAddress {
        source: BuiltinTasks { row, tasks },
        // Each start picks a new port, so session numbers may begin with 0.
        options: ServerOptions {
            session_ttl_s: limits.ttl_s,
            sessions_max: limits.sessions_max,
            ..ServerOptions::default()
        },
    })
}

/// Starts the server that an address describes.
pub async fn start(address: &str) -> Result<ServerHandle, EnvError> {
    let BuiltinAddress { source, options } = parse(address)?;
    let told = |done: u64, total: u64| tracing::info!(done, total, "reading the corpus, bytes");
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    source.serve(local, options, told).await
}
