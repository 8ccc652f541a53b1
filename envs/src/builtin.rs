//! The servers inside this process, by address.
//!
//! TextCraft: `builtin` is our own recipe table,
//! `builtin:worlds?depths=1-3&lines=4-8&words=lexicon` generated worlds,
//! `builtin:folder?path=DIR` a folder of recipe files. The others:
//! `builtin:babyai?compat=fixed&seed=0`, `builtin:maze`, `builtin:wordle?seed=0`, `builtin:searchqa?corpus=FILE&questions=FILE&top_k=3` (without
//! files: our own passages). They listen on a free loopback port and are spoken to over HTTP
//! like any other server.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::env::babyai::Compat;
use crate::env::searchqa::{Library, TOP_K};
use crate::env::textcraft::{DISTRACTORS_MAX, RecipeBook, Tasks, Vocabulary, Worlds};
use crate::error::EnvError;
use crate::files;
use crate::server::{Served, ServerHandle, ServerOptions, serve};

const SCHEME: &str = "builtin";

/// Whether an environment address means the built-in server.
pub fn is_builtin(address: &str) -> bool {
    address == SCHEME
        || address
            .strip_prefix(SCHEME)
            .is_some_and(|rest| rest.starts_with([':', '?']))
}

/// What a built-in address asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltinAddress {
    /// Where tasks come from.
    pub source: TaskSource,
    /// Limits of the server.
    pub options: ServerOptions,
}

/// Where tasks come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskSource {
    /// Our own recipe table.
    Table {
        /// Lines per task, at most, that do not serve the goal.
        distractors_max: usize,
    },
    /// A folder of recipe files.
    Folder {
        /// The folder.
        path: PathBuf,
        /// A text file with the recipe files' names in loading order, one a line.
        order: Option<PathBuf>,
        /// Lines per task, at most, that do not serve the goal.
        distractors_max: usize,
    },
    /// Generated worlds.
    Worlds(Worlds),
    /// Grids of rooms.
    Babyai {
        /// Which habits of the original are kept.
        compat: Compat,
        /// Mixed into every world.
        seed: u64,
    },
    /// The maze.
    Maze,
    /// Wordle.
    Wordle {
        /// Mixed into every game.
        seed: u64,
    },
    /// Questions over a corpus.
    Searchqa {
        /// Corpus and questions; our own without them.
        files: Option<(PathBuf, PathBuf)>,
        /// Where the index is kept; beside the corpus without it.
        index: Option<PathBuf>,
        /// Passages per search.
        top_k: usize,
        /// Whether questions and passages are shown in lower case.
        uncased: bool,
    },
}

impl TaskSource {
    /// The environment that these are tasks of.
    pub fn env(&self) -> &'static str {
        match self {
            Self::Table { .. } | Self::Folder { .. } | Self::Worlds(_) => "textcraft",
            Self::Babyai { .. } => "babyai",
            Self::Maze => "maze",
            Self::Wordle { .. } => "wordle",
            Self::Searchqa { .. } => "searchqa",
        }
    }

    /// Looks at the files that a server of these tasks would read, without opening one.
    pub fn check_files(&self) -> Result<(), EnvError> {
        match self {
            Self::Folder { path, order, .. } => {
                if !path.is_dir() {
                    return Err(EnvError::Recipes {
                        path: path.clone(),
                        problem: "there is no such folder".to_owned(),
                    });
                }
                order.as_deref().map_or(Ok(()), |order| {
                    files::regular(order)
                        .map(drop)
                        .map_err(|problem| EnvError::Recipes {
                            path: order.to_owned(),
                            problem,
                        })
                })
            }
            Self::Searchqa {
                files: Some((corpus, questions)),
                ..
            } => [corpus, questions].into_iter().try_for_each(|path| {
                files::regular(path)
                    .map(drop)
                    .map_err(|problem| EnvError::Corpus {
                        path: path.clone(),
                        problem,
                    })
            }),
            _ => Ok(()),
        }
    }

    /// Reads what a server of these tasks needs. `progress` is told how many bytes of how many
    /// a first reading of a corpus has behind it.
    pub fn served(&self, progress: impl FnMut(u64, u64)) -> Result<Served, EnvError> {
        Ok(match self {
            Self::Babyai { compat, seed } => Served::Babyai {
                compat: *compat,
                seed: *seed,
            },
            Self::Maze => Served::Maze,
            Self::Wordle { seed } => Served::Wordle { seed: *seed },
            Self::Searchqa { .. } => Served::Searchqa(Arc::new(self.library(progress)?)),
            _ => Served::Textcraft(Arc::new(self.tasks()?)),
        })
    }

    /// SearchQA's passages and questions. `progress` as in [`Self::served`].
    pub(crate) fn library(&self, progress: impl FnMut(u64, u64)) -> Result<Library, EnvError> {
        let Self::Searchqa {
            files,
            index,
            top_k,
            uncased,
        } = self
        else {
            return Err(EnvError::Address {
                address: format!("{SCHEME}:{}", self.env()),
                problem: "this environment has no passages".to_owned(),
            });
        };
        let library = match files {
            None => Library::builtin(),
            Some((corpus, questions)) => {
                Library::open(corpus, questions, index.as_deref(), progress)?
            }
        };
        Ok(library.with_top_k(*top_k).with_uncased(*uncased))
    }

    /// TextCraft's tasks, with what has to be read for them.
    pub fn tasks(&self) -> Result<Tasks, EnvError> {
        let (book, distractors_max) = match self {
            Self::Worlds(worlds) => return Ok(Tasks::Worlds(worlds.clone())),
            other @ (Self::Babyai { .. }
            | Self::Maze
            | Self::Wordle { .. }
            | Self::Searchqa { .. }) => {
                return Err(EnvError::Address {
                    address: format!("{SCHEME}:{}", other.env()),
                    problem: "this environment has no solver; demonstrations for it come from a \
                              file"
                        .to_owned(),
                });
            }
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
    let files: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    RecipeBook::from_files(path, &files)
}

/// Reads a built-in address; nothing is opened or started.
pub fn parse(address: &str) -> Result<BuiltinAddress, EnvError> {
    let bad = |problem: String| EnvError::Address {
        address: address.to_owned(),
        problem,
    };
    let rest = address
        .strip_prefix(SCHEME)
        .ok_or_else(|| bad(format!("it does not begin with {SCHEME:?}")))?;
    let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut options = Options {
        pairs: url::form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect(),
        known: Vec::new(),
    };
    let mut source = match name {
        "" | ":table" => TaskSource::Table {
            distractors_max: DISTRACTORS_MAX,
        },
        ":folder" => TaskSource::Folder {
            path: options
                .take("path")
                .map(PathBuf::from)
                .ok_or_else(|| bad("option \"path\" is needed".to_owned()))?,
            order: options.take("order").map(PathBuf::from),
            distractors_max: DISTRACTORS_MAX,
        },
        ":worlds" => {
            let depths = options.take("depths").unwrap_or_else(|| "1-3".to_owned());
            let lines = options.take("lines").unwrap_or_else(|| "4-8".to_owned());
            let depths = range(&depths).ok_or_else(|| bad(not_a_range("depths", &depths)))?;
            let lines = range(&lines).ok_or_else(|| bad(not_a_range("lines", &lines)))?;
            let words = options
                .take("words")
                .unwrap_or_else(|| "lexicon".to_owned());
            let vocabulary = match words.as_str() {
                "lexicon" => Vocabulary::Lexicon,
                "wide" => Vocabulary::Wide,
                other => {
                    return Err(bad(format!(
                        "option \"words\" is {other:?}; expected lexicon or wide"
                    )));
                }
            };
            TaskSource::Worlds(Worlds::new(depths, lines)?.with_vocabulary(vocabulary))
        }
        ":babyai" => TaskSource::Babyai {
            compat: match options.take("compat").as_deref() {
                None | Some("fixed") => Compat::Fixed,
                Some("original") => Compat::Original,
                Some(other) => {
                    return Err(bad(format!(
                        "option \"compat\" is {other:?}; expected fixed or original"
                    )));
                }
            },
            seed: options.number("seed", 0).map_err(bad)?,
        },
        ":maze" => TaskSource::Maze,
        ":wordle" => TaskSource::Wordle {
            seed: options.number("seed", 0).map_err(bad)?,
        },
        ":searchqa" => {
            let corpus = options.take("corpus").map(PathBuf::from);
            let questions = options.take("questions").map(PathBuf::from);
            let files = match (corpus, questions) {
                (None, None) => None,
                (Some(corpus), Some(questions)) => Some((corpus, questions)),
                _ => {
                    let problem = "options \"corpus\" and \"questions\" belong together";
                    return Err(bad(problem.to_owned()));
                }
            };
            TaskSource::Searchqa {
                files,
                index: options.take("index").map(PathBuf::from),
                top_k: options.number("top_k", TOP_K as u64).map_err(bad)? as usize,
                uncased: match options.take("uncased").as_deref() {
                    None | Some("false") => false,
                    Some("true") => true,
                    Some(other) => {
                        return Err(bad(format!(
                            "option \"uncased\" is {other:?}; expected true or false"
                        )));
                    }
                },
            }
        }
        other => {
            return Err(bad(format!(
                "{other:?} is not one of :table, :worlds, :folder, :babyai, :maze, :wordle, :searchqa"
            )));
        }
    };
    if let TaskSource::Table { distractors_max }
    | TaskSource::Folder {
        distractors_max, ..
    } = &mut source
    {
        *distractors_max = options
            .number("distractors", DISTRACTORS_MAX as u64)
            .map_err(bad)? as usize;
    }
    let limits = ServerOptions::default();
    // Its port is taken anew with each start, so that the numbers may begin with 0.
    let limits = ServerOptions {
        session_ttl_s: options.number("ttl_s", limits.session_ttl_s).map_err(bad)?,
        sessions_max: options
            .number("sessions_max", limits.sessions_max as u64)
            .map_err(bad)? as usize,
        first_id: limits.first_id,
    };
    if let Some((unknown, _)) = options.pairs.first() {
        return Err(bad(format!(
            "unknown option {unknown:?}; known here: {}",
            options.known.join(", ")
        )));
    }
    Ok(BuiltinAddress {
        source,
        options: limits,
    })
}

/// Starts the server that an address asks for.
pub async fn start(address: &str) -> Result<ServerHandle, EnvError> {
    let BuiltinAddress { source, options } = parse(address)?;
    let told = |done: u64, total: u64| tracing::info!(done, total, "reading the corpus, bytes");
    let served = tokio::task::spawn_blocking(move || source.served(told))
        .await
        .expect("reading tasks does not panic")?;
    serve(served, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), options).await
}

/// `2` or `1-3`.
pub fn range(text: &str) -> Option<RangeInclusive<u32>> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    Some(low.trim().parse().ok()?..=high.trim().parse().ok()?)
}

fn not_a_range(name: &str, text: &str) -> String {
    format!("option {name:?} is {text:?}; expected a number or a range such as 1-3")
}

struct Options {
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl Options {
    fn take(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        let at = self.pairs.iter().position(|(key, _)| key == name)?;
        Some(self.pairs.remove(at).1)
    }

    fn number(&mut self, name: &'static str, default: u64) -> Result<u64, String> {
        match self.take(name) {
            None => Ok(default),
            Some(text) => text
                .parse()
                .map_err(|_| format!("option {name:?} is {text:?}; expected a number")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_say_where_tasks_come_from() {
        assert!(is_builtin("builtin") && is_builtin("builtin:worlds?depths=2"));
        assert!(!is_builtin("http://builtin") && !is_builtin("builtins"));
        let worlds = parse("builtin:worlds?depths=2-4&lines=6-9&ttl_s=7").expect("valid");
        let expected = Worlds::new(2..=4, 6..=9).expect("possible");
        assert_eq!(worlds.source, TaskSource::Worlds(expected));
        assert_eq!(worlds.options.session_ttl_s, 7);
        let folder = parse("builtin:folder?path=/a%20b&distractors=3").expect("valid");
        assert_eq!(
            folder.source,
            TaskSource::Folder {
                path: "/a b".into(),
                order: None,
                distractors_max: 3
            }
        );
    }

    #[test]
    fn what_is_wrong_with_an_address_is_named() {
        for (address, words) in [
            ("builtin:words", "\":words\" is not one of"),
            (
                "builtin?depths=1",
                "unknown option \"depths\"; known here: distractors",
            ),
            ("builtin:folder", "option \"path\" is needed"),
            (
                "builtin:worlds?depths=deep",
                "option \"depths\" is \"deep\"",
            ),
            ("builtin:worlds?depths=0-3", "depths 0-3 are not possible"),
            ("builtin?ttl_s=soon", "option \"ttl_s\" is \"soon\""),
            ("builtin:searchqa?corpus=a", "belong together"),
            ("builtin:searchqa?uncased=a", "expected true or false"),
            ("builtin:maze?seed=1", "unknown option \"seed\""),
        ] {
            let message = parse(address).expect_err(address).to_string();
            assert!(message.contains(words), "{message}");
        }
    }
}
