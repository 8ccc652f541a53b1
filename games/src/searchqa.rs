//! SearchQA: answer questions with a search over a corpus of passages.
//!
//! The rules and the wording are those of AgentGym's server. Passages and questions are the user's,
//! or a small set of our own about an invented country ([`Library::builtin`]), so that no model can
//! know the answers. Search is BM25 ([`index`]) instead of the original's embeddings: no model, no
//! GPU, and the same passages for the same query on every machine.

mod demonstration;
pub mod index;
mod scene;
pub(crate) mod score;
pub(crate) mod server;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use agentgym_envs::EnvError;
use agentgym_envs::parser::{Tag, tagged};
use index::{Corpus, Index};
pub(crate) use source::Source;

/// Passages that a search shows; the original shows this many whatever its configuration says.
pub const TOP_K: usize = 3;

const INSTRUCTION: &str = "Answer the question. First think, between <think> and </think>. If you \
    need to look something up, write <search>your query</search> and stop there; what is found \
    follows between <information> and </information>. Then think again. When you know the \
    answer, write <answer>the answer</answer>, as short as possible, for example \
    <answer> Oslo </answer>.";

const RIGHT: &str = "Congratulations! You have answered the question correctly.";
const WRONG: &str = "Sorry, your answer is incorrect. Please try again.";
const INVALID: &str = "Your previous action is invalid. If you want to search, you should put \
    the query between <search> and </search>. If you want to give the final answer, you should \
    put the answer between <answer> and </answer>. Please try again.";

/// A question and its accepted answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The text.
    pub text: String,
    /// Each of these is accepted.
    pub answers: Vec<String>,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct QaReply {
    /// Text for the model.
    pub observation: String,
    /// 1 for a right answer.
    pub reward: f64,
    /// The answer was right. After a wrong one the episode continues.
    pub done: bool,
}

/// Questions by id, and the passages to answer them from.
#[derive(Debug)]
pub struct Library {
    questions: BTreeMap<i64, Question>,
    corpus: Corpus,
    index: Index,
    top_k: usize,
    uncased: bool,
}

impl Library {
    /// From a corpus file (JSON lines with `contents`: a title line, then the text) and a questions
    /// file (JSON lines with `question` and `answers` or `golden_answers`; `id`, or else the line's
    /// number from 0). The index is built on first use and stored next to the corpus, or at
    /// `index`; `progress` gets the bytes read so far and in total.
    pub fn open(
        corpus: &Path,
        questions: &Path,
        index: Option<&Path>,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, EnvError> {
        let bad = |problem: String| EnvError::Corpus {
            path: questions.to_owned(),
            problem,
        };
        let text = agentgym_envs::files::read_text(questions).map_err(bad)?;
        let questions = read_questions(&text).map_err(bad)?;
        let beside = || {
            let mut name = corpus.as_os_str().to_owned();
            name.push(".bm25");
            PathBuf::from(name)
        };
        let at = index.map_or_else(beside, Path::to_owned);
        let corpus = Corpus::open(corpus)?;
        let index = Index::open_or_build(&corpus, &at, progress)?;
        Ok(Self::new(questions, corpus, index))
    }

    /// Our own passages and questions, compiled in.
    pub fn builtin() -> Self {
        let passages = include_str!("../data/searchqa-corpus.jsonl");
        let questions = include_str!("../data/searchqa-questions.jsonl");
        Self::from_texts(passages, questions).expect("a test reads what is compiled in")
    }

    /// From texts in the formats of the files.
    pub fn from_texts(corpus: &str, questions: &str) -> Result<Self, EnvError> {
        let bad = |problem: String| EnvError::Corpus {
            path: PathBuf::from("(compiled in)"),
            problem,
        };
        let corpus = Corpus::from_text(corpus);
        let index = Index::build(&corpus, |_, _| {})?;
        Ok(Self::new(
            read_questions(questions).map_err(bad)?,
            corpus,
            index,
        ))
    }

    fn new(questions: BTreeMap<i64, Question>, corpus: Corpus, index: Index) -> Self {
        Self {
            questions,
            corpus,
            index,
            top_k: TOP_K,
            uncased: false,
        }
    }

    /// Sets the number of passages per search.
    pub fn with_top_k(mut self, top_k: usize) -> Self {
        self.top_k = top_k;
        self
    }

    /// Shows questions and passages in lower case, for policies without capital letters. Search and
    /// scoring ignore case anyway.
    pub fn with_uncased(mut self, uncased: bool) -> Self {
        self.uncased = uncased;
        self
    }

    /// A text of the library as it is shown to the model.
    fn shown(&self, text: &str) -> String {
        match self.uncased {
            true => text.to_lowercase(),
            false => text.to_owned(),
        }
    }

    /// The question with this id.
    pub fn question(&self, id: i64) -> Option<&Question> {
        self.questions.get(&id)
    }

    /// The ids that have a question, in order.
    pub fn ids(&self) -> impl Iterator<Item = i64> {
        self.questions.keys().copied()
    }

    /// Passages in the corpus.
    pub fn passages(&self) -> usize {
        self.index.passages()
    }

    /// The prompt of a question. It does not change during an episode.
    pub fn prompt(&self, question: &Question) -> String {
        let text = self.shown(question.text.trim());
        format!("{INSTRUCTION}\n\n Question: {text}")
    }

    /// Plays a model's text: its first tag determines whether it is a search or an answer.
    pub fn step(&self, question: &Question, text: &str) -> Result<QaReply, EnvError> {
        let (observation, right) = match tagged(text) {
            None => (INVALID.to_owned(), false),
            Some((Tag::Search, query)) => (information(&self.shown(&self.search(query)?)), false),
            Some((Tag::Answer, _)) => match score::answer_is_right(text, &question.answers) {
                true => (RIGHT.to_owned(), true),
                false => (WRONG.to_owned(), false),
            },
        };
        Ok(QaReply {
            observation,
            reward: f64::from(u8::from(right)),
            done: right,
        })
    }

    /// The passages that a query finds, in the corpus's letter case.
    fn search(&self, query: &str) -> Result<String, EnvError> {
        let mut shown = String::new();
        for (rank, passage) in self.index.search(query, self.top_k).into_iter().enumerate() {
            let contents = self.corpus.contents(self.index.place(passage))?;
            let (title, text) = contents.split_once('\n').unwrap_or((&contents, ""));
            shown.push_str(&format!("Doc {}(Title: {title}) {text}\n", rank + 1));
        }
        Ok(shown.trim().to_owned())
    }
}

fn information(passages: &str) -> String {
    format!("<information>{passages}</information>")
}

fn read_questions(text: &str) -> Result<BTreeMap<i64, Question>, String> {
    let mut questions = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let place = format!("line {}", at + 1);
        let row: Value = serde_json::from_str(line).map_err(|error| format!("{place}: {error}"))?;
        let id = match &row["id"] {
            Value::Null => at as i64,
            Value::Number(id) => id
                .as_i64()
                .ok_or(format!("{place}: id {id} is too large"))?,
            // Item ids such as `nq_12`.
            Value::String(id) => id
                .rsplit('_')
                .next()
                .and_then(|digits| digits.parse().ok())
                .ok_or(format!("{place}: id {id:?} does not end in a number"))?,
            other => return Err(format!("{place}: id {other} is not a number")),
        };
        let question = row["question"].as_str();
        let answers = [&row["answers"], &row["golden_answers"], &row["answer"]];
        let answers = answers.into_iter().find_map(|answers| match answers {
            Value::String(one) => Some(vec![one.clone()]),
            Value::Array(many) => many
                .iter()
                .map(|answer| answer.as_str().map(str::to_owned))
                .collect(),
            _ => None,
        });
        let (Some(question), Some(answers)) = (question, answers) else {
            return Err(format!(
                "{place}: expected \"question\" and a list \"answers\", found {line}"
            ));
        };
        let question = Question {
            text: question.to_owned(),
            answers,
        };
        if questions.insert(id, question).is_some() {
            return Err(format!("{place}: id {id} was there before"));
        }
    }
    if questions.is_empty() {
        return Err("there is no question in it".to_owned());
    }
    Ok(questions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_questions_can_be_answered_from_our_own_passages() {
        let library = Library::builtin();
        assert!(library.passages() >= 60 && library.ids().count() >= 100);
        let (mut found, mut asked) = (0, 0);
        for id in library.ids() {
            let question = library.question(id).expect("listed");
            let answer = &question.answers[0];
            let right = library.step(question, &format!("<answer>{answer}</answer>"));
            assert_eq!(right.expect("a reply").reward, 1.0, "{question:?}");
            // One search for the question itself finds many answers.
            let reply = library.step(question, &format!("<search>{}</search>", question.text));
            found += usize::from(
                reply
                    .expect("a reply")
                    .observation
                    .contains(answer.as_str()),
            );
            asked += 1;
        }
        eprintln!("the question itself finds {found} of {asked} answers");
        assert!(found * 10 > asked * 4, "{found} of {asked}");
    }

    #[test]
    fn the_first_tag_decides_and_the_last_answer_counts() {
        let library = Library::from_texts(
            "{\"id\": \"0\", \"contents\": \"\\\"Nile\\\"\\nThe Nile is a river.\"}\n\
             {\"id\": \"1\", \"contents\": \"\\\"Oslo\\\"\\nOslo is a town.\\nIt is cold.\"}",
            "{\"question\": \" Where? \", \"golden_answers\": [\"The Nile\", \"Oslo!\"]}",
        )
        .expect("valid");
        let question = library.question(0).expect("the only one");
        assert!(library.prompt(question).ends_with("\n\n Question: Where?"));
        for (text, right) in [
            ("<answer>nile</answer>", true),
            ("<answer>x</answer><answer> OSLO. </answer>", true),
            ("<answer>oslo</answer><answer>x</answer>", false),
            ("<answer>o slo</answer>", false),
        ] {
            let reply = library.step(question, text).expect("a reply");
            assert_eq!((reply.done, reply.reward == 1.0), (right, right), "{text}");
        }
        let search = |text: &str| library.step(question, text).expect("a reply").observation;
        assert_eq!(
            search("<search>towns, a town</search><answer>oslo</answer>"),
            "<information>Doc 1(Title: \"Oslo\") Oslo is a town.\nIt is cold.\nDoc 2(Title: \
             \"Nile\") The Nile is a river.</information>"
        );
        assert_eq!(search("<search></search>").matches("Doc ").count(), 2);
        assert_eq!(search("<search>x"), INVALID);
    }

    #[test]
    fn what_is_wrong_with_a_questions_file_is_named() {
        for (text, words) in [
            ("", "no question"),
            (
                "{\"question\": \"a\"}",
                "line 1: expected \"question\" and a list",
            ),
            ("\n{]", "line 2"),
            (
                "{\"id\": 1, \"question\": \"\", \"answers\": []}\n{\"id\": \"nq_1\", \"question\": \"\", \"answers\": \"x\"}",
                "line 2: id 1 was there before",
            ),
        ] {
            let message = Library::from_texts("", text).expect_err(text).to_string();
            assert!(message.contains(words), "{message}");
        }
    }
}
