//! From YAML text and `key=value` overrides to a resolved [`Config`].

use super::tree::{
    DEPTH_MAX, deeper_than, get, interpolate, old_boolean, remove, set, shown, yaml,
};
use super::{Config, Pipeline, idle, keys, upstream};
use crate::error::beginning;
use crate::files::shipped;
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::io::Read as _;
use std::path::Path;

/// Gives files of questions that name no environment the name of the file.
fn name_files(tree: &mut Value) {
    let tasks = tree
        .pointer_mut("/data/tasks")
        .and_then(Value::as_array_mut);
    for source in tasks.into_iter().flatten() {
        let file = get(source, "file").and_then(Value::as_str).map(Path::new);
        let stem = file
            .and_then(Path::file_stem)
            .and_then(|stem| stem.to_str());
        let stem = stem.map(Value::from);
        let is_named = get(source, "env").is_some_and(|env| !env.is_null());
        if let (Some(stem), Some(fields)) = (stem.filter(|_| !is_named), source.as_object_mut()) {
            fields.insert("env".to_owned(), stem);
        }
    }
}

/// Larger than any run config; a larger file is not a config and is not read.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// A run config, resolved but not yet planned.
#[derive(Debug, Clone)]
pub struct ResolvedConfig {
    /// Stem of the file's name: the default head of the run id.
    pub stem: String,
    /// The whole config as a tree with all defaults filled in.
    pub tree: Value,
    /// The same config, typed and checked.
    pub config: Config,
    /// Keys that were given but have no effect here.
    pub unused: Vec<String>,
    /// Notes on keys of AgentGym-RL that behave differently here, one line each.
    pub notes: Vec<String>,
}

impl ResolvedConfig {
    /// Reads a file and applies overrides in order.
    ///
    /// # Errors
    /// An unreadable file, bad YAML, an unknown key, a wrong type, or values that do not fit
    /// together.
    pub fn read(path: &Path, overrides: &[String]) -> Result<Self> {
        let path = &shipped(path);
        let text = read_text(path)?;
        let stem = path
            .file_stem()
            .map(|s| s.to_string_lossy().into_owned())
            .unwrap_or_default();
        Self::parse(&stem, path, &text, overrides)
    }

    /// Reads a config from text; `path` names it in messages.
    pub fn parse(stem: &str, path: &Path, text: &str, overrides: &[String]) -> Result<Self> {
        let read = Self::given(path, text, overrides, false)?;
        Ok(Self {
            stem: stem.to_owned(),
            ..read
        })
    }

    /// As [`ResolvedConfig::parse`], from the text of a stored plan: only checks that protect its
    /// readers are repeated, so that an existing run can always be resumed.
    pub fn parse_stored(path: &Path, text: &str, overrides: &[String]) -> Result<Self> {
        Self::given(path, text, overrides, true)
    }

    /// Reads the text and applies the overrides.
    fn given(path: &Path, text: &str, overrides: &[String], stored: bool) -> Result<Self> {
        let format = |message: String| Error::Format {
            path: path.into(),
            message,
        };
        let mut given: Value = if text.trim().is_empty() {
            Value::Null
        } else {
            yaml(text).map_err(&format)?
        };
        // Deeper ones are refused below.
        if !deeper_than(&given, DEPTH_MAX) {
            read_booleans("", &mut given);
        }
        match &given {
            Value::Object(_) => {}
            Value::Null if overrides.is_empty() => {
                return Err(format(
                    "it holds no keys; configs/smoke.yaml is a small one to start from".into(),
                ));
            }
            Value::Null => given = Value::Object(Map::new()),
            other => {
                return Err(format(format!(
                    "a run config is a map of keys such as `run: {{seed: 1}}`, found {}",
                    shown(other)
                )));
            }
        }
        let mut pairs = Vec::with_capacity(overrides.len());
        for text in overrides {
            let (key, value) = text.split_once('=').ok_or_else(|| {
                Error::value(
                    text.as_str(),
                    "an override is written key=value, e.g. run.seed=2",
                )
            })?;
            let mut value = yaml(value)
                .map_err(|e| Error::value(key, format!("cannot read {value:?}: {e}")))?;
            let key = key.trim_start_matches('+');
            read_booleans(key, &mut value);
            pairs.push((key.to_owned(), value));
        }
        const PIPELINE: &str = "run.pipeline";
        let pipeline = pairs.iter().rev().find(|(key, _)| key == PIPELINE);
        let pipeline = pipeline.map(|(_, value)| value);
        let mut unused = Vec::new();
        if pipeline.or_else(|| get(&given, PIPELINE)) == Some(&Value::from("eval")) {
            let found = upstream::of_evaluation(pairs, &given)?;
            (pairs, unused) = (found.given, found.unused);
        }
        let mut by_hand = Value::Object(Map::new());
        let mut wrong = Vec::new();
        for (key, value) in pairs {
            match check_known(&key, &value) {
                Err(e) => wrong.push(e),
                Ok(()) => {
                    set(&mut given, &key, value.clone())?;
                    set(&mut by_hand, &key, value)?;
                }
            }
        }
        upstream::one_source_of_tasks(&mut given, &by_hand)?;
        name_files(&mut given);
        if !stored && !deeper_than(&given, DEPTH_MAX) {
            read_home(&mut given);
        }
        let read = Self::resolve(given.clone(), stored, wrong)?;
        unused.extend(read.unused);
        let mut notes = upstream::notes(&given, &read.config, &unused);
        notes.extend(idle::note(&given, &read.tree, &read.config));
        Ok(Self {
            notes,
            unused,
            ..read
        })
    }

    /// Resolves a stored plan's tree.
    ///
    /// # Errors
    /// A tree that is not a config, or numbers too large to process.
    pub fn from_tree(tree: Value) -> Result<Self> {
        Self::resolve(tree, true, Vec::new())
    }

    /// `wrong`: what is known to be wrong with keys already; all of it is one error.
    fn resolve(mut tree: Value, stored: bool, mut wrong: Vec<Error>) -> Result<Self> {
        let mut sections = tree.as_object().into_iter().flatten();
        if let Some((name, _)) = sections.find(|(_, section)| deeper_than(section, DEPTH_MAX)) {
            return Err(Error::value(
                name,
                format!("is nested deeper than {DEPTH_MAX} levels, which no key is"),
            ));
        }
        let mut unused = Vec::new();
        check_tree("", &tree, &tree, (&mut unused, &mut wrong));
        Error::all(wrong)?;
        for key in keys::KEYS.iter().filter(|k| k.kind != keys::Kind::Unused) {
            if get(&tree, key.path).is_none() {
                let default = match stored {
                    true => key.before(),
                    false => key.default,
                };
                let default = yaml(default).map_err(|e| Error::value(key.path, e))?;
                set(&mut tree, key.path, default)?;
            }
        }
        for path in &unused {
            remove(&mut tree, path);
        }
        interpolate(&mut tree)?;
        upstream::normalise(&mut tree)?;
        // Before typing, whose errors would mention only integer widths.
        keys::check_numbers(&tree, stored)?;
        let config: Config = typed(&tree)?;
        super::check::check(&config, stored)?;
        Ok(Self {
            stem: String::new(),
            tree,
            config,
            unused,
            notes: Vec::new(),
        })
    }

    /// True if the config has evaluation tasks and no training tasks, although its pipeline needs
    /// some: the command for it is `eval`.
    pub fn evaluates_alone(&self) -> bool {
        let config = &self.config;
        let plays = matches!(config.run.pipeline, Pipeline::Rl | Pipeline::AgentEvol);
        plays && !config.has_tasks() && !config.evaluation.sets.is_empty()
    }

    /// The identity leaves that are hashed: all except keys added later that hold their default.
    pub(crate) fn hashed(tree: &Value) -> Vec<(&'static str, Value)> {
        let mut leaves = Self::leaves(tree, keys::Kind::Identity);
        leaves.retain(|(path, value)| {
            let key = keys::find(path).expect("a leaf has a key");
            !key.hashed_if_set || before(tree, key).as_ref() != Some(value)
        });
        leaves
    }

    /// Leaves of the tree that are of `kind`, as sorted (path, value) pairs.
    pub fn leaves(tree: &Value, kind: keys::Kind) -> Vec<(&'static str, Value)> {
        let mut out: Vec<_> = keys::KEYS
            .iter()
            .filter(|key| super::engine::kind_in(tree, key) == kind)
            .filter_map(|key| get(tree, key.path).map(|value| (key.path, value.clone())))
            .collect();
        out.sort_by_key(|(path, _)| *path);
        out
    }
}

fn read_text(path: &Path) -> Result<String> {
    let unread = |source| Error::Read {
        path: path.into(),
        source,
    };
    let format = |message: String| Error::Format {
        path: path.into(),
        message,
    };
    let file = std::fs::File::open(path).map_err(unread)?;
    if file.metadata().map_err(unread)?.is_dir() {
        return Err(format("it is a folder; give the YAML file in it".into()));
    }
    let mut bytes = Vec::new();
    file.take(CONFIG_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(unread)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(format(format!(
            "it is longer than {CONFIG_BYTES_MAX} bytes, which no run config is; give the YAML file of a run"
        )));
    }
    String::from_utf8(bytes).map_err(|e| {
        let valid = e.utf8_error().valid_up_to();
        let line = e.as_bytes()[..valid]
            .iter()
            .filter(|b| **b == b'\n')
            .count()
            + 1;
        format(format!(
            "line {line} is not UTF-8 (byte {valid}); save the file as UTF-8"
        ))
    })
}

/// What plans from before a key do, as a resolved tree contains it.
fn before(tree: &Value, key: &keys::KeySpec) -> Option<Value> {
    let reference = key.before().strip_prefix("${");
    match reference.and_then(|r| r.strip_suffix('}')) {
        Some(path) => get(tree, path).cloned(),
        None => yaml(key.before()).ok(),
    }
}

fn unknown(path: &str) -> Error {
    let near = || Some(format!(": did you mean `{}`?", keys::nearest(path)?));
    let hint = upstream::elsewhere(path).map(|instead| format!(": {instead}."));
    let hint = hint.or_else(near).unwrap_or_else(|| ".".to_owned());
    Error::UnknownKey {
        key: beginning(path.to_owned(), 200),
        hint,
    }
}

/// Checks that an override names a key, or a section with a map of keys.
fn check_known(path: &str, value: &Value) -> Result<()> {
    let section = keys::KEYS.iter().any(|k| {
        k.path
            .strip_prefix(path)
            .is_some_and(|rest| rest.starts_with('.'))
    });
    match keys::find(path) {
        Some(_) => Ok(()),
        None if section && value.is_object() => Ok(()),
        None if section => Err(Error::value(
            path,
            "is a section; give one of the keys below it",
        )),
        None => Err(unknown(path)),
    }
}

fn check_tree(
    path: &str,
    node: &Value,
    whole: &Value,
    (unused, wrong): (&mut Vec<String>, &mut Vec<Error>),
) {
    if !path.is_empty() {
        match keys::find(path) {
            Some(key) if key.kind == keys::Kind::Unused => {
                wrong.extend(upstream::check_unused(key, node, whole).err());
                unused.push(path.to_owned());
                return;
            }
            Some(_) => return,
            None => {
                if let Err(e) = check_known(path, node) {
                    wrong.push(e);
                    return;
                }
            }
        }
    }
    for (name, child) in node.as_object().into_iter().flatten() {
        let below = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        check_tree(&below, child, whole, (unused, wrong));
    }
}

/// Expands `~/` at the beginning of a value, which a shell does for words alone.
fn read_home(node: &mut Value) {
    match node {
        Value::String(text) => {
            if let (Some(rest), Some(home)) = (text.strip_prefix("~/"), std::env::var_os("HOME")) {
                *text = Path::new(&home).join(rest).to_string_lossy().into_owned();
            }
        }
        Value::Array(all) => all.iter_mut().for_each(read_home),
        Value::Object(all) => all.values_mut().for_each(read_home),
        _ => {}
    }
}

/// Turns words like `yes` and `off` into booleans where a key takes one; elsewhere they are text,
/// such as a run that is called `n`.
fn read_booleans(path: &str, node: &mut Value) {
    /// Of an entry of `evaluation.sets`.
    const APART: &str = "evaluation.sets.apart";
    match node {
        Value::String(word) => {
            let takes = |key: &keys::KeySpec| {
                key.kind == keys::Kind::Unused || matches!(key.default, "true" | "false")
            };
            if let Some(flag) = old_boolean(word)
                && (path == APART || keys::find(path).is_some_and(takes))
            {
                *node = Value::Bool(flag);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|one| read_booleans(path, one)),
        Value::Object(all) => {
            for (name, child) in all {
                match path {
                    "" => read_booleans(name, child),
                    _ => read_booleans(&format!("{path}.{name}"), child),
                }
            }
        }
        _ => {}
    }
}

/// Deserializes with the path of each value, so that an error can name the key.
fn typed(tree: &Value) -> Result<Config> {
    serde_path_to_error::deserialize(tree).map_err(|e| {
        let key = e.path().to_string();
        let said = e.into_inner().to_string();
        let doc = keys::find(&key)
            .filter(|k| tells_more(k.doc, &said))
            .map(|k| format!(". It means: {}", k.doc))
            .unwrap_or_default();
        let message = match (said.split_once(", expected "), get(tree, &key)) {
            (Some((_, expected)), Some(found)) if said.starts_with("invalid ") => {
                format!("expected {}, found {}", wanted(expected), shown(found))
            }
            // An error about an unknown name already lists the known ones.
            (_, Some(found)) if !said.starts_with("unknown ") => {
                format!("{said} (found {})", shown(found))
            }
            (_, Some(_)) => said,
            (_, None) => said,
        };
        Error::value(key, format!("{message}{doc}"))
    })
}

/// True unless the key's doc is a list of names that the message contains too.
fn tells_more(doc: &str, said: &str) -> bool {
    let mut words = doc.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| word != "or" && !said.contains(word))
}

/// A type's name for people.
fn wanted(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "text (in quotes, if it looks like something else)",
        "a sequence" => "a list",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
run: {id: on}
data: {tasks: [{env: textcraft, ids: 0..4}]}
actor_rollout_ref: {actor: {use_kl_loss: yes}, rollout: {n: 2}}
evaluation: {sets: [{name: no, env: textcraft, ids: 4..8, apart: off}]}
";

    #[test]
    fn yes_and_no_are_text_where_a_key_takes_text() {
        let read = |overrides: &[&str]| {
            let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
            ResolvedConfig::parse("x", Path::new("x.yaml"), TEXT, &overrides)
        };
        let config = read(&[]).unwrap().config;
        assert_eq!(config.run.id.as_deref(), Some("on"));
        assert!(config.actor_rollout_ref.actor.use_kl_loss);
        let set = &config.evaluation.sets[0];
        assert_eq!((set.name.as_str(), set.apart), ("no", false));
        let config = read(&["run.id=n", "actor_rollout_ref.actor.use_kl_loss=off"]);
        let config = config.unwrap().config;
        assert_eq!(config.run.id.as_deref(), Some("n"));
        assert!(!config.actor_rollout_ref.actor.use_kl_loss);
        let wrong = read(&["run.seed=yes"]).unwrap_err().to_string();
        assert!(wrong.contains("run.seed"), "{wrong}");
    }
}
