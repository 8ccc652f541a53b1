//! Answered questions, as conversations.
//!
//! The solver knows the answer and searches until a passage contains it: for the names in the
//! question, for the question itself, and for the names in the results. A passage can contain an
//! answer by chance, so not every chain of searches is a proof.

use std::collections::{BTreeSet, VecDeque};

use super::{Library, Question, information};
use agentgym_envs::EnvError;
use agentgym_envs::demonstration::{Demonstration, Talk};
use agentgym_envs::spec::first_message;

/// Most searches in a row: the rounds of an episode minus one for the answer.
const HOPS_MAX: usize = 4;
/// Most searches tried for a question.
const TRIES_MAX: usize = 400;

/// Answers a question and returns the conversation; `None` if there is no such question, or if no
/// chain of searches finds the answer.
pub(crate) fn demonstration(
    library: &Library,
    item_id: i64,
    instruction: &str,
) -> Option<Demonstration> {
    let question = library.question(item_id)?;
    let found = chain(library, question).ok()??;
    let mut talk = Talk::new(first_message(instruction, &library.prompt(question)));
    for (query, shown) in found.searches {
        let query = format!("<search>{}</search>", library.shown(&query));
        talk.say(query, true, library.shown(&shown));
    }
    let answer = format!("<answer>{}</answer>", library.shown(&found.answer));
    let reply = library.step(question, &answer).ok()?;
    talk.say(answer, true, reply.observation);
    reply.done.then(|| talk.told(format!("searchqa_{item_id}")))
}

#[derive(Clone)]
struct Chain {
    /// Queries with their results.
    searches: Vec<(String, String)>,
    answer: String,
}

/// The shortest chain of searches whose last result contains an answer.
fn chain(library: &Library, question: &Question) -> Result<Option<Chain>, EnvError> {
    let text = question.text.trim();
    // The first word of a question is always capitalised, like a name.
    let (_, behind) = text.split_once(' ').unwrap_or(("", text));
    let first = names(behind).into_iter().chain([text.to_owned()]);
    let mut waiting: VecDeque<(Vec<(String, String)>, String)> =
        first.map(|query| (Vec::new(), query)).collect();
    let mut asked = BTreeSet::new();
    while let Some((mut searches, query)) = waiting.pop_front() {
        if asked.len() == TRIES_MAX || !asked.insert(query.clone()) {
            continue;
        }
        let shown = information(&library.search(&query)?);
        searches.push((query, shown));
        let (_, shown) = searches.last().expect("just pushed");
        let found = question.answers.iter().find(|answer| holds(shown, answer));
        if let Some(answer) = found {
            let answer = answer.clone();
            return Ok(Some(Chain { searches, answer }));
        }
        if searches.len() < HOPS_MAX {
            for name in names(shown) {
                waiting.push_back((searches.clone(), name));
            }
        }
    }
    Ok(None)
}

/// Whether a text contains an answer, as whole words.
fn holds(text: &str, answer: &str) -> bool {
    let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    !answer.is_empty()
        && text.match_indices(answer).any(|(at, found)| {
            let before = text[..at].chars().next_back();
            let after = text[at + found.len()..].chars().next();
            !is_word(before) && !is_word(after)
        })
}

/// Runs of capitalised words, taken as names, in the order of a text.
fn names(text: &str) -> Vec<String> {
    let mut names: Vec<Vec<&str>> = Vec::new();
    let mut goes_on = false;
    for word in text.split_whitespace() {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        let is_name = bare.chars().next().is_some_and(char::is_uppercase);
        match names.last_mut() {
            Some(name) if is_name && goes_on => name.push(bare),
            _ if is_name => names.push(vec![bare]),
            _ => {}
        }
        // Punctuation after a word ends a name.
        goes_on = is_name && word.ends_with(char::is_alphanumeric);
    }
    names.iter().map(|name| name.join(" ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_questions_are_answered_by_searching() {
        let library = Library::builtin();
        let ids: Vec<i64> = library.ids().collect();
        let mut searches = [0; HOPS_MAX + 1];
        for id in &ids {
            let shown = demonstration(&library, *id, "").expect("an answer can be found");
            let said: Vec<&str> = (shown.conversations.iter())
                .filter(|m| m.from == "gpt")
                .map(|m| m.value.as_str())
                .collect();
            let (answer, before) = said.split_last().expect("an answer");
            assert!(answer.starts_with("<answer>"), "{answer}");
            assert!(before.iter().all(|text| text.starts_with("<search>")));
            searches[before.len()] += 1;
            // The answer occurs in the latest result.
            let wanted = answer.trim_start_matches("<answer>");
            let wanted = wanted.trim_end_matches("</answer>");
            let heard = &shown.conversations[shown.conversations.len() - 2];
            assert!(heard.value.contains(wanted), "{heard:?} {answer}");
        }
        eprintln!("questions by searches: {searches:?}");
        assert!(searches[0] == 0 && searches[1] > 0 && searches[2] > 0);
        assert!(demonstration(&library, -1, "").is_none());
    }

    #[test]
    fn without_capitals_the_same_is_said() {
        let cased = Library::builtin();
        let uncased = Library::builtin().with_uncased(true);
        for id in uncased.ids() {
            let told = |library: &Library| -> Vec<String> {
                let shown = demonstration(library, id, "").expect("an answer can be found");
                shown.conversations.into_iter().map(|m| m.value).collect()
            };
            let (cased, uncased) = (told(&cased), told(&uncased));
            let lower: Vec<String> = cased.iter().map(|text| text.to_lowercase()).collect();
            assert_eq!(uncased[1..], lower[1..]);
            let question = |text: &str| text.rsplit("Question: ").next().map(str::to_owned);
            assert_eq!(
                question(&uncased[0]),
                question(&cased[0]).map(|q| q.to_lowercase())
            );
        }
    }

    #[test]
    fn names_and_whole_words_are_told_apart() {
        assert_eq!(names("is the Tide Clock, or Oslo?"), ["Tide Clock", "Oslo"]);
        assert!(names("where is it?").is_empty());
        assert!(holds("born in 117, they say", "117"));
        assert!(!holds("born in 1173", "117") && !holds("x", ""));
    }
}
