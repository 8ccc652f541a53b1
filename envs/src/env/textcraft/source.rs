//! The source of tasks: an address or the options of the subcommand.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::book::RecipeBook;
use super::demonstration::{Style, demonstration};
use super::scene::Bench;
use super::server::Textcraft;
use super::spec::SPEC;
use super::task::Tasks;
use super::words::Vocabulary;
use super::world::DISTRACTORS_MAX;
use super::worlds::Worlds;
use crate::builtin::options::{AddressOptions, range};
use crate::builtin::registered::{self, ArgumentError, BuiltIn, OpenSolver, Progress};
use crate::demonstration::{Demonstration, Solver};
use crate::error::EnvError;
use crate::files;
use crate::replica::Replica;
use crate::server::ServerOptions;
use crate::server::http::App;
use crate::spec::EnvSpec;

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

impl registered::Tasks for Source {
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

    fn app(&self, options: &ServerOptions, _: Progress<'_>) -> Result<Arc<dyn App>, EnvError> {
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
    #[arg(long, default_value_t = DISTRACTORS_MAX, conflicts_with = "worlds")]
    distractors: usize,
    /// Generated worlds of these depths, such as 1-3; a task's id is its seed.
    #[arg(long, value_name = "DEPTHS")]
    worlds: Option<String>,
    /// Lines per generated world.
    #[arg(long, default_value = "4-8", requires = "worlds")]
    lines: String,
    /// Invent new words for each generated world.
    #[arg(long, requires = "worlds")]
    wide_words: bool,
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve TextCraft over HTTP until interrupted";
    const PORT: u16 = 36001;
    const ADDRESSES: &'static [&'static str] = &["", ":table", ":worlds", ":folder"];
    type Arguments = Arguments;

    fn from_address(name: &str, options: &mut AddressOptions) -> Result<Self, EnvError> {
        if name == ":worlds" {
            let depths = options.range("depths", "1-3")?;
            let lines = options.range("lines", "4-8")?;
            let words = [("lexicon", Vocabulary::Lexicon), ("wide", Vocabulary::Wide)];
            let vocabulary = options.choice("words", words)?;
            let worlds = Worlds::new(depths, lines)?;
            return Ok(Self::Worlds(worlds.with_vocabulary(vocabulary)));
        }
        let folder = match name {
            ":folder" => {
                let path = options.take("path").map(PathBuf::from);
                let path = path.ok_or_else(|| options.bad("option \"path\" is needed"))?;
                Some((path, options.take("order").map(PathBuf::from)))
            }
            _ => None,
        };
        let distractors_max = options.number("distractors", DISTRACTORS_MAX as u64)? as usize;
        Ok(match folder {
            None => Self::Table { distractors_max },
            Some((path, order)) => Self::Folder {
                path,
                order,
                distractors_max,
            },
        })
    }

    fn from_arguments(arguments: Arguments) -> Result<Self, ArgumentError> {
        let distractors_max = arguments.distractors;
        let read = |option: &str, text: &str, example: &str| {
            range(text)
                .ok_or_else(|| format!("{option} {text}: expected a range such as {example}"))
        };
        Ok(match (arguments.worlds, arguments.recipes) {
            (Some(depths), _) => {
                let depths = read("--worlds", &depths, "1-3")?;
                let lines = read("--lines", &arguments.lines, "4-8")?;
                let vocabulary = match arguments.wide_words {
                    true => Vocabulary::Wide,
                    false => Vocabulary::Lexicon,
                };
                Self::Worlds(Worlds::new(depths, lines)?.with_vocabulary(vocabulary))
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
