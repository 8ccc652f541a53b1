//! Files of questions among the sources of `data.tasks`: each is an environment of its own, served by
//! whoever plays it. The plan holds the digest of the file and the numbers of its rows, so that a run means
//! the same rows for ever.

use crate::config::{Ids, ResolvedConfig, TaskSource};
use crate::files::{self, TRAJECTORIES_BYTES_MAX};
use crate::{Error, Result};
use agentgym_envs::builtin;
use std::collections::BTreeSet;
use std::path::Path;

/// Reads the files: their digests, and which rows there are.
pub(crate) fn absorb(config: &mut ResolvedConfig, base: &Path) -> Result<()> {
    for index in 0..config.config.data.tasks.len() {
        let source = config.config.data.tasks[index].clone();
        let (env, parts) = (source.env, (&source.file, &source.grade, &source.columns));
        let key = |field: &str| format!("data.tasks[{index}].{field}");
        let Some(file) = source.file.clone() else {
            let given = [
                ("grade", source.grade.is_some()),
                ("columns", source.columns.is_some()),
            ];
            if let Some((field, _)) = given.iter().find(|(_, is_given)| *is_given) {
                return Err(Error::value(
                    key(field),
                    "is for a `file` of questions; give one",
                ));
            }
            continue;
        };
        let declared = &config.config.actor_rollout_ref.agentgym.envs;
        let others = config.config.data.tasks.iter().enumerate();
        let mut others = others.filter(|(at, other)| *at != index && other.env == env);
        let same = |other: &TaskSource| (&other.file, &other.grade, &other.columns) == parts;
        if declared.contains_key(&env) || others.any(|(_, other)| !same(other)) {
            let why =
                format!("`{env}` is another environment too; give this file another name by `env`");
            return Err(Error::value(key("env"), why));
        }
        let source = &mut config.config.data.tasks[index];
        let path = base.join(&file);
        let bytes = files::read(&key("file"), &path, TRAJECTORIES_BYTES_MAX)?;
        if bytes.starts_with(b"PAR1") {
            let why = format!(
                "{file} is a parquet file; write its rows as JSON lines first: python -c 'import pandas; \
                 pandas.read_parquet(\"{file}\").to_json(\"rows.jsonl\", orient=\"records\", lines=True)'"
            );
            return Err(Error::value(key("file"), why));
        }
        source.digest = Some(blake3::hash(&bytes).to_hex().to_string());
        let read = TaskSource {
            file: Some(path.display().to_string()),
            ..source.clone()
        };
        let address = read.address().unwrap_or_default();
        let items = builtin::parse(&address).and_then(|address| address.source.items());
        let items = items.map_err(|e| Error::value(key("file"), e.to_string()))?;
        let items = items.unwrap_or_default();
        if source.ids == Ids::default() {
            source.ids = ids(&items);
        }
        let known: BTreeSet<i64> = items.iter().copied().collect();
        let mut wanted = source.ids.resolve(&key("ids"))?.into_iter();
        if let Some(missing) = wanted.find(|id| !known.contains(id)) {
            return Err(Error::value(
                key("ids"),
                format!(
                    "{file} has no row {missing}; it has {} rows, {}",
                    items.len(),
                    ends(&items)
                ),
            ));
        }
        let tree = &mut config.tree["data"]["tasks"][index];
        *tree = serde_json::to_value(&config.config.data.tasks[index]).expect("plain JSON");
    }
    Ok(())
}

/// All rows, as a range where they are one.
fn ids(items: &[i64]) -> Ids {
    match (items.first(), items.last()) {
        (Some(first), Some(last)) if last - first + 1 == items.len() as i64 => {
            Ids::Range(format!("{first}..{}", last + 1))
        }
        _ => Ids::List(items.to_vec()),
    }
}

fn ends(items: &[i64]) -> String {
    match (items.first(), items.last()) {
        (Some(first), Some(last)) => format!("from {first} to {last}"),
        _ => "none".to_owned(),
    }
}
