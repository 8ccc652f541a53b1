//! Names in a config. They become metric tags, item ids, table columns and parts of file names, so
//! they must be short, printable and distinct. Names of environments must also be known ones.

use super::{Config, SpecSource, engine};
use crate::{Error, Result};
use agentgym_envs::spec;
use std::collections::BTreeSet;

/// Longest name in bytes, to fit a line of a table.
const BYTES_MAX: usize = 100;

/// Most evaluation sets, and most environments: each is a part, or a client with its counters.
const NAMED_MAX: usize = 1000;

pub(super) fn check(config: &Config) -> Result<()> {
    if let Some(name) = &config.run.name {
        plain("run.name", name)?;
    }
    let mut seen = BTreeSet::new();
    let sets = &config.evaluation.sets;
    count("evaluation.sets", sets.len())?;
    for (index, set) in sets.iter().enumerate() {
        let key = format!("evaluation.sets[{index}]");
        plain(&format!("{key}.name"), &set.name)?;
        if !seen.insert(&set.name) {
            return Err(Error::value(
                format!("{key}.name"),
                format!(
                    "`{}` is the name of a set before it; results are told by this name, so give another",
                    set.name
                ),
            ));
        }
        for category in set.categories.iter().flat_map(|all| all.keys()) {
            plain(&format!("{key}.categories"), category)?;
        }
    }
    count(
        "actor_rollout_ref.agentgym.envs",
        config.environments().len(),
    )?;
    let gym = &config.actor_rollout_ref.agentgym;
    count("actor_rollout_ref.agentgym.specs", gym.specs.len())?;
    let unread = |spec: &SpecSource| matches!(spec, SpecSource::Named(_));
    match gym.specs.iter().any(unread) {
        // Asked again when the files have been read.
        true => Ok(()),
        false => check_environments(config),
    }
}

/// Checks that each environment has a spec.
pub(crate) fn check_environments(config: &Config) -> Result<()> {
    let gym = &config.actor_rollout_ref.agentgym;
    for (name, environment) in config.environments() {
        let section = "actor_rollout_ref.agentgym";
        let key = match gym.envs.contains_key(&name) {
            true => {
                plain(&format!("{section}.envs"), &name)?;
                format!("{section}.envs.{name}.task_name")
            }
            false => format!("{section}.task_name"),
        };
        known_environment(config, &key, &environment.task_name)?;
        engine::tools(config, &name, &environment)?;
        engine::harness(config, &name, &environment)?;
    }
    Ok(())
}

fn count(key: &str, found: usize) -> Result<()> {
    match found <= NAMED_MAX {
        true => Ok(()),
        false => Err(Error::value(
            key,
            format!("has {found} entries, at most {NAMED_MAX} can be named; put several into one"),
        )),
    }
}

/// Checks that a name can be used in a tag, a file name and a terminal line.
fn plain(key: &str, name: &str) -> Result<()> {
    // Characters that change the text direction or are invisible.
    let hidden = |c: char| matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let why = if name.is_empty() {
        "is empty".to_owned()
    } else if name.len() > BYTES_MAX {
        format!("has {} bytes", name.len())
    } else if name.trim() != name || name == "." || name == ".." {
        format!("is {name:?}")
    } else {
        let bad = name
            .chars()
            .find(|c| c.is_control() || hidden(*c) || matches!(c, '/' | '\\'));
        match bad {
            None => return Ok(()),
            Some(bad) => format!("has {bad:?} in it"),
        }
    };
    Err(Error::value(
        key,
        format!(
            "a name {why}; names stand in tables, tags and file names: give 1 to {BYTES_MAX} bytes of printable text \
             without / and \\, not . or .., without blanks at its ends"
        ),
    ))
}

fn known_environment(config: &Config, key: &str, task_name: &str) -> Result<()> {
    if config.spec(task_name).is_ok() {
        return Ok(());
    }
    let mut known: Vec<&str> = spec::all().map(|spec| spec.name).collect();
    known.sort_unstable();
    let likeness = |known: &str| strsim::jaro_winkler(known, &task_name.to_lowercase());
    let near = (task_name.len() <= BYTES_MAX)
        .then(|| {
            known
                .iter()
                .copied()
                .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
        })
        .flatten()
        .filter(|near| likeness(near) > 0.8);
    let hint = near.map_or_else(String::new, |near| format!(" Did you mean `{near}`?"));
    Err(Error::value(
        key,
        format!(
            "`{task_name}` is no environment that this program knows: {}.{hint} A server that answers as one of \
             them goes by that one's name, with its address in env_addr; another kind needs a spec, \
             a file named under actor_rollout_ref.agentgym.specs (docs/environments.md)",
            known.join(", ")
        ),
    ))
}
