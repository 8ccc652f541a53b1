//! Agent styles and the request for a summary: instructions in addition to the environment's own
//! text, as files that users can edit. `{instruction}` in a style stands for the environment's own
//! instruction. The text is read when the plan is made and hashed into it, so a run does not depend
//! on later changes of the file.

use crate::config::{PromptText, ResolvedConfig};
use crate::{Error, Result, files};
use std::path::{Path, PathBuf};

const SECTION: &str = "actor_rollout_ref.agentgym";
const FOLDER: &str = "prompts";
/// Longer than any instruction; each episode pays for its tokens.
const BYTES_MAX: usize = 32 << 10;

/// Replaces file names by the contents of the files.
pub(crate) fn absorb(config: &mut ResolvedConfig, base: &Path) -> Result<()> {
    let gym = &mut config.config.actor_rollout_ref.agentgym;
    for (name, given) in [("style", &mut gym.style), ("summary", &mut gym.summary)] {
        let Some(PromptText::Named(file)) = given.clone() else {
            continue;
        };
        let read = read(&format!("{SECTION}.{name}"), file, base)?;
        config.tree["actor_rollout_ref"]["agentgym"][name] =
            serde_json::to_value(&read).expect("a style is plain text");
        *given = Some(read);
    }
    Ok(())
}

fn read(key: &str, name: String, base: &Path) -> Result<PromptText> {
    let path = files::shipped(&path_of(&name, base));
    if let Err(error) = std::fs::metadata(&path) {
        return Err(Error::value(
            key,
            format!(
                "`{name}` means the file {}, which cannot be read ({error}); files in {}: {}. Relative paths \
                 start at the current folder",
                path.display(),
                base.join(FOLDER).display(),
                known(base)
            ),
        ));
    }
    let text = files::read_text(key, &path, 2 * BYTES_MAX as u64)?;
    let text = text.trim().to_owned();
    if text.is_empty() || text.len() > BYTES_MAX {
        let found = text.len();
        return Err(Error::value(
            key,
            format!(
                "{} holds {found} bytes; 1 to {BYTES_MAX} are an instruction",
                path.display()
            ),
        ));
    }
    if text.contains("${") {
        return Err(Error::value(
            key,
            format!(
                "{} holds `${{`, which begins a reference to a key wherever the plan is read; write it otherwise",
                path.display()
            ),
        ));
    }
    Ok(PromptText::Read { name, text })
}

/// A plain word names a file in `prompts/`; anything else is a path.
fn path_of(name: &str, base: &Path) -> PathBuf {
    match name.contains(['/', '.']) {
        true => base.join(name),
        false => base.join(FOLDER).join(format!("{name}.md")),
    }
}

fn known(base: &Path) -> String {
    let entries = std::fs::read_dir(base.join(FOLDER))
        .into_iter()
        .flatten()
        .flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    const KEY: &str = "actor_rollout_ref.agentgym.style";

    fn plan(base: &Path, style: &str) -> Result<Plan> {
        let text = "data: {tasks: [{env: textcraft, ids: 0..20}]}
actor_rollout_ref: {rollout: {n: 2}}";
        let style = format!("{KEY}={style}");
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &[style])?;
        Plan::new(config, base)
    }

    fn told(plan: &Plan) -> String {
        plan.config
            .actor_rollout_ref
            .agentgym
            .opening_of("Craft.")
            .1
    }

    #[test]
    fn a_plan_keeps_the_text_and_another_text_is_another_plan() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prompts/careful.md");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "{instruction}\nTake care.\n").unwrap();
        let first = plan(dir.path(), "careful").unwrap();
        assert_eq!(told(&first), "Craft.\nTake care.");
        let by_path = plan(dir.path(), "prompts/careful.md").unwrap();
        assert_eq!(told(&by_path), told(&first));
        std::fs::write(&file, "Hurry. {instruction}").unwrap();
        let second = plan(dir.path(), "careful").unwrap();
        assert_ne!(first.identity, second.identity);
        drop(dir);
        let stored = Plan::from_bytes(&first.to_bytes()).unwrap();
        assert_eq!(told(&stored), "Craft.\nTake care.");
        let without = plan(Path::new("/nowhere"), "null").unwrap();
        assert_eq!(told(&without), "Craft.");
    }

    #[test]
    fn what_is_not_there_is_named_with_what_is() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("prompts")).unwrap();
        for name in ["b", "a"] {
            std::fs::write(dir.path().join(format!("prompts/{name}.md")), "x").unwrap();
        }
        let message = plan(dir.path(), "c").unwrap_err().to_string();
        assert!(
            message.contains("prompts/c.md") && message.contains("a, b"),
            "{message}"
        );
        std::fs::write(dir.path().join("prompts/c.md"), " ").unwrap();
        let message = plan(dir.path(), "c").unwrap_err().to_string();
        assert!(message.contains("holds 0 bytes"), "{message}");
        std::fs::write(dir.path().join("prompts/c.md"), "Cost: ${n}").unwrap();
        let message = plan(dir.path(), "c").unwrap_err().to_string();
        assert!(message.contains("prompts/c.md holds `${`"), "{message}");
    }

    /// Each shipped style keeps the environment's own text, and none contains the marker that
    /// introduces an action, which may occur only once.
    #[test]
    fn shipped_styles_are_sound() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        assert_eq!(known(root), "plain, plan, react, reflect, summary");
        for name in ["plain", "plan", "react", "reflect"] {
            let text = told(&plan(root, name).unwrap());
            assert!(text.starts_with("Craft.\n"), "{name}: {text}");
            assert!(
                !text.contains("Action:") && text.len() < 700,
                "{name}: {text}"
            );
        }
    }

    /// The request is stored in the plan like a style, and does not contain the marker of an action
    /// either: an answer that copies the request must not act.
    #[test]
    fn the_request_for_a_summary_is_part_of_the_plan() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let text = "data: {tasks: [{env: textcraft, ids: 0..20}]}
actor_rollout_ref: {rollout: {n: 2}}";
        let plan = |value: &str| {
            let given = format!("{SECTION}.summary={value}");
            let config = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &[given])?;
            Plan::new(config, root)
        };
        let with = plan("summary").unwrap();
        let stored = Plan::from_bytes(&with.to_bytes()).unwrap();
        let gym = &stored.config.actor_rollout_ref.agentgym;
        let asked = gym.summary_request().unwrap();
        assert!(asked.len() > 40 && !asked.contains("Action:"), "{asked}");
        let without = plan("null").unwrap();
        let gym = &without.config.actor_rollout_ref.agentgym;
        assert_eq!(gym.summary_request(), None);
        assert_ne!(with.identity, without.identity);
        let message = plan("nothing").unwrap_err().to_string();
        assert!(
            message.contains("agentgym.summary") && message.contains("prompts/nothing.md"),
            "{message}"
        );
    }
}
