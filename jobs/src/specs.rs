//! Specs of environments of one's own: files that `agentgym.specs` names, read when the plan is made
//! and held by it with every field filled in, so that a run means the same everywhere.

use crate::config::{ResolvedConfig, SpecSource, check_environments};
use crate::{Error, Result, files};
use agentgym_envs::spec::declared;
use serde_json::Value;
use std::path::Path;

const KEY: &str = "actor_rollout_ref.agentgym.specs";

/// Replaces file names by what the files say.
pub(crate) fn absorb(config: &mut ResolvedConfig, base: &Path) -> Result<()> {
    let gym = &mut config.config.actor_rollout_ref.agentgym;
    if gym.specs.is_empty() {
        return Ok(());
    }
    let mut names: Vec<&str> = Vec::new();
    for (index, source) in gym.specs.iter_mut().enumerate() {
        let key = format!("{KEY}[{index}]");
        let bad = |message: String| Error::value(&key, message);
        let read = match source {
            SpecSource::Named(file) => {
                let path = base.join(&*file);
                let text = files::read_text(&key, &path, declared::BYTES_MAX)?;
                declared::from_yaml(&path, &text).map_err(bad)?
            }
            SpecSource::Read(value) => {
                declared::declared(value).map_err(|why| bad(why.to_string()))?
            }
        };
        let text = serde_json::to_value(read).expect("a spec is plain data");
        if text.to_string().contains("${") {
            return Err(bad(format!(
                "the spec of `{}` holds `${{`, which begins a reference to a key wherever the plan is read; write it \
                 otherwise",
                read.name
            )));
        }
        if names.contains(&read.name) {
            return Err(bad(format!(
                "a spec before it is called `{}` too; give each its own name",
                read.name
            )));
        }
        names.push(read.name);
        *source = SpecSource::Read(text);
    }
    let held: Vec<Value> = gym
        .specs
        .iter()
        .map(|source| serde_json::to_value(source).expect("a spec is plain data"))
        .collect();
    config.tree["actor_rollout_ref"]["agentgym"]["specs"] = Value::from(held);
    check_environments(&config.config)
}
