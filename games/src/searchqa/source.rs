//! Selects questions and corpus: from an address or the options of the subcommand.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgAction, Args};

use super::demonstration::demonstration;
use super::scene::Desk;
use super::server::Searchqa;
use super::{Library, TOP_K};
use agentgym_envs::EnvError;
use agentgym_envs::builtin::options::{Address, number};
use agentgym_envs::builtin::registered::{
    ArgumentError, BuiltIn, GameTasks, OpenSolver, ReadProgress,
};
use agentgym_envs::demonstration::{Demonstration, Solver};
use agentgym_envs::files;
use agentgym_envs::replica::Replica;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::App;
use agentgym_envs::spec::EnvSpec;
use agentgym_envs::spec::games::searchqa::SPEC;

/// Questions over a corpus; without files, our own.
#[derive(Args, Clone, Debug)]
pub(crate) struct Source {
    /// JSON lines {"id", "contents"}; contents = title line, then text. Without it a small
    /// set of our own.
    #[arg(long, value_name = "FILE", requires = "questions")]
    corpus: Option<PathBuf>,
    /// JSON lines {"id", "question", "answers"}.
    #[arg(long, value_name = "FILE", requires = "corpus")]
    questions: Option<PathBuf>,
    /// Where the index is stored [default: next to the corpus].
    #[arg(long, value_name = "FILE", requires = "corpus")]
    index: Option<PathBuf>,
    /// Passages per search.
    #[arg(long, default_value_t = TOP_K, value_parser = number::<usize>)]
    top_k: usize,
    /// Show questions and passages in lower case.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    uncased: bool,
}

impl Source {
    fn library(&self, progress: impl FnMut(u64, u64)) -> Result<Library, EnvError> {
        let library = match self.corpus.as_ref().zip(self.questions.as_ref()) {
            None => Library::builtin(),
            Some((corpus, questions)) => {
                Library::open(corpus, questions, self.index.as_deref(), progress)?
            }
        };
        Ok(library.with_top_k(self.top_k).with_uncased(self.uncased))
    }
}

impl GameTasks for Source {
    fn check_files(&self) -> Result<(), EnvError> {
        let mut files = self.corpus.iter().chain(&self.questions);
        files.try_for_each(|path| {
            let found = files::regular(path).map(drop);
            found.map_err(|problem| EnvError::Corpus {
                path: path.clone(),
                problem,
            })
        })
    }

    fn app(
        &self,
        options: &ServerOptions,
        progress: ReadProgress<'_>,
    ) -> Result<Arc<dyn App>, EnvError> {
        let library = self.library(progress)?;
        Ok(Arc::new(Searchqa::new(Arc::new(library), options)))
    }

    fn solver(&self, style: &str) -> Result<OpenSolver<'_>, String> {
        if !style.trim().is_empty() {
            return Err(format!(
                "its solutions are told in one way; it knows no style {style:?}"
            ));
        }
        Ok(Box::new(|| {
            let library = self.library(|_, _| {})?;
            Ok(Arc::new(KnowsTheAnswer(library)))
        }))
    }

    fn replica(&self, item_id: i64) -> Result<Box<dyn Replica>, String> {
        // An index of files would be written beside them, and a large one takes minutes to read.
        if self.corpus.is_some() {
            return Err("its passages are in files, which are not opened for pictures".to_owned());
        }
        let library = self.library(|_, _| {}).map_err(|e| e.to_string())?;
        Ok(Box::new(Desk::new(library, item_id)?))
    }
}

/// Knows the answer, and searches until a passage contains it.
#[derive(Debug)]
struct KnowsTheAnswer(Library);

impl Solver for KnowsTheAnswer {
    fn demonstrate(&self, item_id: i64, instruction: &str) -> Option<Demonstration> {
        demonstration(&self.0, item_id, instruction)
    }
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve SearchQA: questions over a corpus, with BM25 search";
    const PORT: u16 = 36004;
    const ADDRESSES: &'static [Address] = &[Address::new(":searchqa")];
    type Arguments = Self;

    fn from_arguments(arguments: Self) -> Result<Self, ArgumentError> {
        Ok(arguments)
    }
}
