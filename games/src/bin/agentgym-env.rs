//! `agentgym-env`: environment servers as a standalone program, server checks and demonstrations.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use agentgym_envs::builtin::{self, BuiltinTasks, Limits, Registered};
use agentgym_envs::demonstration::Solver;
use agentgym_envs::doctor::{DoctorOptions, Verdict, examine};
use agentgym_envs::harness::{self, Harness, HarnessOptions};
use agentgym_envs::server::{ServerHandle, ServerOptions, serve};
use agentgym_envs::spec::{declared, spec};
use agentgym_games::template::{self, Language};
use agentgym_text::{Visible, visible};
use anyhow::{Context, Result, bail};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Subcommand};

/// The environment of `demos` if no address is given.
static TEXTCRAFT: &Registered = &agentgym_games::ALL[0];

/// Subcommands that are not servers.
#[derive(Subcommand)]
enum Tool {
    /// Examine a server: what it answers, whether the same item is the same task, which items it
    /// has, how it fails, whether closed sessions are gone, how fast it is.
    Doctor {
        /// Base URL; for maze and wordle it ends in /maze and /wordle.
        url: String,
        /// The environment that the server should provide.
        #[arg(long, required_unless_present = "spec")]
        task: Option<String>,
        /// A file that describes it, where no program knows it (docs/environments.md).
        #[arg(long, value_name = "FILE", conflicts_with = "task")]
        spec: Option<PathBuf>,
        /// Sessions opened and closed in the leak test; 0 skips it.
        #[arg(long, default_value_t = DoctorOptions::default().leaks)]
        leaks: usize,
        /// Numbers of concurrent clients to measure the speed with.
        #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
        clients: Vec<usize>,
        /// Seconds for each measurement.
        #[arg(long, default_value_t = DoctorOptions::default().measure_s)]
        measure_s: f64,
        /// Longest time for a call, in seconds.
        #[arg(long, default_value_t = DoctorOptions::default().call_timeout_s)]
        call_timeout_s: f64,
    },
    /// Write a server of your own to begin with: a folder with a game that can be played, its spec and
    /// its tests.
    New {
        /// Its name: 1 to 40 of a-z, 0-9, - and _.
        name: String,
        /// What it is written in.
        #[arg(long, value_enum)]
        lang: Language,
        /// The folder that the new one is made in.
        #[arg(long, default_value = ".")]
        to: PathBuf,
    },
    /// Print solved tasks, one JSON line each, in AgentGym's trajectory format: TextCraft's, or
    /// those of another built-in environment.
    Demos {
        /// Task ids, such as 0..1000.
        #[arg(long, value_parser = ids)]
        ids: Range<i64>,
        /// First lines of every conversation [default: the environment's own instruction].
        #[arg(long)]
        instruction: Option<String>,
        /// Style (TextCraft): a list of thought, once, refusals=PERCENT, goals=N.
        #[arg(long, default_value = "")]
        style: String,
        /// Where tasks come from, as in a config: builtin:babyai, builtin:searchqa?corpus=…
        #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["recipes", "worlds"])]
        env: Option<String>,
    },
}

/// Serve tasks to an agent of your own: each episode starts a command, which asks the policy through
/// OpenAI's or Anthropic's API (docs/harness.md).
#[derive(Args)]
struct HarnessArguments {
    /// The agent's command line; sh runs it in a folder of its own.
    #[arg(long)]
    command: String,
    /// The tasks: a JSON object with a text `prompt` on each line; `files` are put into the folder.
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,
    /// A command line that judges what the agent left: it prints a reward, or JSON with `reward`,
    /// `components` and `reason`, or says by its exit code whether the task is solved [default: what the
    /// agent writes to $AGENTGYM_REWARD].
    #[arg(long, value_name = "COMMAND")]
    judge: Option<String>,
    /// The agent's own exit code says whether the task is solved.
    #[arg(long, conflicts_with = "judge")]
    reward_by_exit: bool,
    /// Seconds that an agent may take, those in which the policy is sampled apart.
    #[arg(long, default_value_t = 600.0)]
    time_limit_s: f64,
    /// Mebibytes that an agent may write to its standard streams.
    #[arg(long, default_value_t = 16)]
    output_max_mib: u64,
    /// Where the folders of episodes are made [default: the system's folder for temporary files].
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Leave these folders, each with the agent's output.
    #[arg(long)]
    keep: bool,
}

/// The port of a harness.
const HARNESS_PORT: u16 = 36010;

/// Where to listen, and limits.
#[derive(Args)]
struct Listen {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 picks a free one.
    #[arg(long)]
    port: Option<u16>,
    #[command(flatten)]
    limits: Limits,
}

/// The subcommands: a server for each environment, then the tools. `demos` also has TextCraft's
/// options. `about` is set last, because adding a set of options overwrites it.
fn command() -> Command {
    let server = |row: &'static Registered| {
        let command = Listen::augment_args(Command::new(row.spec.name));
        let command = command.mut_arg("port", |port| {
            let help = "Port to listen on; 0 takes a free one";
            port.help(format!("{help} [default: {}]", row.port))
        });
        (row.arguments)(command).about(row.about)
    };
    let command = Command::new("agentgym-env")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(
            Arg::new("rules")
                .long("rules")
                .global(true)
                .hide(true)
                .value_parser(rules),
        )
        .subcommands(agentgym_games::ALL.iter().map(server));
    let harness = Command::new("harness");
    let harness = HarnessArguments::augment_args(Listen::augment_args(harness));
    let harness = harness.mut_arg("port", |port| {
        let help = "Port to listen on; 0 takes a free one";
        port.help(format!("{help} [default: {HARNESS_PORT}]"))
    });
    Tool::augment_subcommands(command.subcommand(harness))
        .about("AgentGym environments written in Rust")
        .mut_subcommand("demos", |demos| {
            let about = demos.get_about().cloned().unwrap_or_default();
            (TEXTCRAFT.arguments)(demos).about(about)
        })
}

/// Serves a harness until interrupted.
async fn listen_harness(matches: &ArgMatches) -> Result<()> {
    let (listen, given) = (
        Listen::from_arg_matches(matches)?,
        HarnessArguments::from_arg_matches(matches)?,
    );
    let tasks = harness::tasks(&given.tasks).map_err(anyhow::Error::msg)?;
    if given.time_limit_s.is_nan() || given.time_limit_s <= 0.0 {
        bail!(
            "--time-limit-s is {}; it must be above 0",
            given.time_limit_s
        );
    }
    let options = HarnessOptions {
        command: given.command,
        judge: given.judge,
        judges_by_exit: given.reward_by_exit,
        time_limit_s: given.time_limit_s,
        output_bytes_max: given.output_max_mib.saturating_mul(1 << 20),
        folder: std::path::absolute(given.folder.unwrap_or_else(std::env::temp_dir))?,
        keeps_folders: given.keep,
    };
    let server = listen.options();
    let addr = SocketAddr::new(listen.host, listen.port.unwrap_or(HARNESS_PORT));
    let harness = Arc::new(Harness::new(options, tasks, &server));
    let serving = Arc::clone(&harness);
    let server = serve(serving, "", addr, server).await?;
    say_address(&server)?;
    interrupted().await?;
    // Calls that wait for an agent get its end.
    tokio::task::spawn_blocking(move || harness.close()).await?;
    server.stop().await;
    Ok(())
}

impl Listen {
    fn options(&self) -> ServerOptions {
        ServerOptions {
            session_ttl_s: self.limits.ttl_s,
            sessions_max: self.limits.sessions_max,
            // Numbers that no earlier process has used: a client of that process must not reach another
            // client's session by its own number.
            first_id: unix_ms(),
        }
    }
}

/// On stdout and flushed: a process that starts the server waits for this line.
fn say_address(server: &ServerHandle) -> Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening on {}", server.url)?;
    stdout.flush()?;
    Ok(())
}

/// Serves until interrupted.
async fn listen(row: &'static Registered, matches: &ArgMatches) -> Result<()> {
    let listen = Listen::from_arg_matches(matches)?;
    let source = BuiltinTasks::from_matches(row, matches).map_err(anyhow::Error::from_boxed)?;
    let progress = |done: u64, total: u64| {
        eprintln!("reading the corpus: {} of {} MiB", done >> 20, total >> 20);
    };
    let options = listen.options();
    let addr = SocketAddr::new(listen.host, listen.port.unwrap_or(row.port));
    let server = source.serve(addr, options, progress).await?;
    say_address(&server)?;
    interrupted().await?;
    server.stop().await;
    Ok(())
}

/// Milliseconds since 1970; exact in a JSON number for some hundred thousand years.
fn unix_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// `--rules` chose among two versions once.
fn rules(text: &str) -> Result<(), String> {
    match text {
        "2" => Ok(()),
        _ => Err(builtin::other_rules("this would play", text)),
    }
}

fn ids(text: &str) -> Result<Range<i64>, String> {
    let parsed = text.split_once("..").and_then(|(low, high)| {
        let (low, high) = (low.parse().ok()?, high.parse().ok()?);
        (low < high).then_some(low..high)
    });
    parsed.ok_or_else(|| "expected a range such as 0..1000".to_owned())
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Visible(std::io::stderr()))
        // Do not panic if the reader of the log has gone away.
        .log_internal_errors(false)
        .init();
    match run(&command().get_matches()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", visible(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

async fn run(matches: &ArgMatches) -> Result<ExitCode> {
    let (name, own) = matches.subcommand().context("no subcommand")?;
    if let Some(row) = agentgym_games::ALL.iter().find(|row| row.spec.name == name) {
        listen(row, own).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if name == "harness" {
        listen_harness(own).await?;
        return Ok(ExitCode::SUCCESS);
    }
    match Tool::from_arg_matches(matches)? {
        Tool::Doctor {
            url,
            task,
            spec: file,
            leaks,
            clients,
            measure_s,
            call_timeout_s,
        } => {
            let known = match file {
                Some(file) => declared::from_file(&file).map_err(anyhow::Error::msg)?,
                None => spec(&task.unwrap_or_default())?,
            };
            let options = DoctorOptions {
                leaks,
                clients,
                measure_s,
                call_timeout_s,
            };
            // Printed immediately, since some servers take minutes to open a session.
            let say = |what: &str| eprintln!("{}", visible(what));
            let report = examine(known, &url, &options, say).await?;
            println!("{}", visible(&report.to_string()));
            return Ok(match report.verdict() {
                // As of `agentgym-submit`, where an environment is not what its name says.
                _ if report.is_another() => ExitCode::from(5),
                Verdict::Bad => ExitCode::FAILURE,
                _ => ExitCode::SUCCESS,
            });
        }
        Tool::New { name, lang, to } => {
            let written = template::write(&name, lang, &to).map_err(anyhow::Error::msg)?;
            for path in written {
                println!("{}", path.display());
            }
        }
        Tool::Demos {
            ids,
            instruction,
            style,
            env,
        } => {
            let source = match env {
                Some(address) => agentgym_games::parse(&address)?.source,
                None => {
                    BuiltinTasks::from_matches(TEXTCRAFT, own).map_err(anyhow::Error::from_boxed)?
                }
            };
            let solver = source.solver(&style)?;
            let instruction = instruction.as_deref();
            let instruction = instruction.unwrap_or(spec(source.env())?.instruction);
            demos(&*solver, ids, instruction)?
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn demos(solver: &dyn Solver, ids: Range<i64>, instruction: &str) -> Result<()> {
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    for id in ids {
        let Some(demonstration) = solver.demonstrate(id, instruction) else {
            bail!("task {id} cannot be solved; leave it out of --ids");
        };
        let line = serde_json::to_string(&demonstration)?;
        match writeln!(stdout, "{line}") {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    stdout.flush()?;
    Ok(())
}

async fn interrupted() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        pressed = tokio::signal::ctrl_c() => pressed?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A default inside the derived options would be the same for all environments.
    #[test]
    fn every_server_says_what_it_is_and_its_own_port() {
        let mut command = command();
        for row in &agentgym_games::ALL {
            let server = command.find_subcommand_mut(row.spec.name).expect("listed");
            let help = server.render_help().to_string();
            assert!(help.starts_with(row.about), "{help}");
            assert!(help.contains(&format!("[default: {}]", row.port)), "{help}");
            let mut free = vec!["agentgym-env", row.spec.name, "--port", "0"];
            match row.spec.name {
                "sciworld" => free.extend(["--jar", "x.jar"]),
                "dataset" => free.extend(["--file", "x.jsonl"]),
                _ => {}
            }
            assert!(command.clone().try_get_matches_from(free).is_ok());
        }
    }
}
