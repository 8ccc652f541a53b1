//! What a reply is worth beside the answers of its row.

use std::sync::LazyLock;

use clap::ValueEnum;
use regex_automata::meta::Regex;

use crate::searchqa::score::{f1, normalised};

/// How much two numbers may differ, relative to the larger one.
const TOLERANCE: f64 = 1e-9;
/// Largest regular expression when it is compiled, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// `1,234.50`, `.5`, `1e-7`.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?";
    Regex::new(pattern).expect("a test compiles it")
});
/// Those that people write.
const MINUSES: [char; 3] = ['-', '−', '–'];

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Grade {
    /// The answer is one of the row's, letter case, blanks and punctuation at its ends aside.
    Exact,
    /// The last number is the row's.
    Number,
    /// The last letter that stands alone is the row's, as of multiple choice.
    Choice,
    /// The row's answer is a regular expression that matches in the reply.
    Regex,
    /// The share of words that answer and row have in common, as SQuAD has it.
    F1,
}

/// The answers of a row, ready to be compared.
#[derive(Clone, Debug)]
pub(super) enum Key {
    Texts(Vec<String>),
    Words(Vec<String>),
    Numbers(Vec<f64>),
    Letters(Vec<char>),
    Patterns(Vec<Regex>),
}

impl Grade {
    /// Reads the answers of a row. `Err`: what is wrong with one.
    pub(super) fn key(self, answers: &[String]) -> Result<Key, String> {
        let each = answers.iter();
        let bad = |text: &str, why: &str| format!("the answer {text:?} {why}");
        match self {
            Self::Exact => {
                let texts = each.map(|text| match plain(answer_of(text)) {
                    said if said.is_empty() => {
                        Err(bad(text, "is nothing but blanks and punctuation"))
                    }
                    said => Ok(said),
                });
                texts.collect::<Result<_, _>>().map(Key::Texts)
            }
            Self::F1 => {
                let texts = each.map(|text| match normalised(answer_of(text)) {
                    said if said.is_empty() => Err(bad(text, "has no word; articles are none")),
                    _ => Ok(answer_of(text).to_owned()),
                });
                texts.collect::<Result<_, _>>().map(Key::Words)
            }
            Self::Number => {
                let numbers = each.map(|text| match &numbers(answer_of(text))[..] {
                    [number] if number.is_finite() => Ok(*number),
                    [_] => Err(bad(text, "has a number that is too large")),
                    [] => Err(bad(text, "has no number in it")),
                    _ => Err(bad(
                        text,
                        "has several numbers in it; give one, or grade otherwise",
                    )),
                });
                numbers.collect::<Result<_, _>>().map(Key::Numbers)
            }
            Self::Choice => {
                let letters = each.map(|text| match choice_of_row(answer_of(text)) {
                    Some(letter) => Ok(letter),
                    None => Err(bad(text, "is no letter such as B, B) or (B)")),
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
                        bad(text, &format!("is no regular expression: {why}"))
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
    pub(super) fn grade(&self, reply: &str) -> f64 {
        let answer = answer_of(reply);
        let right = match self {
            Self::Words(all) => {
                return all.iter().map(|text| f1(answer, text)).fold(0.0, f64::max);
            }
            Self::Texts(all) => all.contains(&plain(answer)),
            Self::Numbers(all) => numbers(answer).last().is_some_and(|given| {
                let close =
                    |one: &f64| (given - one).abs() <= TOLERANCE * given.abs().max(one.abs());
                // An infinite one would be as close to any other as to itself.
                given.is_finite() && all.iter().any(close)
            }),
            Self::Letters(all) => choice(answer).is_some_and(|given| all.contains(&given)),
            Self::Patterns(all) => all.iter().any(|pattern| pattern.is_match(spoken(reply))),
        };
        f64::from(u8::from(right))
    }
}

/// A reply behind its thought; nothing of one whose thought does not end.
fn spoken(text: &str) -> &str {
    let text = text.rsplit_once("</think>").map_or(text, |(_, said)| said);
    if text.contains("<think>") { "" } else { text }
}

/// The part of a text that is its answer: behind a thought, what stands in `<answer>…</answer>` or `\boxed{…}` or
/// behind `####`, whichever begins last; else all of it.
fn answer_of(text: &str) -> &str {
    let text = spoken(text);
    let tagged = text.rmatch_indices("<answer>").find_map(|(at, mark)| {
        let inside = &text[at + mark.len()..];
        Some((at, inside.split_once("</answer>")?.0))
    });
    let boxed = text.rmatch_indices("\\boxed{").find_map(|(at, mark)| {
        let inside = &text[at + mark.len()..];
        Some((at, &inside[..closes(inside)?]))
    });
    let marked = text.rfind("####").map(|at| (at, &text[at + 4..]));
    let last = [tagged, boxed, marked]
        .into_iter()
        .flatten()
        .max_by_key(|(at, _)| *at);
    last.map_or(text, |(_, answer)| answer).trim()
}

/// Where the brace closes that was opened before a text.
fn closes(text: &str) -> Option<usize> {
    let mut depth = 1;
    for (at, letter) in text.char_indices() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// A text without what does not matter: letter case, blanks, and punctuation at its ends.
fn plain(text: &str) -> String {
    let ends = |c: char| c.is_whitespace() || ".,!?;:\"'`“”‘’«»。，！？".contains(c);
    let text = text.trim_matches(ends).to_lowercase();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// All numbers in a text, fractions among them: `-$1,234.50`, `1/2`, `\frac{1}{2}`, `50%` as 50.
fn numbers(text: &str) -> Vec<f64> {
    let text = fractions(text);
    let (mut all, mut end) = (Vec::new(), 0);
    for found in NUMBER.find_iter(&text) {
        let (between, written) = (&text[end..found.start()], &text[found.range()]);
        let Ok(size) = written.replace(',', "").parse::<f64>() else {
            continue;
        };
        let over = between == "/" && end > 0;
        end = found.end();
        match all.last_mut() {
            Some(above) if over && size != 0.0 => *above /= size,
            _ if is_negative(&text[..found.start()]) => all.push(-size),
            _ => all.push(size),
        }
    }
    all
}

/// Whether what stands before a number makes it negative: a minus that is no subtraction and no bullet.
fn is_negative(before: &str) -> bool {
    let line = before.rsplit('\n').next().unwrap_or_default();
    let line = line.trim_end_matches(['$', '€', '£']);
    let apart = line.ends_with(' ');
    let Some(left) = line.trim_end_matches(' ').strip_suffix(MINUSES) else {
        return false;
    };
    let said = left.trim_end();
    let is_bullet = apart && said.is_empty();
    let subtracts =
        said.ends_with(|c: char| c.is_numeric() || c == ')') || left.ends_with(char::is_alphabetic);
    !(subtracts || is_bullet)
}

/// A text with `\frac{a}{b}` as `a/b`.
fn fractions(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("frac{") {
        let inside = &rest[at + 5..];
        let above = closes(inside);
        let below = above.and_then(|above| {
            let next = inside[above + 1..].strip_prefix('{')?;
            Some((&inside[..above], &next[..closes(next)?]))
        });
        let Some((above, below)) = below else {
            break;
        };
        let head = rest[..at].trim_end_matches(['d', 't']);
        out += head.strip_suffix('\\').unwrap_or(head);
        // What stands before it is a number of its own.
        let apart = out.ends_with(|c: char| c.is_ascii_digit());
        out += if apart { " " } else { "" };
        out += &format!("{above}/{below}");
        rest = &inside[above.len() + below.len() + 3..];
    }
    out + rest
}

/// The letter that a row's answer is: `B`, `B) a dog`, `(b)`.
fn choice_of_row(text: &str) -> Option<char> {
    let bare = text.trim_start_matches('(');
    let mut letters = bare.chars();
    let letter = letters.next().filter(char::is_ascii_alphabetic)?;
    let follows = letters.next().is_none_or(|c| ").:".contains(c));
    follows.then_some(letter.to_ascii_uppercase())
}

/// The last letter that stands alone in a reply: a capital one that is no word of a sentence, else one in
/// parentheses, else the whole reply.
fn choice(text: &str) -> Option<char> {
    let alone = |at: usize, letter: char| {
        let before = text[..at].chars().next_back();
        let mut after = text[at + 1..].chars();
        let (next, second) = (after.next(), after.next());
        let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '\'');
        let is_word = matches!(letter, 'A' | 'I')
            && next == Some(' ')
            && second.is_some_and(char::is_lowercase);
        !is_part(before) && !is_part(next) && !is_word
    };
    let mut letters = text.char_indices().filter(|(_, c)| c.is_ascii_alphabetic());
    let is_capital = |(at, c): &(usize, char)| c.is_ascii_uppercase() && alone(*at, *c);
    let capital = letters.clone().rfind(is_capital);
    let is_closed = |(at, c): &(usize, char)| text[at + 1..].starts_with(')') && alone(*at, *c);
    let closed = || letters.rfind(is_closed);
    let found = capital.or_else(closed).map(|(_, letter)| letter);
    let whole = || {
        let mut bare = text.trim_matches(|c: char| !c.is_alphanumeric()).chars();
        bare.next()
            .filter(|c| bare.next().is_none() && c.is_ascii_alphabetic())
    };
    found
        .or_else(whole)
        .map(|letter| letter.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graded(rule: Grade, answer: &str, reply: &str) -> f64 {
        let key = rule.key(&[answer.to_owned()]);
        key.expect(answer).grade(reply)
    }

    #[test]
    fn numbers_are_compared_as_numbers() {
        for (answer, reply, expected) in [
            ("9 - 2 = 7\n#### 7", "so 3 + 4 = 7.0", 1.0),
            ("1,234", "\\boxed{1234}", 1.0),
            ("-5", "it is -5.", 1.0),
            ("-5", "10-5", 0.0),
            ("-5", "x1 = 3\n-5", 1.0),
            ("-5", "the answer is: − 5", 1.0),
            ("-5", "-$5", 1.0),
            ("5", "-$5", 0.0),
            ("5", "−5", 0.0),
            ("5", "- 5", 1.0),
            ("0.5", "about .5, I think", 1.0),
            ("0.5", "1/2", 1.0),
            ("1/3", "\\boxed{\\frac{2}{3}}", 0.0),
            ("1/3", "\\boxed{\\dfrac{1}{3}}", 1.0),
            ("3/2", "1/2", 0.0),
            ("10.5", "2\\frac{1}{2}", 0.0),
            ("-1/2", "-\\frac{1}{2}", 1.0),
            ("7", "1e308/1e-10", 0.0),
            ("50%", "50", 1.0),
            ("7", "#### 8 (not 9)\n#### 7", 1.0),
            ("7", "\\boxed{7}\n#### 8", 0.0),
            ("7", "<answer>7</answer></answer>", 1.0),
            ("7", "\\boxed{7} \\boxed{8", 1.0),
            ("7", "seven", 0.0),
            ("7", "", 0.0),
            ("7", "<think>maybe 7", 0.0),
            ("100000000000000000000", "20", 0.0),
            ("1e20", "100000000000000000000", 1.0),
            ("1e-7", "0.0000001", 1.0),
            ("1e-7", "7", 0.0),
            ("1000", "1e3", 1.0),
            ("0", "0.0000000001", 0.0),
            ("34", "(3,4)", 0.0),
        ] {
            let grade = graded(Grade::Number, answer, reply);
            assert_eq!(grade, expected, "{answer:?} {reply:?}");
        }
        // What is too large to be a number is none.
        let digits = "9".repeat(400);
        assert!(Grade::Number.key(std::slice::from_ref(&digits)).is_err());
        for digits in [format!("-{digits}"), format!("7 {digits}"), digits] {
            assert_eq!(graded(Grade::Number, "7", &digits), 0.0);
        }
    }

    #[test]
    fn other_rules_find_the_answer_in_a_reply() {
        for (rule, answer, reply, expected) in [
            (Grade::Exact, "Oslo", "<think>Rome?</think> oslo!", 1.0),
            (Grade::Exact, "Oslo", "It is Oslo", 0.0),
            (Grade::Exact, "Oslo", "It is <answer> oslo </answer>.", 1.0),
            (Grade::Exact, "A", "", 0.0),
            (Grade::Exact, "-5", "5", 0.0),
            (Grade::Exact, "C++", "C", 0.0),
            (Grade::Exact, "東京", "東京。", 1.0),
            (Grade::Choice, "B", "I choose (b).", 1.0),
            (Grade::Choice, "B) a dog", "B", 1.0),
            (Grade::Choice, "B", "A or B? A", 0.0),
            (Grade::Choice, "B", "B. That's it", 1.0),
            (Grade::Choice, "B", "The answer is B, a good one", 1.0),
            (Grade::Choice, "I", "I do not know", 0.0),
            (Grade::Choice, "A", "I need a hint", 0.0),
            (Grade::Choice, "c", "c.", 1.0),
            (
                Grade::Regex,
                "^(?i)yes\\b",
                "<think>no</think>Yes, it is",
                1.0,
            ),
            (Grade::Regex, "^yes$", "yes it is", 0.0),
            (Grade::Regex, "#### 7", "so\n#### 7", 1.0),
            (Grade::F1, "the red fox", "a red dog", 0.5),
            (Grade::F1, "9 - 2 = 7\n#### 7", "7", 1.0),
            (Grade::F1, "red", "", 0.0),
        ] {
            let grade = graded(rule, answer, reply);
            assert_eq!(grade, expected, "{rule:?} {answer:?} {reply:?}");
        }
    }

    #[test]
    fn answers_that_a_rule_cannot_read_are_named() {
        for (rule, answer, words) in [
            (Grade::Number, "seven", "no number"),
            (Grade::Number, "12:30", "several numbers"),
            (Grade::Number, "(3,4)", "several numbers"),
            (Grade::Number, "3 1/2", "several numbers"),
            (Grade::Choice, "both", "no letter"),
            (Grade::Choice, "Paris, a city", "no letter"),
            (Grade::Exact, "!", "nothing but"),
            (Grade::F1, "the", "no word"),
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
