//! The source of tasks: an address or the options of the subcommand.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::book::RecipeBook;
use super::demonstration::{Style, demonstration};
use super::scene::Bench;
use super::server::Textcraft;
use super::task::Tasks;
use super::words::{Vocabulary, lexicon};
use super::world::DISTRACTORS_MAX;
use super::worlds::Worlds;
use agentgym_envs::EnvError;
use agentgym_envs::builtin::options::{Address, number, range};
use agentgym_envs::builtin::registered::{self, ArgumentError, BuiltIn, OpenSolver, ReadProgress};
use agentgym_envs::demonstration::{Demonstration, Solver};
use agentgym_envs::files;
use agentgym_envs::replica::Replica;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::App;
use agentgym_envs::spec::EnvSpec;
use agentgym_envs::spec::games::textcraft::SPEC;

/// The source of tasks.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Our own recipe table.
    Table {
        /// Most distractor lines per task.
        distractors_max: usize,
    },
    /// A folder of recipe files.
    Folder {
        /// The folder.
        path: PathBuf,
        /// A text file with the recipe files' names in loading order, one per line.
        order: Option<PathBuf>,
        /// Most distractor lines per task.
        distractors_max: usize,
    },
    /// Generated worlds.
    Worlds(Worlds),
}

impl Source {
    /// The tasks, after reading the files that they need.
    fn tasks(&self) -> Result<Tasks, EnvError> {
        let (book, distractors_max) = match self {
            Self::Worlds(worlds) => return Ok(Tasks::Worlds(worlds.clone())),
            Self::Table { distractors_max } => (RecipeBook::builtin(), *distractors_max),
            Self::Folder {
                path,
                order,
                distractors_max,
            } => (folder(path, order.as_deref())?, *distractors_max),
        };
        Ok(Tasks::Book {
            book: Arc::new(book),
            distractors_max,
        })
    }
}

fn folder(path: &Path, order: Option<&Path>) -> Result<RecipeBook, EnvError> {
    let Some(order) = order else {
        return RecipeBook::from_folder(path);
    };
    let text = files::read_text(order).map_err(|problem| EnvError::Recipes {
        path: order.to_owned(),
        problem,
    })?;
    let lines = text.lines().map(str::trim);
    let files: Vec<String> = lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    RecipeBook::from_files(path, &files)
}

impl registered::GameTasks for Source {
    fn check_files(&self) -> Result<(), EnvError> {
        let Self::Folder { path, order, .. } = self else {
            return Ok(());
        };
        let bad = |path: &Path, problem| EnvError::Recipes {
            path: path.to_owned(),
            problem,
        };
        if !path.is_dir() {
            return Err(bad(path, "there is no such folder".to_owned()));
        }
        order.as_deref().map_or(Ok(()), |order| {
            let found = files::regular(order).map(drop);
            found.map_err(|problem| bad(order, problem))
        })
    }

    fn app(&self, options: &ServerOptions, _: ReadProgress<'_>) -> Result<Arc<dyn App>, EnvError> {
        Ok(Arc::new(Textcraft::new(Arc::new(self.tasks()?), options)))
    }

    fn solver(&self, style: &str) -> Result<OpenSolver<'_>, String> {
        let style = style.parse()?;
        Ok(Box::new(move || {
            let tasks = self.tasks()?;
            Ok(Arc::new(KnowsTheBook { tasks, style }))
        }))
    }

    /// The text contains no recipe books, in particular not the built-in table, so that a model
    /// initialised from a seed has never seen the goals that it will be asked for.
    fn corpus_style(&self) -> Option<&'static str> {
        matches!(self, Self::Worlds(_)).then_some("thought")
    }

    fn replica(&self, item_id: i64) -> Result<Box<dyn Replica>, String> {
        let tasks = self.tasks().map_err(|e| e.to_string())?;
        Ok(Box::new(Bench::new(tasks.world(item_id))))
    }
}

#[derive(Debug)]
struct KnowsTheBook {
    tasks: Tasks,
    style: Style,
}

impl Solver for KnowsTheBook {
    fn demonstrate(&self, item_id: i64, instruction: &str) -> Option<Demonstration> {
        demonstration(&self.tasks.world(item_id), item_id, instruction, self.style)
    }
}

/// Without options: the built-in recipe table.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A folder of Minecraft recipe files instead of the built-in table.
    #[arg(long, value_name = "DIR", conflicts_with = "worlds")]
    recipes: Option<PathBuf>,
    /// Loading order of the folder's files, one name per line [default: by name].
    #[arg(long, value_name = "FILE", requires = "recipes")]
    order: Option<PathBuf>,
    /// Most distractor lines per task.
    #[arg(long, default_value_t = DISTRACTORS_MAX, value_parser = number::<usize>, conflicts_with = "worlds")]
    distractors: usize,
    /// Generated worlds of these depths, such as 1-3; a task's id is its seed.
    #[arg(long, value_name = "DEPTHS", value_parser = range)]
    worlds: Option<RangeInclusive<u32>>,
    /// Lines per generated world.
    #[arg(long, default_value = "4-8", value_parser = range, requires = "worlds")]
    lines: RangeInclusive<u32>,
    /// The words of generated worlds: of our list, or new ones for each world.
    #[arg(long, value_enum, default_value_t = Vocabulary::Lexicon, requires = "worlds")]
    words: Vocabulary,
}

/// The plain address.
const TABLE: Address = Address {
    suffix: "",
    options: &[("distractors", "distractors")],
    without: None,
};

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve TextCraft over HTTP until interrupted";
    const PORT: u16 = 36001;
    const ADDRESSES: &'static [Address] = &[
        TABLE,
        Address {
            suffix: ":table",
            ..TABLE
        },
        Address {
            suffix: ":worlds",
            options: &[("depths", "worlds"), ("lines", "lines"), ("words", "words")],
            without: Some("--worlds=1-3"),
        },
        Address {
            suffix: ":folder",
            options: &[
                ("path", "recipes"),
                ("order", "order"),
                ("distractors", "distractors"),
            ],
            without: Some("--recipes"),
        },
    ];
    type Arguments = Arguments;

    fn corpus_words() -> &'static [String] {
        lexicon()
    }

    fn from_arguments(arguments: Arguments) -> Result<Self, ArgumentError> {
        let distractors_max = arguments.distractors;
        Ok(match (arguments.worlds, arguments.recipes) {
            (Some(depths), _) => {
                let worlds = Worlds::new(depths, arguments.lines)?;
                Self::Worlds(worlds.with_vocabulary(arguments.words))
            }
            (None, Some(path)) => Self::Folder {
                path,
                order: arguments.order,
                distractors_max,
            },
            (None, None) => Self::Table { distractors_max },
        })
    }
}
