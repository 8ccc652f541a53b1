//! How conversations begin: our own way, AgentGym's turns in our own words, or the turns of a file,
//! so that figures can be compared with those of a program that begins in the same way. The turns
//! are read when the plan is made and hashed into it, like a style.

use crate::config::{Opening, OpeningTurn, ResolvedConfig, Speaker};
use crate::{Error, Result, files};
use std::path::Path;

const KEY: &str = "actor_rollout_ref.agentgym.prompt";
const AGENTGYM: &str = "agentgym";
/// What the environment's own text, or a style around it, replaces.
const INSTRUCTION: &str = "{instruction}";
/// What the policy is made to answer where `agentgym` is asked for.
const ASSENT: &str = "Understood. I will keep to these rules and work on the task that follows.";
/// The longest published turns, those of the sheet environment, have some 10 KB.
const BYTES_MAX: u64 = 64 << 10;

/// Replaces a name or a file by turns.
pub(crate) fn absorb(config: &mut ResolvedConfig, base: &Path) -> Result<()> {
    let gym = &mut config.config.actor_rollout_ref.agentgym;
    let turns = match &gym.prompt {
        Opening::Named(name) if name == Opening::OWN => return Ok(()),
        Opening::Named(name) if name == AGENTGYM => vec![
            turn(Speaker::Human, INSTRUCTION),
            turn(Speaker::Gpt, ASSENT),
        ],
        Opening::Named(name) => read(name, base)?,
        Opening::Read { name, turns } => {
            check(name, turns)?;
            turns.clone()
        }
    };
    let (Opening::Named(name) | Opening::Read { name, .. }) = &gym.prompt;
    if !turns.iter().any(|turn| turn.value.contains(INSTRUCTION)) {
        let unheard = [
            ("instruction", gym.instruction.is_some()),
            ("style", gym.style.is_some()),
        ];
        if let Some((key, _)) = unheard.iter().find(|(_, given)| *given) {
            return Err(Error::value(
                KEY,
                format!(
                    "no turn of `{name}` has {INSTRUCTION} in it, where the text of \
                     actor_rollout_ref.agentgym.{key} would stand; write {INSTRUCTION} there, or \
                     leave {key} out"
                ),
            ));
        }
    }
    let name = name.clone();
    gym.prompt = Opening::Read { name, turns };
    config.tree["actor_rollout_ref"]["agentgym"]["prompt"] =
        serde_json::to_value(&gym.prompt).expect("turns are plain text");
    Ok(())
}

fn turn(from: Speaker, value: &str) -> OpeningTurn {
    let value = value.to_owned();
    OpeningTurn { from, value }
}

fn read(name: &str, base: &Path) -> Result<Vec<OpeningTurn>> {
    let path = base.join(name);
    let shown = path.display();
    if let Err(error) = std::fs::metadata(&path) {
        return Err(Error::value(
            KEY,
            format!(
                "`{name}` is neither {} nor {AGENTGYM}, and the file {shown} cannot be read \
                 ({error}); relative paths start at the current folder",
                Opening::OWN
            ),
        ));
    }
    let text = files::read_text(KEY, &path, BYTES_MAX)?;
    let turns: Vec<OpeningTurn> = serde_json::from_str(&text).map_err(|error| {
        Error::value(
            KEY,
            format!(
                "{shown}: expected a JSON array such as [{{\"from\": \"human\", \"value\": \
                 \"{INSTRUCTION}\"}}, {{\"from\": \"gpt\", \"value\": \"…\"}}]: {error}"
            ),
        )
    })?;
    check(&shown.to_string(), &turns)?;
    Ok(turns)
}

/// The observation follows as the human's, so the turns are pairs of human and gpt.
fn check(name: &str, turns: &[OpeningTurn]) -> Result<()> {
    let bad = |problem: String| Err(Error::value(KEY, format!("{name}: {problem}")));
    if turns.is_empty() {
        return bad(format!(
            "holds no turns; give some, or {} for none",
            Opening::OWN
        ));
    }
    for (index, turn) in turns.iter().enumerate() {
        let expected = [Speaker::Human, Speaker::Gpt][index % 2];
        let number = index + 1;
        if turn.from != expected {
            let (found, expected) = (turn.from.name(), expected.name());
            return bad(format!(
                "turn {number} is from {found}; human and gpt take turns, so it has to be from {expected}"
            ));
        }
        if turn.value.trim().is_empty() {
            return bad(format!("turn {number} says nothing"));
        }
        if turn.value.contains("${") {
            return bad(format!(
                "turn {number} holds `${{`, which begins a reference to a key wherever the plan is \
                 read; write it otherwise"
            ));
        }
    }
    if turns.len() % 2 == 1 {
        return bad(
            "ends with the human, whose next message is the first observation; end with a turn \
             from gpt"
                .to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    fn plan(base: &Path, given: &[&str]) -> Result<Plan> {
        let text = "data: {tasks: [{env: textcraft, ids: 0..20}]}
actor_rollout_ref: {rollout: {n: 2}}";
        let given: Vec<String> = given
            .iter()
            .map(|pair| format!("actor_rollout_ref.agentgym.{pair}"))
            .collect();
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &given)?;
        Plan::new(config, base)
    }

    fn begun(plan: &Plan) -> (Vec<String>, String) {
        let gym = &plan.config.actor_rollout_ref.agentgym;
        let (turns, head) = gym.opening_of("Craft.");
        let turns = turns.iter().map(|turn| turn.value.clone()).collect();
        (turns, head)
    }

    #[test]
    fn without_the_key_nothing_changes_and_with_it_the_plan_is_another() {
        let nowhere = Path::new("/nowhere");
        let without = plan(nowhere, &[]).unwrap();
        assert_eq!(begun(&without), (vec![], "Craft.".to_owned()));
        let own = plan(nowhere, &["prompt=own"]).unwrap();
        assert_eq!(own.identity, without.identity);
        let turns = plan(nowhere, &["prompt=agentgym"]).unwrap();
        assert_ne!(turns.identity, without.identity);
        let stored = Plan::from_bytes(&turns.to_bytes()).unwrap();
        assert_eq!(stored.identity, turns.identity);
        let (said, head) = begun(&stored);
        assert_eq!((said.len(), head.as_str()), (2, ""));
        assert_eq!(said[0], "Craft.");
        assert!(!said[1].contains("Action:"), "{}", said[1]);
    }

    #[test]
    fn a_file_of_turns_is_kept_by_the_plan() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("turns.json");
        let write = |told: &str| {
            let text = format!(
                r#"[{{"from": "human", "loss": null, "value": "{told}"}},
                    {{"from": "assistant", "loss": false, "value": "Yes."}}]"#
            );
            std::fs::write(&file, text).unwrap();
        };
        write("Rules: {instruction}");
        let first = plan(
            dir.path(),
            &["prompt=turns.json", "instruction=Craft well."],
        );
        let first = first.unwrap();
        write("Play.");
        let second = plan(dir.path(), &["prompt=turns.json"]).unwrap();
        assert_ne!(first.identity, second.identity);
        let unheard = plan(dir.path(), &["prompt=turns.json", "instruction=Craft."]);
        let message = unheard.unwrap_err().to_string();
        assert!(
            message.contains("{instruction}") && message.contains("leave instruction out"),
            "{message}"
        );
        drop(dir);
        let stored = Plan::from_bytes(&first.to_bytes()).unwrap();
        assert_eq!(begun(&stored).0, ["Rules: Craft well.", "Yes."]);
    }

    #[test]
    fn what_is_no_opening_is_refused_by_its_turn() {
        let dir = tempfile::tempdir().unwrap();
        let human = r#"{"from": "human", "value": "x"}"#;
        let gpt = r#"{"from": "gpt", "value": "y"}"#;
        for (text, words) in [
            (
                format!(r#"[{{"from": "system", "value": "x"}}, {gpt}]"#),
                "unknown variant `system`, expected",
            ),
            ("[]".to_owned(), "holds no turns"),
            (String::new(), "expected a JSON array"),
            (format!("[{gpt}, {human}]"), "turn 1 is from gpt"),
            (format!("[{human}, {human}]"), "turn 2 is from human"),
            (format!("[{human}]"), "ends with the human"),
            (
                format!(r#"[{human}, {{"from": "gpt", "value": " "}}]"#),
                "turn 2 says nothing",
            ),
            (
                format!(r#"[{human}, {{"from": "gpt", "value": "${{n}}"}}]"#),
                "turn 2 holds `${`",
            ),
        ] {
            std::fs::write(dir.path().join("turns.json"), &text).unwrap();
            let refused = plan(dir.path(), &["prompt=turns.json"]);
            let message = refused.expect_err(&text).to_string();
            assert!(
                message.contains("agentgym.prompt") && message.contains("turns.json"),
                "{message}"
            );
            assert!(message.contains(words), "{text}: {message}");
        }
        let message = plan(dir.path(), &["prompt=agentgim"]).unwrap_err();
        let message = message.to_string();
        assert!(
            message.contains("`agentgim` is neither own nor agentgym"),
            "{message}"
        );
    }
}
