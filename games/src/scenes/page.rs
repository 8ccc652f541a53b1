//! A web page as the accessibility tree that the policy was shown, and the node that it acted on.

use super::played::{PlayedTask, Scenes};
use serde_json::{Value, json};

/// Actions whose first argument is a node's number.
const ON_NODES: [&str; 3] = ["click", "type", "hover"];

/// Each turn's page is the one that it began with: that of the answer before it.
pub(super) fn scenes(played: &PlayedTask<'_>) -> Scenes {
    let mut seen = played.prompt;
    let turns = played.turns.iter().map(|(action, answer)| {
        let scene = page(seen, *action);
        seen = answer;
        scene
    });
    Scenes {
        start: None,
        turns: turns.collect(),
    }
}

fn page(text: &str, action: Option<&str>) -> Value {
    let acted = action.and_then(target);
    let nodes: Vec<Value> = text
        .lines()
        .filter_map(node)
        .map(|(depth, id, shown)| json!([depth, id, shown]))
        .collect();
    let tab = text.lines().find(|line| line.contains("(current)"));
    json!({"kind": "page", "tab": tab, "nodes": nodes, "acted": acted, "action": action})
}

/// `<tabs>[<number>] <role and name>`.
fn node(line: &str) -> Option<(usize, u64, &str)> {
    let bare = line.trim_start_matches(['\t', ' ']);
    let (number, shown) = bare.strip_prefix('[')?.split_once("] ")?;
    let depth = line.bytes().take_while(|byte| *byte == b'\t').count();
    Some((depth, number.parse().ok()?, shown))
}

/// The node that an action names, such as 12 in "click \[12\]".
fn target(action: &str) -> Option<u64> {
    let (verb, rest) = action.trim().split_once('[')?;
    let number = rest.split_once(']')?.0;
    ON_NODES
        .contains(&verb.trim())
        .then(|| number.trim().parse().ok())?
}
