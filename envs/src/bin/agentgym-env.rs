//! `agentgym-env`: environment servers as a program of their own, and demonstrations.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use agentgym_envs::babyai::Compat;
use agentgym_envs::builtin::{self, TaskSource, range};
use agentgym_envs::demonstration::Solver;
use agentgym_envs::doctor::{DoctorOptions, Verdict, examine};
use agentgym_envs::searchqa::TOP_K;
use agentgym_envs::server::{ServerOptions, serve};
use agentgym_envs::spec::spec;
use agentgym_envs::textcraft::{DISTRACTORS_MAX, Vocabulary, Worlds};
use agentgym_text::{Visible, visible};
use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "agentgym-env",
    version,
    about = "AgentGym environments written in Rust"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve TextCraft over HTTP until interrupted.
    Textcraft {
        #[command(flatten)]
        listen: Listen<36001>,
        #[command(flatten)]
        source: Source,
    },
    /// Serve BabyAI: goals in grids of rooms.
    Babyai {
        #[command(flatten)]
        listen: Listen<36002>,
        /// Keep the original's habits: late successes go on, scores add up, orders are hidden,
        /// sessions closed before their first reset stay.
        #[arg(long)]
        compat: bool,
        /// Mixed into every world.
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
    /// Serve SearchQA: questions over a corpus, with BM25 search.
    Searchqa {
        #[command(flatten)]
        listen: Listen<36004>,
        /// JSON lines {"id", "contents"}; contents = title line, then text. Without it a small
        /// set of our own.
        #[arg(long, value_name = "FILE", requires = "questions")]
        corpus: Option<PathBuf>,
        /// JSON lines {"id", "question", "answers"}.
        #[arg(long, value_name = "FILE", requires = "corpus")]
        questions: Option<PathBuf>,
        /// Where the index is kept; beside the corpus without it.
        #[arg(long, value_name = "FILE", requires = "corpus")]
        index: Option<PathBuf>,
        /// Passages per search.
        #[arg(long, default_value_t = TOP_K)]
        top_k: usize,
        /// Show questions and passages in lower case.
        #[arg(long)]
        uncased: bool,
    },
    /// Serve the maze; the base URL for clients ends in /maze.
    Maze {
        #[command(flatten)]
        listen: Listen<36006>,
    },
    /// Serve Wordle; the base URL for clients ends in /wordle.
    Wordle {
        #[command(flatten)]
        listen: Listen<36007>,
        /// Mixed into every game.
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
    /// Examine a server: what it answers, whether the same item is the same task, which items
    /// it has, how it fails, whether closed sessions are gone, how fast it is.
    Doctor {
        /// Base URL; that of maze and wordle ends in /maze and /wordle.
        url: String,
        /// The environment that it should be.
        #[arg(long)]
        task: String,
        /// Sessions opened and closed in the test for leaks; 0 leaves it out.
        #[arg(long, default_value_t = DoctorOptions::default().leaks)]
        leaks: usize,
        /// Numbers of clients to measure the speed with.
        #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
        clients: Vec<usize>,
        /// Seconds for each measurement.
        #[arg(long, default_value_t = DoctorOptions::default().measure_s)]
        measure_s: f64,
        /// Longest time for a call, in seconds.
        #[arg(long, default_value_t = DoctorOptions::default().call_timeout_s)]
        call_timeout_s: f64,
    },
    /// Print solved tasks, one JSON line each, in AgentGym's trajectory format: TextCraft's, or
    /// those of another built-in environment.
    Demos {
        /// Task ids, such as 0..1000.
        #[arg(long, value_parser = ids)]
        ids: Range<i64>,
        /// First lines of every conversation; the environment's own without it.
        #[arg(long)]
        instruction: Option<String>,
        /// How it is told (TextCraft): a list of thought, once, refusals=PERCENT, goals=N.
        #[arg(long, default_value = "")]
        style: String,
        /// Where tasks come from, as in a config: builtin:babyai, builtin:searchqa?corpus=…
        #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["recipes", "worlds"])]
        env: Option<String>,
        #[command(flatten)]
        source: Source,
    },
}

/// Where to listen, and limits.
#[derive(Args)]
struct Listen<const PORT: u16> {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Close sessions that are not used for this many seconds.
    #[arg(long, default_value_t = ServerOptions::default().session_ttl_s)]
    ttl_s: u64,
    /// Largest number of open sessions.
    #[arg(long, default_value_t = ServerOptions::default().sessions_max)]
    sessions_max: usize,
}

impl<const PORT: u16> Listen<PORT> {
    /// Serves until interrupted.
    async fn serve(self, source: TaskSource) -> Result<()> {
        let progress = |done: u64, total: u64| {
            eprintln!("reading the corpus: {} of {} MiB", done >> 20, total >> 20);
        };
        let served = tokio::task::spawn_blocking(move || source.served(progress)).await??;
        let options = ServerOptions {
            session_ttl_s: self.ttl_s,
            sessions_max: self.sessions_max,
            // Numbers that no earlier process has given: a client that knew that one must not
            // find another's session behind its own number.
            first_id: unix_ms(),
        };
        let server = serve(served, SocketAddr::new(self.host, self.port), options).await?;
        // On stdout and at once: whoever starts the server waits for this line.
        let mut stdout = std::io::stdout();
        writeln!(stdout, "listening on {}", server.url)?;
        stdout.flush()?;
        interrupted().await?;
        server.stop().await;
        Ok(())
    }
}

/// Milliseconds since 1970; exact in a JSON number for some hundred thousand years.
fn unix_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// Without an option: the built-in recipe table.
#[derive(Args)]
struct Source {
    /// A folder of Minecraft recipe files instead of the built-in table.
    #[arg(long, value_name = "DIR", conflicts_with = "worlds")]
    recipes: Option<PathBuf>,
    /// Loading order of the folder's files, one name a line; by name without it.
    #[arg(long, value_name = "FILE", requires = "recipes")]
    order: Option<PathBuf>,
    /// Most lines per task that do not serve the goal.
    #[arg(long, default_value_t = DISTRACTORS_MAX, conflicts_with = "worlds")]
    distractors: usize,
    /// Generated worlds of these depths, such as 1-3; a task's id is its seed.
    #[arg(long, value_name = "DEPTHS")]
    worlds: Option<String>,
    /// Lines per generated world.
    #[arg(long, default_value = "4-8", requires = "worlds")]
    lines: String,
    /// Words made up anew for each generated world.
    #[arg(long, requires = "worlds")]
    wide_words: bool,
}

impl Source {
    fn source(self) -> Result<TaskSource> {
        Ok(if let Some(depths) = self.worlds {
            let depths = range(&depths)
                .with_context(|| format!("--worlds {depths}: expected a range such as 1-3"))?;
            let lines = range(&self.lines)
                .with_context(|| format!("--lines {}: expected a range such as 4-8", self.lines))?;
            let vocabulary = match self.wide_words {
                true => Vocabulary::Wide,
                false => Vocabulary::Lexicon,
            };
            TaskSource::Worlds(Worlds::new(depths, lines)?.with_vocabulary(vocabulary))
        } else if let Some(path) = self.recipes {
            TaskSource::Folder {
                path,
                order: self.order,
                distractors_max: self.distractors,
            }
        } else {
            TaskSource::Table {
                distractors_max: self.distractors,
            }
        })
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
        // A reader of the log that went away is no reason to panic.
        .log_internal_errors(false)
        .init();
    match run(Cli::parse().command).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", visible(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Textcraft { listen, source } => listen.serve(source.source()?).await?,
        Command::Searchqa {
            listen,
            corpus,
            questions,
            index,
            top_k,
            uncased,
        } => {
            let source = TaskSource::Searchqa {
                files: corpus.zip(questions),
                index,
                top_k,
                uncased,
            };
            listen.serve(source).await?
        }
        Command::Babyai {
            listen,
            compat,
            seed,
        } => {
            let compat = if compat {
                Compat::Original
            } else {
                Compat::Fixed
            };
            listen.serve(TaskSource::Babyai { compat, seed }).await?
        }
        Command::Maze { listen } => listen.serve(TaskSource::Maze).await?,
        Command::Wordle { listen, seed } => listen.serve(TaskSource::Wordle { seed }).await?,
        Command::Doctor {
            url,
            task,
            leaks,
            clients,
            measure_s,
            call_timeout_s,
        } => {
            let options = DoctorOptions {
                leaks,
                clients,
                measure_s,
                call_timeout_s,
            };
            // As it goes: some servers take minutes to open a session.
            let told = |what: &str| eprintln!("{}", visible(what));
            let report = examine(spec(&task)?, &url, &options, told).await?;
            println!("{}", visible(&report.to_string()));
            return Ok(match report.verdict() {
                Verdict::Bad => ExitCode::FAILURE,
                _ => ExitCode::SUCCESS,
            });
        }
        Command::Demos {
            ids,
            instruction,
            style,
            env,
            source,
        } => {
            let source = match env {
                Some(address) => builtin::parse(&address)?.source,
                None => source.source()?,
            };
            let own = spec(source.env())?.instruction;
            let solver = Solver::new(&source, &style)?;
            demos(&solver, ids, instruction.as_deref().unwrap_or(own))?
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn demos(solver: &Solver, ids: Range<i64>, instruction: &str) -> Result<()> {
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
