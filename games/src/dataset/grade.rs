//! What a reply is worth beside the answers of its row.

use clap::ValueEnum;
use regex_automata::meta::Regex;

use crate::searchqa::score::{f1, normalised};

/// How much two numbers may differ, relative to the larger one.
const TOLERANCE: f64 = 1e-9;
/// Largest regular expression when it is compiled, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Grade {
    /// The answer is one of the row's, letter case, articles and punctuation aside.
    Exact,
    /// The last number is the row's.
    Number,
    /// The last letter that stands alone is the row's, as of multiple choice.
    Choice,
    /// The row's answer is a regular expression that the answer contains a match of.
    Regex,
    /// The share of words that answer and row have in common, as SQuAD has it.
    F1,
}

/// The answers of a row, ready to be compared.
#[derive(Clone, Debug)]
pub(super) enum Key {
    Texts(Vec<String>),
    Numbers(Vec<f64>),
    Letters(Vec<char>),
    Patterns(Vec<Regex>),
}

impl Grade {
    /// Reads the answers of a row. `Err`: what is wrong with one.
    pub(super) fn key(self, answers: &[String]) -> Result<Key, String> {
        let each = answers.iter();
        match self {
            Self::Exact | Self::F1 => Ok(Key::Texts(answers.to_vec())),
            Self::Number => {
                let numbers = each.map(|text| {
                    number(answer_of(text))
                        .ok_or_else(|| format!("the answer {text:?} has no number in it"))
                });
                numbers.collect::<Result<_, _>>().map(Key::Numbers)
            }
            Self::Choice => {
                let letters = each.map(|text| {
                    letter(answer_of(text))
                        .ok_or_else(|| format!("the answer {text:?} is no letter such as B"))
                });
                letters.collect::<Result<_, _>>().map(Key::Letters)
            }
            Self::Regex => {
                let limits = Regex::config().nfa_size_limit(Some(PATTERN_BYTES_MAX));
                let compile = |text: &String| {
                    let compiled = Regex::builder().configure(limits.clone()).build(text);
                    compiled.map_err(|error| {
                        let why = error
                            .syntax_error()
                            .map_or_else(|| error.to_string(), ToString::to_string);
                        format!("the answer {text:?} is no regular expression: {why}")
                    })
                };
                let patterns = each.map(compile);
                patterns.collect::<Result<_, _>>().map(Key::Patterns)
            }
        }
    }
}

impl Key {
    /// From 0 to 1.
    pub(super) fn grade(&self, reply: &str, rule: Grade) -> f64 {
        let answer = answer_of(reply);
        let right = match self {
            Self::Texts(all) if rule == Grade::F1 => {
                return all.iter().map(|text| f1(answer, text)).fold(0.0, f64::max);
            }
            Self::Texts(all) => {
                let given = normalised(answer);
                all.iter().any(|text| normalised(answer_of(text)) == given)
            }
            Self::Numbers(all) => number(answer).is_some_and(|given| {
                let close = |one: &f64| {
                    (given - one).abs() <= TOLERANCE * given.abs().max(one.abs()).max(1.0)
                };
                all.iter().any(close)
            }),
            Self::Letters(all) => letter(answer).is_some_and(|given| all.contains(&given)),
            Self::Patterns(all) => all.iter().any(|pattern| pattern.is_match(answer)),
        };
        f64::from(u8::from(right))
    }
}

/// The part of a text that is its answer: behind a thought, what stands last in `<answer>…</answer>` or
/// `\boxed{…}` or behind `####`, else all of it.
pub(super) fn answer_of(text: &str) -> &str {
    let text = text
        .rsplit_once("</think>")
        .map_or(text, |(_, after)| after);
    let tagged = || {
        let (before, _) = text.rsplit_once("</answer>")?;
        Some(before.rsplit_once("<answer>")?.1)
    };
    let found = tagged().or_else(|| boxed(text));
    let marked = || text.rsplit_once("####").map(|(_, after)| after);
    found.or_else(marked).unwrap_or(text).trim()
}

/// What stands in the last `\boxed{…}`, whose braces may hold others.
fn boxed(text: &str) -> Option<&str> {
    const OPEN: &str = "\\boxed{";
    let start = text.rfind(OPEN)? + OPEN.len();
    let mut depth = 1;
    for (at, letter) in text[start..].char_indices() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        if depth == 0 {
            return Some(&text[start..start + at]);
        }
    }
    None
}

/// The last number in a text: `-1,234.50`.
fn number(text: &str) -> Option<f64> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let last = text.rfind(|c: char| c.is_ascii_digit())?;
    let end = last + 1;
    let head = &text[..end];
    let start = head.rfind(|c: char| !is_part(c)).map_or(0, |at| {
        at + head[at..].chars().next().map_or(1, char::len_utf8)
    });
    let run = &head[start..];
    let digits = run.trim_start_matches([',', '.']);
    let lead = &run[..run.len() - digits.len()];
    let digits = digits.replace(',', "");
    let size: f64 = match lead {
        "." => format!("0.{digits}").parse().ok()?,
        _ => digits.parse().ok()?,
    };
    let Some(left) = head[..start].strip_suffix('-') else {
        return Some(size);
    };
    // A minus is none where something is subtracted from.
    let subtracts = left.ends_with(char::is_alphabetic)
        || left
            .trim_end()
            .ends_with(|c: char| c.is_ascii_digit() || c == ')');
    Some(if subtracts { size } else { -size })
}

/// The last letter that stands alone: `B`, `(b)`, `B.`
fn letter(text: &str) -> Option<char> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    let alone = words.filter(|word| word.len() == 1);
    let mut letters = alone.filter_map(|word| word.chars().next());
    let last = letters.rfind(char::is_ascii_alphabetic)?;
    Some(last.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_find_the_answer_in_a_reply() {
        for (rule, answer, reply, expected) in [
            (Grade::Exact, "Oslo", "<think>Rome?</think> The Oslo!", 1.0),
            (Grade::Exact, "Oslo", "It is Oslo", 0.0),
            (Grade::Exact, "Oslo", "It is <answer> oslo </answer>.", 1.0),
            (Grade::Number, "9 - 2 = 7\n#### 7", "so 3 + 4 = 7.0", 1.0),
            (Grade::Number, "1,234", "\\boxed{1234}", 1.0),
            (Grade::Number, "-5", "it is -5.", 1.0),
            (Grade::Number, "-5", "10-5", 0.0),
            (Grade::Number, "0.5", "about .5, I think", 1.0),
            (Grade::Number, "7", "#### 8 (not 7)", 1.0),
            (Grade::Number, "7", "\\boxed{\\frac{1}{2}} 7", 0.0),
            (Grade::Number, "7", "seven", 0.0),
            (Grade::Choice, "B", "I choose (b).", 1.0),
            (Grade::Choice, "B", "A or B? A", 0.0),
            (Grade::Regex, "^(?i)yes\\b", "Yes, it is", 1.0),
            (Grade::Regex, "^yes$", "yes it is", 0.0),
            (Grade::F1, "the red fox", "a red dog", 0.5),
            (Grade::F1, "red", "blue", 0.0),
        ] {
            let key = rule.key(&[answer.to_owned()]).expect(answer);
            let grade = key.grade(reply, rule);
            assert_eq!(grade, expected, "{rule:?} {answer:?} {reply:?}");
        }
    }

    #[test]
    fn answers_that_a_rule_cannot_read_are_named() {
        for (rule, answer, words) in [
            (Grade::Number, "seven", "no number"),
            (Grade::Choice, "both", "no letter"),
            (Grade::Regex, "(", "no regular expression"),
            (Grade::Regex, "a{1000}{1000}{1000}", "no regular expression"),
        ] {
            let refused = rule.key(&[answer.to_owned()]).expect_err(answer);
            assert!(
                refused.contains(words) && refused.contains(answer),
                "{refused}"
            );
        }
    }
}
