//! Files of questions among the sources of `data.tasks`: each is an environment of its own, served by
//! whoever plays it. The plan holds the digest of the file and the numbers of its rows, so that a run means
//! the same rows for ever.

use crate::config::{Ids, ResolvedConfig, TaskSource};
use crate::files::{self, TRAJECTORIES_BYTES_MAX};
use crate::{Error, Result};
use agentgym_envs::builtin;
use agentgym_envs::spec::spec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The columns that can be named.
const COLUMNS: [&str; 3] = ["prompt", "answer", "id"];

/// By environment, its file and the numbers of its rows.
type Rows = BTreeMap<String, (String, BTreeSet<i64>)>;

/// Reads the files: their digests, and which rows there are.
pub(crate) fn absorb(config: &mut ResolvedConfig, base: &Path) -> Result<()> {
    let mut rows = Rows::new();
    for index in 0..config.config.data.tasks.len() {
        let key = |field: &str| format!("data.tasks[{index}].{field}");
        let source = &mut config.config.data.tasks[index];
        let Some(file) = source.file.clone() else {
            let given = [
                ("grade", source.grade.is_some()),
                ("columns", source.columns.is_some()),
                ("digest", source.digest.is_some()),
            ];
            match given.iter().find(|(_, is_given)| *is_given) {
                None => continue,
                Some((field, _)) => {
                    let why = "is for a `file` of questions; give one";
                    return Err(Error::value(key(field), why));
                }
            }
        };
        let columns = source.columns.iter().flat_map(BTreeMap::keys);
        if let Some(other) = columns
            .clone()
            .find(|name| !COLUMNS.contains(&name.as_str()))
        {
            let why = format!("is none of those that are read: {}", COLUMNS.join(", "));
            return Err(Error::value(key(&format!("columns.{other}")), why));
        }
        source.grade.get_or_insert_with(|| "exact".to_owned());
        named_alone(config, index)?;
        let source = &mut config.config.data.tasks[index];
        let (digest, items) = read(source, &file, (base, &key))?;
        source.digest = Some(digest);
        if source.ids == Ids::default() {
            source.ids = ids(&items);
        }
        let (env, wanted) = (source.env.clone(), source.ids.clone());
        let tree = &mut config.config.data.tasks[index];
        config.tree["data"]["tasks"][index] = serde_json::to_value(tree).expect("plain JSON");
        rows.insert(env.clone(), (file, items.into_iter().collect()));
        has(&rows, &env, (&wanted, &key("ids")))?;
    }
    let config = &config.config;
    for (index, set) in config.evaluation.sets.iter().enumerate() {
        let key = format!("evaluation.sets[{index}].ids");
        has(&rows, &set.env, (&set.ids, &key))?;
    }
    let shown = [
        ("sources", &config.sft.sources),
        ("validation_sources", &config.sft.validation_sources),
    ];
    for (list, sources) in shown {
        for (index, source) in sources.iter().enumerate() {
            if let (Some(env), Some(ids)) = (&source.env, &source.ids) {
                has(&rows, env, (ids, &format!("sft.{list}[{index}].ids")))?;
            }
        }
    }
    Ok(())
}

/// A file's environment is no other one.
fn named_alone(config: &ResolvedConfig, index: usize) -> Result<()> {
    let tasks = &config.config.data.tasks;
    let source = &tasks[index];
    let parts = |of: &TaskSource| {
        let grade = of.grade.clone().unwrap_or_else(|| "exact".to_owned());
        (of.file.clone(), grade, of.columns.clone())
    };
    let declared = &config.config.actor_rollout_ref.agentgym.envs;
    let mut same = tasks.iter().filter(|other| other.env == source.env);
    let is_known = spec(&source.env).is_ok() || declared.contains_key(&source.env);
    if is_known || same.any(|other| parts(other) != parts(source)) {
        let why = format!(
            "`{}` is another environment too, or the same file with another grade or other columns; give this file \
             another name by `env`",
            source.env
        );
        return Err(Error::value(format!("data.tasks[{index}].env"), why));
    }
    Ok(())
}

/// The digest of a file, which is the planned one where there is one, and the numbers of its rows.
fn read(
    source: &TaskSource,
    file: &str,
    (base, key): (&Path, &dyn Fn(&str) -> String),
) -> Result<(String, Vec<i64>)> {
    let path = base.join(file);
    let bytes = files::read(&key("file"), &path, TRAJECTORIES_BYTES_MAX)?;
    if bytes.starts_with(b"PAR1") {
        let why = format!(
            "{file} is a parquet file; write its rows as JSON lines first: python -c 'import pandas; \
             pandas.read_parquet(\"{file}\").to_json(\"rows.jsonl\", orient=\"records\", lines=True)'"
        );
        return Err(Error::value(key("file"), why));
    }
    if let Err(error) = std::str::from_utf8(&bytes) {
        let at = error.valid_up_to();
        let why = format!("{file} is not UTF-8 (byte {at}); save the file as UTF-8");
        return Err(Error::value(key("file"), why));
    }
    let read = TaskSource {
        file: Some(path.display().to_string()),
        ..source.clone()
    };
    // No file is opened here: what is wrong is the rule.
    let address = builtin::parse(&read.address().unwrap_or_default());
    let address = address.map_err(|e| Error::value(key("grade"), e.to_string()))?;
    let items = address.source.items();
    let items = items.map_err(|e| Error::value(key("file"), e.to_string()))?;
    let digest = blake3::hash(&bytes).to_hex().to_string();
    Ok((digest, items.unwrap_or_default()))
}

/// Whether a file has the rows that somebody names.
fn has(rows: &Rows, env: &str, (ids, key): (&Ids, &str)) -> Result<()> {
    let Some((file, known)) = rows.get(env) else {
        return Ok(());
    };
    let missing = ids.resolve(key)?.into_iter().find(|id| !known.contains(id));
    let ends = known.first().zip(known.last());
    match (missing, ends) {
        (Some(missing), Some((first, last))) => Err(Error::value(
            key,
            format!(
                "{file} has no row {missing}; its rows are {}, from {first} to {last}",
                known.len()
            ),
        )),
        _ => Ok(()),
    }
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
