//! A lenient reading: an action on offer that a reply names in other words than its format asks for.

use super::Parsed;

/// The action on offer that a reply means, if it names just one; else what the parser read. Where an
/// action was read, its own words count alone.
pub(crate) fn lenient(parsed: Parsed, text: &str, offered: &[String]) -> Parsed {
    let read = parsed.action.as_deref().filter(|_| parsed.found);
    if read.is_some_and(|read| offered.iter().any(|action| action == read)) {
        return parsed;
    }
    let said = words(read.unwrap_or(text));
    let named: Vec<(Vec<String>, &String)> = (offered.iter())
        .map(|action| (words(action), action))
        .filter(|(action, _)| holds(&said, action))
        .collect();
    // "go to red ball 1" names "go to red ball" too; the longest one that holds the others is meant.
    let longest = named.iter().max_by_key(|(action, _)| action.len());
    match longest.filter(|(longest, _)| named.iter().all(|(action, _)| holds(longest, action))) {
        None => parsed,
        Some((_, action)) => Parsed {
            action: Some((*action).clone()),
            local_reply: None,
            normalised: true,
            found: true,
        },
    }
}

/// Whether words stand in a text, one after the other; no words stand nowhere.
fn holds(text: &[String], words: &[String]) -> bool {
    !words.is_empty() && text.windows(words.len()).any(|at| at == words)
}

/// Letters and digits, in lower case.
fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parser::Parser;

    fn read(text: &str) -> Parsed {
        let offered = [
            "turn left",
            "go to red ball 1",
            "go to red ball 10",
            "pick up key",
            "check",
        ];
        let offered: Vec<String> = offered.map(str::to_owned).into();
        lenient(Parser::ActionLine.parse(&[], text), text, &offered)
    }

    #[test]
    fn a_reply_that_names_one_action_is_that_action() {
        for (text, action) in [
            ("Turn left!", "turn left"),
            ("I would go to red ball 10.", "go to red ball 10"),
            ("Action: Pick up  KEY now", "pick up key"),
            ("Action: turn left\nAction: turn left", "turn left"),
        ] {
            let parsed = read(text);
            assert_eq!(parsed.action.as_deref(), Some(action), "{text}");
            assert!(
                parsed.found && parsed.normalised && parsed.local_reply.is_none(),
                "{text}"
            );
        }
        // What stands around an action does not count, whether the action is on offer or not.
        let other = "Thought: my key check is over\nAction: open the door";
        assert_eq!(read(other), Parser::ActionLine.parse(&[], other));
        let exact = read("Thought: pick up key\nAction: turn left");
        assert_eq!(exact.action.as_deref(), Some("turn left"));
        assert!(!exact.normalised);
    }

    #[test]
    fn one_that_names_none_or_several_is_read_as_before() {
        for text in [
            "",
            "go on",
            "turn left, then pick up key",
            "checked",
            "red ball 1",
        ] {
            assert_eq!(read(text), Parser::ActionLine.parse(&[], text), "{text}");
        }
    }
}
