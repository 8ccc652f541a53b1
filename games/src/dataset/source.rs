//! Selects file and rule: from an address or the options of the subcommand.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::grade::Grade;
use super::rows::{self, Columns};
use super::server::{DatasetServer, Questions};
use agentgym_envs::EnvError;
use agentgym_envs::builtin::options::Address;
use agentgym_envs::builtin::registered::{
    ArgumentError, BuiltIn, GameTasks, OpenSolver, ReadProgress,
};
use agentgym_envs::demonstration::{Demonstration, Solver, Talk};
use agentgym_envs::files;
use agentgym_envs::replica::Replica;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::App;
use agentgym_envs::spec::games::dataset::SPEC;
use agentgym_envs::spec::{EnvSpec, first_message};

/// Rows of a file.
#[derive(Args, Clone, Debug)]
pub(crate) struct Source {
    /// JSON lines, or one JSON array: {"prompt", "answer"}, and "id" where rows may move.
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// How replies are graded.
    #[arg(long, value_enum, default_value = "exact")]
    grade: Grade,
    /// The column of the prompt [default: prompt, question, messages or problem].
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// The column of the answer [default: answer, answers or target].
    #[arg(long, value_name = "NAME")]
    answer: Option<String>,
    /// The column of the id [default: id].
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// BLAKE3 of the file; another file is refused.
    #[arg(long, value_name = "HEX")]
    digest: Option<String>,
}

impl Source {
    fn bad(&self, problem: String) -> EnvError {
        EnvError::Questions {
            path: self.file.clone(),
            problem,
        }
    }

    fn questions(&self) -> Result<Questions, EnvError> {
        let text = files::read_text(&self.file).map_err(|why| self.bad(why))?;
        if let Some(planned) = &self.digest {
            let digest = blake3::hash(text.as_bytes()).to_hex();
            if **planned != *digest {
                return Err(self.bad(format!(
                    "is another file than the run was planned with (BLAKE3 {digest}, planned {planned}); put that one \
                     back, or begin another run with this one"
                )));
            }
        }
        let columns = Columns {
            prompt: self.prompt.clone(),
            answer: self.answer.clone(),
            id: self.id.clone(),
        };
        let rows = rows::read(&text, &columns, self.grade).map_err(|why| self.bad(why))?;
        Ok(Questions { rows })
    }
}

impl GameTasks for Source {
    fn check_files(&self) -> Result<(), EnvError> {
        files::regular(&self.file)
            .map(drop)
            .map_err(|why| self.bad(why))
    }

    fn items(&self) -> Result<Option<Vec<i64>>, EnvError> {
        Ok(Some(self.questions()?.rows.into_keys().collect()))
    }

    fn app(&self, options: &ServerOptions, _: ReadProgress<'_>) -> Result<Arc<dyn App>, EnvError> {
        let questions = Arc::new(self.questions()?);
        Ok(Arc::new(DatasetServer::new(questions, options)))
    }

    fn solver(&self, style: &str) -> Result<OpenSolver<'_>, String> {
        if !style.trim().is_empty() {
            return Err(format!(
                "the file's answers are shown as they are; it knows no style {style:?}"
            ));
        }
        if self.grade == Grade::Regex {
            return Err(
                "its answers are regular expressions, which are nothing to imitate".to_owned(),
            );
        }
        Ok(Box::new(|| Ok(Arc::new(Answers(self.questions()?)))))
    }

    fn corpus_style(&self) -> Option<&'static str> {
        (self.grade != Grade::Regex).then_some("")
    }

    fn replica(&self, _: i64) -> Result<Box<dyn Replica>, String> {
        Err("a question has no picture".to_owned())
    }
}

/// Answers with what the file has.
#[derive(Debug)]
struct Answers(Questions);

impl Solver for Answers {
    fn demonstrate(&self, item_id: i64, instruction: &str) -> Option<Demonstration> {
        let row = self.0.rows.get(&item_id)?;
        let mut talk = Talk::new(first_message(instruction, &row.prompt));
        talk.say(row.shown.clone(), true, String::new());
        Some(talk.told(format!("dataset_{item_id}")))
    }
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve the questions of a file, graded by a rule";
    const PORT: u16 = 36011;
    const ADDRESSES: &'static [Address] = &[Address::new(":dataset")];
    type Arguments = Self;

    fn from_arguments(arguments: Self) -> Result<Self, ArgumentError> {
        Ok(arguments)
    }
}
