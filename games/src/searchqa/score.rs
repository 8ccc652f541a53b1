//! Exact match, as question-answering benchmarks define it: lower case, no ASCII punctuation
//! (deleted, not replaced), no articles, single spaces.

/// Whether the last answer in a text is one of these.
pub(super) fn answer_is_right(text: &str, answers: &[String]) -> bool {
    let Some(given) = last_answer(text) else {
        return false;
    };
    let given = normalised(given);
    answers.iter().any(|answer| normalised(answer) == given)
}

/// Pairs are matched from the left, each up to its first closing tag.
fn last_answer(text: &str) -> Option<&str> {
    const OPEN: &str = "<answer>";
    const CLOSE: &str = "</answer>";
    let mut last = None;
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(OPEN) {
        let Some((inside, behind)) = after.split_once(CLOSE) else {
            break;
        };
        last = Some(inside);
        rest = behind;
    }
    last
}

/// A text without what does not matter.
pub(crate) fn normalised(text: &str) -> String {
    let kept: String = text
        .to_lowercase()
        .chars()
        .filter(|c| !c.is_ascii_punctuation())
        .collect();
    // An article is a whole word, also between characters that are neither letters nor spaces.
    let mut out = String::new();
    let mut word = String::new();
    for c in kept.chars().chain([' ']) {
        if c.is_alphanumeric() {
            word.push(c);
            continue;
        }
        match word.as_str() {
            "a" | "an" | "the" => out.push(' '),
            _ => out.push_str(&word),
        }
        word.clear();
        out.push(c);
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The harmonic mean of the shares of words that two texts have in common, as SQuAD has it; words count as often
/// as they stand.
pub(crate) fn f1(given: &str, expected: &str) -> f64 {
    let (given, expected) = (normalised(given), normalised(expected));
    let mut left: Vec<&str> = expected.split_whitespace().collect();
    let (total, mut same) = (left.len(), 0);
    let words: Vec<&str> = given.split_whitespace().collect();
    for word in &words {
        if let Some(at) = left.iter().position(|one| one == word) {
            left.swap_remove(at);
            same += 1;
        }
    }
    match total + words.len() {
        0 => 1.0,
        both => 2.0 * f64::from(same) / both as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_compared_without_what_does_not_matter() {
        for (one, other, same) in [
            ("The Beatles", "beatles", true),
            ("BEIJING!", " beijing ", true),
            ("GRAYDON-HOARE", "graydon hoare", false),
            ("Café-Crème", "cafécrème", true),
            ("Café", "cafe", false),
            ("“the” end", "“ ” end", true),
            ("theatre", "atre", false),
            ("a_b", "ab", true),
            ("", "the", true),
        ] {
            assert_eq!(
                normalised(one) == normalised(other),
                same,
                "{one:?} {other:?}"
            );
        }
    }

    #[test]
    fn nested_answers_are_read_from_the_left() {
        assert_eq!(
            last_answer("<answer><answer>b</answer></answer>"),
            Some("<answer>b")
        );
        assert_eq!(last_answer("<answer>a</answer><answer>b"), Some("a"));
        assert_eq!(last_answer("<answer>a"), None);
    }
}
