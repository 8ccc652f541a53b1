//! Selects the simulator: from an address or the options of the subcommand.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::server::Sciworld;
use super::simulator::{Launch, VERSION};
use agentgym_envs::EnvError;
use agentgym_envs::builtin::options::{Address, within};
use agentgym_envs::builtin::registered::{ArgumentError, BuiltIn, GameTasks, ReadProgress};
use agentgym_envs::replica::Replica;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::App;
use agentgym_envs::spec::EnvSpec;
use agentgym_envs::spec::games::sciworld::SPEC;

/// Where Java and the simulator are.
#[derive(Args, Debug)]
pub(crate) struct Source {
    /// scienceworld.jar of scienceworld 1.2.3, inside the wheel on PyPI (scripts/sciworld.sh gets it).
    #[arg(long, value_name = "FILE")]
    jar: PathBuf,
    /// The Java program.
    #[arg(long, value_name = "PROGRAM", default_value = JAVA)]
    java: PathBuf,
    /// Java processes that the sessions are spread over; each steps one session at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = within(1..=256))]
    processes: u64,
    /// Heap of each Java process, in MB; 16 of them allow a session.
    #[arg(long, value_name = "MB", default_value_t = 512, value_parser = within(64..=u64::MAX))]
    memory_mb: u64,
    /// Run no other file than the published one: an address comes from a plan, and a plan from a store.
    #[arg(skip)]
    published: bool,
}

/// BLAKE3 of the published file.
const JAR: &str = "f4b31addca25ce2948c01acfd20ee7511cced5f46626e40534466ffd0b4f99ef";

const JAVA: &str = "java";

impl Source {
    fn check_published(&self) -> Result<(), EnvError> {
        let shown = self.jar.display();
        let mut hasher = blake3::Hasher::new();
        let read = std::fs::File::open(&self.jar).and_then(|file| {
            hasher.update_reader(file)?;
            Ok(hasher.finalize().to_hex())
        });
        let problem = match read {
            Ok(found) if found.as_str() == JAR => return Ok(()),
            Ok(_) => format!(
                "{shown} is not scienceworld.jar of scienceworld {VERSION} from PyPI, and no other program is run \
                 because an address names it; get it with scripts/sciworld.sh, or start `agentgym-env sciworld --jar` \
                 yourself and give its URL"
            ),
            Err(error) => format!("{shown} cannot be read: {error}"),
        };
        Err(EnvError::Simulator { problem })
    }
}

impl GameTasks for Source {
    fn check_files(&self) -> Result<(), EnvError> {
        let problem = match std::fs::metadata(&self.jar) {
            Ok(found) if found.is_file() => return Ok(()),
            Ok(_) => "is no file".to_owned(),
            Err(error) => format!("cannot be read: {error}"),
        };
        Err(EnvError::Simulator {
            problem: format!(
                "{} {problem}; give scienceworld.jar of scienceworld {VERSION} from PyPI",
                self.jar.display()
            ),
        })
    }

    fn app(&self, options: &ServerOptions, _: ReadProgress<'_>) -> Result<Arc<dyn App>, EnvError> {
        self.check_files()?;
        if self.published {
            self.check_published()?;
        }
        let launch = Launch {
            java: self.java.clone(),
            jar: self.jar.clone(),
            memory_mb: self.memory_mb,
        };
        let server = Sciworld::start(launch, self.processes, options);
        let server = server.map_err(|problem| EnvError::Simulator { problem })?;
        Ok(Arc::new(server))
    }

    fn replica(&self, _: i64) -> Result<Box<dyn Replica>, String> {
        Err("its simulator is a Java process, which is not started for pictures".to_owned())
    }
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve ScienceWorld with its own simulator, which needs Java";
    const PORT: u16 = 36003;
    const ADDRESSES: &'static [Address] = &[Address::new(":sciworld")];
    type Arguments = Self;

    fn from_arguments(arguments: Self) -> Result<Self, ArgumentError> {
        Ok(arguments)
    }

    fn from_address(arguments: Self) -> Result<Self, ArgumentError> {
        if arguments.java.as_os_str() != JAVA {
            return Err(
                "which program a worker runs is not for an address to say: have `java` on the worker's PATH, or start \
                 `agentgym-env sciworld --java PROGRAM` yourself and give its URL"
                    .into(),
            );
        }
        Ok(Self {
            published: true,
            ..arguments
        })
    }
}
