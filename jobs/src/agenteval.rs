//! Test files in AgentEval's layout: `AgentEval/{task}/{task}_test.json` with one file per category
//! in the same folder. They are read when the plan is made, so that the plan alone determines what
//! is evaluated, and a missing or invalid category file is an error before the first episode
//! instead of a gap in the final table.

use crate::config::{EvaluationSet, Ids, ResolvedConfig};
use crate::tasks::read_item_ids;
use crate::{Error, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Replaces every `file` of `evaluation.sets` by its ids and categories.
pub(crate) fn absorb(config: &mut ResolvedConfig, base: &Path) -> Result<()> {
    let environments = config.config.environments();
    for (index, set) in config.config.evaluation.sets.iter_mut().enumerate() {
        let Some(file) = set.file.take() else {
            continue;
        };
        let task = environments
            .get(&set.env)
            .map_or(set.env.as_str(), |e| e.task_name.as_str());
        let file = base.join(file);
        let key = format!("evaluation.sets[{index}]");
        set.ids = read_item_ids(&format!("{key}.file"), &file, task)?.ids;
        if set.categories.is_none() {
            set.categories = Some(siblings(&key, &file, task)?);
        }
        check(set, &key, &file)?;
        let entry = &mut config.tree["evaluation"]["sets"][index];
        if let Some(map) = entry.as_object_mut() {
            map.remove("file");
        }
        entry["ids"] = plain(&set.ids);
        entry["categories"] = plain(&set.categories);
    }
    Ok(())
}

fn plain(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("ids and names are plain JSON")
}

/// The category files in a test file's folder: every other JSON file except further `{task}_test…`
/// files; the category name is the part before the first dot.
fn siblings(key: &str, file: &Path, task: &str) -> Result<BTreeMap<String, Ids>> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let unread = |source| Error::Read {
        path: folder.into(),
        source,
    };
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_json = path.extension().is_some_and(|e| e == "json");
        let is_test = Some(path.file_name().unwrap_or_default()) == file.file_name()
            || name.starts_with(&format!("{task}_test"));
        if is_json && !is_test {
            found.push(path.clone());
        }
    }
    found.sort();
    let mut categories = BTreeMap::new();
    for path in found {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.split('.').next().unwrap_or_default().to_owned();
        let ids = read_item_ids(&format!("{key}.categories"), &path, task).map_err(|e| Error::Format {
            path: path.clone(),
            message: format!(
                "lies beside {} and is taken for one of its categories, but {e}. Move it, or give \
                 `categories` in the evaluation set ({{}} for none)",
                file.display()
            ),
        })?;
        categories.insert(name, ids.ids);
    }
    Ok(categories)
}

/// Checks that every category shares items with the set and, if there are categories, that every
/// item is in one.
fn check(set: &EvaluationSet, key: &str, file: &Path) -> Result<()> {
    let categories = set.categories_of(key)?;
    if categories.is_empty() {
        return Ok(());
    }
    let ids: BTreeSet<i64> = set.ids.resolve(key)?.into_iter().collect();
    for (name, members) in &categories {
        if ids.is_disjoint(members) {
            return Err(Error::value(
                format!("{key}.categories"),
                format!(
                    "category `{name}` shares no item with {}; remove its file from the folder, or give \
                     `categories` in the set ({{}} for none)",
                    file.display()
                ),
            ));
        }
    }
    let without: Vec<i64> = ids
        .into_iter()
        .filter(|id| !categories.values().any(|members| members.contains(id)))
        .collect();
    match without.first() {
        None => Ok(()),
        Some(first) => Err(Error::value(
            format!("{key}.categories"),
            format!(
                "{} items of {} are in none of its categories ({}), the first is {first}; add them to one, or \
                 give `categories` in the set ({{}} for none)",
                without.len(),
                file.display(),
                categories.keys().cloned().collect::<Vec<_>>().join(", ")
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    /// A folder with a test file of items 3, 5 and 7, and the files in `others`.
    fn folder(others: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let test = r#"[{"item_id": "maze_3"}, {"item_id": "maze_5", "conversations": null}, {"item_id": "maze_7"}]"#;
        std::fs::write(dir.path().join("maze_test.json"), test).unwrap();
        for (name, text) in others {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn plan(dir: &Path, more: &str) -> Result<Plan> {
        let text = format!(
            "run: {{pipeline: eval}}
actor_rollout_ref: {{agentgym: {{task_name: maze, env_addr: 'builtin:maze'}}}}
evaluation: {{sets: [{{name: m, env: maze, file: maze_test.json{more}}}]}}"
        );
        Plan::new(
            ResolvedConfig::parse("x", Path::new("x.yaml"), &text, &[])?,
            dir,
        )
    }

    const NEAR: (&str, &str) = (
        "near.v1.json",
        r#"[{"item_id": "maze_3"}, {"item_id": "maze_5"}]"#,
    );
    const FAR: (&str, &str) = (
        "far.json",
        r#"[{"item_id": "maze_7"}, {"item_id": "maze_5"}]"#,
    );

    #[test]
    fn a_plan_holds_what_the_files_held() {
        let dir = folder(&[NEAR, FAR, ("maze_test_old.json", "{}"), ("README.md", "x")]);
        let plan = plan(dir.path(), "").unwrap();
        let set = &plan.config.evaluation.sets[0];
        assert_eq!(set.ids, Ids::List(vec![3, 5, 7]));
        let categories = set.categories_of("k").unwrap();
        assert_eq!(
            categories,
            BTreeMap::from([
                ("far".into(), BTreeSet::from([5, 7])),
                ("near".into(), BTreeSet::from([3, 5])),
            ]),
            "an item may be in two"
        );
        let text = String::from_utf8(plan.to_bytes()).unwrap();
        assert!(!text.contains("maze_test"), "{text}");
        // Reading the plan again does not need the files.
        drop(dir);
        let again = Plan::from_bytes(text.as_bytes()).unwrap();
        assert_eq!(again.config.evaluation, plan.config.evaluation);
    }

    #[test]
    fn what_is_wrong_beside_a_test_file_is_named() {
        for (others, words) in [
            (vec![NEAR], "1 items of"),
            (vec![NEAR], "the first is 7"),
            (vec![NEAR, FAR, ("notes.json", "{}")], "notes.json"),
            (
                vec![NEAR, FAR, ("x.json", r#"[{"item_id": "maze_9"}]"#)],
                "`x` shares no item",
            ),
        ] {
            let dir = folder(&others);
            let message = plan(dir.path(), "").unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
            assert!(message.contains("categories"), "{message}");
            plan(dir.path(), ", categories: {}").unwrap();
        }
        let own = plan(folder(&[]).path(), ", categories: {all: 0..25}").unwrap();
        assert_eq!(
            own.config.evaluation.sets[0]
                .categories_of("k")
                .unwrap()
                .len(),
            1
        );
        let both = plan(folder(&[]).path(), ", ids: 0..3").unwrap_err();
        assert!(
            both.to_string().contains("either `file` or `ids`"),
            "{both}"
        );
    }
}
