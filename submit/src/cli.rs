//! The grammar of the command line. `agentgym-submit run.yaml key=value…` is short for
//! `agentgym-submit run run.yaml key=value…`, the most frequent command.

mod line;

use crate::plan::moves::Rates;
use agentgym_jobs::pipeline::PartId;
use agentgym_model::Dtype;
use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

pub(crate) use line::completions;
pub use line::{grammar, parse, with_run};

/// Trains LLM agents on multi-turn tasks as durable jobs.
#[derive(Debug, Parser)]
#[command(
    name = "agentgym-submit",
    version = version(),
    arg_required_else_help = true,
    override_usage = "agentgym-submit [OPTIONS] RUN.YAML [KEY=VALUE]...\n       agentgym-submit [OPTIONS] COMMAND",
    after_help = "Exit codes: 0 done, 1 run stopped, 2 bad usage or config, 3 store, 4 unknown run or \
                  identity conflict, 5 environment or queue unreachable, \
                  6 GPU lost, 130 interrupted (resumable)."
)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The text that `--version` of both programs prints after the name.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        format!(
            "{} ({})",
            env!("AGENTGYM_BUILD"),
            agentgym_worker::features()
        )
    });
    &VERSION
}

/// Heading of the options that every command takes, so that its own stand apart.
const COMMON: &str = "Options of every command";

/// Options that every command takes.
#[derive(Debug, Clone, Default, Args)]
pub struct Global {
    /// Object store: a folder, s3://bucket/prefix or memory: [default: storage.url, else agentgym-data]
    #[arg(
        long,
        global = true,
        help_heading = COMMON,
        env = "AGENTGYM_STORE",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub store: Option<String>,
    /// Queue: sqlite:FILE or redis://…; one with a password belongs into AGENTGYM_QUEUE, since
    /// everybody on the machine sees command lines [default: queue.url, else a SQLite file beside the store]
    #[arg(
        long,
        global = true,
        help_heading = COMMON,
        env = "AGENTGYM_QUEUE",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub queue: Option<String>,
    /// Where workers in this process compute: cpu, cuda:N, or auto for a GPU where there is one;
    /// cpu:avx512 is cpu for bf16 alone
    #[arg(long, global = true, help_heading = COMMON, env = "AGENTGYM_DEVICE", default_value = "cpu")]
    pub device: String,
    /// What products read: f32, or bf16, which is faster and less exact, on a GPU or a processor
    /// with AVX-512 BF16. Given to export or import: the number format of the weights that it writes
    #[arg(
        long,
        global = true,
        help_heading = COMMON,
        env = "AGENTGYM_DTYPE",
        default_value_t,
        value_name = "TYPE"
    )]
    pub dtype: Dtype,
    /// Print one JSON document instead of text
    #[arg(long, global = true, help_heading = COMMON)]
    pub json: bool,
    /// No progress, only results and errors
    #[arg(long, short, global = true, help_heading = COMMON)]
    pub quiet: bool,
}

/// The commands. An alias is what other tools call the same.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a config, or carry on with it: start workers and follow to the end
    #[command(aliases = ["train", "start", "submit"])]
    Run(ConfigArgs),
    /// Evaluate the model of a config on its evaluation sets: avg@n, pass@k, by category
    #[command(aliases = ["evaluate"])]
    Eval(ConfigArgs),
    /// Show what a config would do, in one screen; touches nothing
    Plan(PlanArgs),
    /// What runs, what waits for what, what failed
    #[command(aliases = ["list", "ls", "ps", "runs"])]
    Status {
        /// Run id; without it, one line for every run of the store
        run: Option<String>,
    },
    /// Carry on a run from its stored plan; bindings may change
    #[command(aliases = ["continue", "restart"])]
    Resume {
        /// Run id
        run: String,
        /// Bindings to change, e.g. jobs.threads=4
        #[arg(value_name = "KEY=VALUE")]
        overrides: Vec<String>,
    },
    /// Keep looking: what `status` says, anew every two seconds, until the run ends
    #[command(aliases = ["follow", "logs"])]
    Watch {
        /// Run id
        run: String,
    },
    /// Why a run, or one of its parts, is not further
    Why {
        /// Run id
        run: String,
        /// A part, e.g. 3/rollout/0; without it, what the next policy waits for
        #[arg(value_name = "ITERATION/STAGE/PART")]
        part: Option<PartId>,
    },
    /// Put a run on hold, wherever its workers are; nothing is lost
    #[command(aliases = ["stop", "kill"])]
    Cancel {
        /// Run id
        run: String,
    },
    /// Give the parts of a run their attempts back and let workers elsewhere go on
    Retry {
        /// Run id
        run: String,
        /// Bindings to change, e.g. jobs.failures_max=10
        #[arg(value_name = "KEY=VALUE")]
        overrides: Vec<String>,
    },
    /// A new run that goes on from an iteration of another one, under other keys
    Fork(ForkArgs),
    /// Look inside a run, an iteration, a stage or a part
    #[command(aliases = ["show"])]
    Inspect(InspectArgs),
    /// Why an episode's tokens train with their advantages: the formula and its numbers,
    /// computed anew and compared with what the update read
    Credit(CreditArgs),
    /// Who has worked on a run, or on every unfinished one: host, device, part, price
    Workers {
        /// Run id; without it, the workers of every unfinished run
        run: Option<String>,
    },
    /// What a run has cost: useful, lost and idle time and money, by stage and worker
    Ledger {
        /// Run id
        run: String,
    },
    /// List episodes: the best, the worst, or those that meet conditions
    Episodes(EpisodesArgs),
    /// Two policies on the same tasks: which were gained and lost, and an exact test
    Compare(CompareArgs),
    /// Look at runs in a browser: episodes, curves, credit, workers; changes nothing. With --bundle,
    /// a run's pages become one file to send or to keep
    #[command(aliases = ["ui", "dashboard"])]
    View(ViewArgs),
    /// Talk to a policy, or have it judged: OpenAI's HTTP API over our engine
    Serve(ServeArgs),
    /// Write an iteration as plain files (policies, optimizer, trajectories, minibatches),
    /// or a run's episodes as conversations to train on
    Export(ExportArgs),
    /// Make a model's folder of a GGUF file, which every other command takes
    Import(ImportArgs),
    /// What a model's folder holds, whether it is whole, and what can be done with it here
    CheckModel {
        /// A folder in Hugging Face's layout, or the hub id of a model in the hub tools' cache
        folder: String,
    },
    /// Fetch a model of the Hugging Face hub, which runs find by its id (only with the feature `hub`)
    Pull {
        /// Id of the model, such as Qwen/Qwen2.5-0.5B-Instruct
        #[arg(value_name = "OWNER/NAME")]
        id: String,
        /// Branch, tag or commit [default: main]
        #[arg(long)]
        revision: Option<String>,
    },
    /// Write a model's folder to a repository of the Hugging Face hub (only with the feature `hub`)
    Push(PushArgs),
    /// The digest of everything a run has committed
    Digest {
        /// Run id
        run: String,
    },
    /// Read everything a run has committed, against its digests: what is damaged, missing or foreign
    Verify {
        /// Run id
        run: String,
    },
    /// Print a script that completes commands and options, for a shell to read
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write a man page for every command into a folder
    Man {
        /// The folder; made if missing
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// The table of config keys
    Keys {
        /// Only keys whose path contains this
        filter: Option<String>,
    },
    /// Table and plot of a run so far; writes metrics.jsonl and TensorBoard events
    Metrics {
        /// Run id
        run: String,
    },
}

/// A config file and its overrides.
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    /// The run config
    #[arg(value_name = "RUN.YAML")]
    pub config: PathBuf,
    /// Overrides, e.g. run.seed=2; AgentGym-RL's key paths work
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
}

/// What `plan` shows, and whether it asks servers.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Ask every environment address whether it is what its name says and opens the plan's last item
    #[arg(long)]
    pub check: bool,
    /// Measure a small first iteration also where that takes minutes
    #[arg(long)]
    pub trial: bool,
    #[command(flatten)]
    pub(crate) rates: Rates,
}

/// Where a new run begins.
#[derive(Debug, Clone, Args)]
pub struct ForkArgs {
    /// Run id of the parent
    pub run: String,
    /// The last iteration that is taken over; 0 is the start policy
    #[arg(long)]
    pub iteration: u32,
    /// Leave the optimizer's state behind; needed where retention has removed it
    #[arg(long)]
    pub fresh_optimizer: bool,
    /// Show what the fork would do, as `plan` does, and whether it can; writes and starts nothing
    #[arg(long)]
    pub dry_run: bool,
    /// What is to be different, e.g. actor_rollout_ref.actor.optim.lr=1e-5
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
}

/// What to write.
#[derive(Debug, Clone, Args)]
pub struct ExportArgs {
    /// Run id
    pub run: String,
    /// Iteration; 0 is the start policy
    #[arg(long, required_unless_present = "trajectories")]
    pub iteration: Option<u32>,
    /// Folder to write; made if missing, must be empty
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present = "trajectories",
        conflicts_with = "trajectories"
    )]
    pub to: Option<PathBuf>,
    /// Of a run that trains an adapter: the adapter alone, without the policies with it
    #[arg(long, conflicts_with = "trajectories")]
    pub adapter: bool,
    /// Also the reference policy, from which divergences are measured
    #[arg(long, conflicts_with = "trajectories")]
    pub reference: bool,
    /// Also the optimizer's state after the iteration
    #[arg(long, conflicts_with = "trajectories")]
    pub optimizer: bool,
    /// Most bytes of a weight file, such as 500MB; larger models become shards [default: 4GB]
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with = "trajectories",
        value_parser = crate::text::bytes_of
    )]
    pub shard_size: Option<usize>,
    /// `--dtype`, where it was given: f32 or bf16 [default: trainer.save_dtype]. Its environment
    /// variable is about computing and does not count here.
    #[arg(skip)]
    pub save_dtype: Option<Dtype>,
    /// Instead: the episodes as a new JSON file in AgentTraj-L's format, which sft and dpo runs read
    #[arg(long, value_name = "FILE")]
    pub trajectories: Option<PathBuf>,
    /// Of these, only episodes of this stage: rollout, filter, evaluate or evaluate_init
    /// [default: rollout, or evaluate where nothing is rolled out]
    #[arg(long, requires = "trajectories")]
    pub stage: Option<String>,
    /// Only solved episodes
    #[arg(long, requires = "trajectories")]
    pub success: bool,
    /// Only episodes with at least this reward
    #[arg(
        long,
        value_name = "REWARD",
        requires = "trajectories",
        allow_negative_numbers = true
    )]
    pub reward_min: Option<f64>,
}

/// What to import.
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// A model of the families that train here, in one GGUF file
    #[arg(value_name = "FILE.gguf")]
    pub file: PathBuf,
    /// Folder to write; must be empty or new
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// `--dtype`, where it was given: f32 or bf16. Its environment variable is about computing and
    /// does not count here.
    #[arg(skip)]
    pub save_dtype: Dtype,
}

/// What to write to the hub.
#[derive(Debug, Clone, Args)]
pub struct PushArgs {
    /// The folder of a model, as `export` writes it
    pub folder: PathBuf,
    /// The repository; made if missing
    #[arg(long, value_name = "OWNER/NAME")]
    pub to: String,
    /// If it is made, everybody sees it [default: private]
    #[arg(long)]
    pub public: bool,
    /// Message of the commit
    #[arg(long, default_value = "A policy trained with agentgym-submit")]
    pub message: String,
}

/// What to look at.
#[derive(Debug, Clone, Args)]
pub struct InspectArgs {
    /// Run id
    pub run: String,
    /// Iteration; 0 makes the start policy
    pub iteration: Option<u32>,
    /// Stage, such as rollout, advantage, update, evaluate
    pub stage: Option<String>,
    /// Part of the stage
    pub part: Option<u32>,
    /// One JSON record per line: an episode, a training sequence, a minibatch
    #[arg(long)]
    pub jsonl: bool,
    /// Only the episodes of this group (draw index)
    #[arg(long)]
    pub group: Option<u32>,
    /// Only this sample of each group
    #[arg(long)]
    pub sample: Option<u32>,
    /// Show every token: id, text, masks, log-probs, advantage
    #[arg(long)]
    pub tokens: bool,
}

/// Which episodes.
#[derive(Debug, Clone, Args)]
pub struct EpisodesArgs {
    /// Run id
    pub run: String,
    /// Highest reward first; of equal ones the newest and shortest
    #[arg(long, group = "preset")]
    pub best: bool,
    /// Lowest reward first; of equal ones the newest, most spoilt and longest
    #[arg(long, group = "preset")]
    pub worst: bool,
    /// Failed samples of tasks that the greedy episode of the same evaluation solves
    #[arg(long, group = "preset")]
    pub unlucky: bool,
    /// Episodes that say the same three turns in a row or more
    #[arg(long, group = "preset")]
    pub loops: bool,
    /// Only where a field has this value: env, task, outcome, stage, worker, parse, finish, greedy; reward,
    /// advantage, turns, length, iteration, group, sample, each with _min and _max too. May be repeated
    #[arg(long = "where", value_name = "KEY=VALUE")]
    pub conditions: Vec<String>,
    /// Only episodes in which this text was said or answered
    #[arg(long)]
    pub text: Option<String>,
    /// Sort by reward, advantage, length, turns, surprise, mismatch or iteration; -reward for the
    /// largest first
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true, conflicts_with_all = ["best", "worst"])]
    pub sort: Option<String>,
    /// How many to list
    #[arg(long, default_value_t = 10, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// Two policies, or one and some others.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// RUN or RUN:ITERATION; without an iteration its last evaluation
    #[arg(value_name = "A")]
    pub a: String,
    /// The other one
    #[arg(value_name = "B")]
    pub b: String,
    /// Further ones: a table with a line for each, beside A
    #[arg(value_name = "MORE")]
    pub more: Vec<String>,
}

/// What to look at, and where.
#[derive(Debug, Clone, Args)]
pub struct ViewArgs {
    /// Run id; without it, every run of the store
    pub run: Option<String>,
    /// Port to listen on; 0 for a free one [default: 7576, or the next one that is free]
    #[arg(long)]
    pub port: Option<u16>,
    /// Address to listen on; others than this machine's own make the data readable to everybody
    /// who has the printed URL
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Only print the URL
    #[arg(long)]
    pub no_open: bool,
    /// Write the run's pages into this folder instead, as one file to send or to keep: it needs no
    /// server and no store
    #[arg(long, value_name = "DIR")]
    pub bundle: Option<PathBuf>,
}

/// Which policy, and where.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Run id, or the folder of a model
    #[arg(value_name = "RUN|FOLDER")]
    pub policy: String,
    /// Of a run: the iteration that made the policy; 0 is the start policy [default: the newest]
    #[arg(long)]
    pub iteration: Option<u32>,
    /// Address and port to listen on; port 0 for a free one
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS:PORT")]
    pub addr: SocketAddr,
    /// Sequences that are generated at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub rows: u32,
    /// Tokens whose keys and values are kept; a sequence needs as many as its prompt and max_tokens
    #[arg(long, default_value_t = 65536, value_name = "TOKENS")]
    pub cache_tokens: u32,
    /// Sequences that may wait; further requests are told to come again
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub waiting: u32,
}

/// Whose credit.
#[derive(Debug, Clone, Args)]
pub struct CreditArgs {
    /// Run id
    pub run: String,
    /// Iteration, from 1; 0 for the pairs of a preference run
    pub iteration: u32,
    /// The episode: group × n + sample, or GROUP/SAMPLE; the number of a pair. Without it, a line
    /// for every episode
    #[arg(long, value_name = "K")]
    pub episode: Option<String>,
    /// The tokens that pull most on the update's first step, |∂loss/∂log p| · (1 − p)
    #[arg(long, conflicts_with = "episode")]
    pub pull: bool,
}

#[cfg(test)]
mod tests {
    use super::line::GROUPS;
    use super::*;
    use clap::CommandFactory;
    use std::ffi::OsString;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(with_run(line.split(' ').map(OsString::from)))
    }

    #[test]
    fn the_grammar_is_sound() {
        grammar().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let count = grouped.iter().filter(|known| **known == name).count();
            assert_eq!(count, 1, "{name}");
        }
        let help = super::parse(["agentgym-submit", "--help"].map(OsString::from));
        let help = help.unwrap_err().to_string();
        for said in [
            "Look inside:",
            "  episodes     List",
            "--store <URL>",
            "Exit codes",
        ] {
            assert!(help.contains(said), "{said} in {help}");
        }
        let help = super::parse(["agentgym-submit", "fork", "--help"].map(OsString::from));
        let help = help.unwrap_err().to_string();
        let (own, common) = help.split_once(COMMON).unwrap();
        assert!(
            own.contains("--dry-run") && !own.contains("--store"),
            "{help}"
        );
        assert!(
            common.contains("--store") && !common.contains("--dry-run"),
            "{help}"
        );
    }

    #[test]
    fn shells_complete_every_command() {
        use clap::ValueEnum as _;
        for shell in clap_complete::Shell::value_variants() {
            let script = String::from_utf8(completions(*shell)).unwrap();
            for word in ["episodes", "ledger", "dry-run"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn a_config_alone_means_run() {
        for line in [
            "agentgym-submit configs/a.yaml run.seed=2 data.seed=3",
            "agentgym-submit run configs/a.yaml run.seed=2 data.seed=3",
            "agentgym-submit --quiet --store memory: configs/a.yaml run.seed=2 data.seed=3",
            "agentgym-submit --device cuda:0 --dtype=bf16 configs/a.yaml run.seed=2 data.seed=3",
            "agentgym-submit --queue q.db -q --device auto --json configs/a.yaml run.seed=2 data.seed=3",
        ] {
            let Command::Run(args) = parse(line).unwrap().command else {
                panic!("{line} is not a run");
            };
            assert_eq!(args.config, PathBuf::from("configs/a.yaml"), "{line}");
            assert_eq!(args.overrides, ["run.seed=2", "data.seed=3"], "{line}");
        }
    }

    #[test]
    fn export_takes_the_number_format_from_its_own_line_alone() {
        for (line, expected) in [
            ("agentgym-submit export r --iteration 1 --to d", None),
            (
                "agentgym-submit export r --iteration 1 --to d --dtype bf16",
                Some(Dtype::Bf16),
            ),
            (
                "agentgym-submit --dtype f32 export r --iteration 1 --to d",
                Some(Dtype::F32),
            ),
        ] {
            let cli = super::parse(line.split(' ').map(OsString::from)).unwrap();
            let Command::Export(args) = cli.command else {
                panic!("{line} is not an export");
            };
            assert_eq!(args.save_dtype, expected, "{line}");
        }
        let line = "agentgym-submit export r --iteration 1 --to d --shard-size 500apples";
        let error = parse(line).unwrap_err().to_string();
        assert!(error.contains("500MB"), "{error}");
    }

    #[test]
    fn a_path_is_a_config_even_where_nothing_is() {
        for path in ["configs/nothing-here", "/nowhere", "./x", "src"] {
            let Command::Run(args) = parse(&format!("agentgym-submit {path}")).unwrap().command
            else {
                panic!("{path} is not a run");
            };
            assert_eq!(args.config, PathBuf::from(path));
        }
    }

    #[test]
    fn global_options_stand_anywhere() {
        let cli = parse("agentgym-submit status --json --store s3://b/p r1").unwrap();
        assert!(cli.global.json);
        assert_eq!(cli.global.store.as_deref(), Some("s3://b/p"));
        assert!(matches!(cli.command, Command::Status { run: Some(run) } if run == "r1"));
    }

    #[test]
    fn a_mistyped_command_is_not_taken_for_a_config() {
        let error = parse("agentgym-submit statsu").unwrap_err().to_string();
        assert!(error.contains("status"), "{error}");
        // Nor before a command of the grammar itself, nor for an option without its value.
        for line in ["agentgym-submit help run", "agentgym-submit --store"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
