//! The commit. A manifest names what a part read and wrote; putting it under
//! its slot's key, create-only, is what makes the part done. Before that
//! nothing of an attempt counts, after it nothing can change.

use crate::keys::commits_prefix;
use crate::{Artifact, AttemptId, Created, Error, Key, Result, RunId, Slot, Store};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Largest manifest; one artifact takes some 400 bytes.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// A commit that a part read from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRef {
    /// Name by which the stage knows it.
    pub name: String,
    /// Iteration of the commit.
    pub iteration: u32,
    /// Its stage.
    pub stage: String,
    /// Its part.
    pub part: u32,
}

/// What a committed part read, wrote, and was made by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this format.
    pub version: u32,
    /// The run.
    pub run: RunId,
    /// Its iteration.
    pub iteration: u32,
    /// Name of the stage.
    pub stage: String,
    /// Part of the stage.
    pub part: u32,
    /// Number of the attempt.
    pub attempt: u32,
    /// Nonce of the attempt.
    pub nonce: String,
    /// Commits that were read.
    pub inputs: Vec<InputRef>,
    /// What was written, sorted by name.
    pub outputs: Vec<Artifact>,
    /// Seed of the run.
    pub seed: u64,
    /// Class of machines that compute equal bytes.
    pub numeric_class: String,
    /// Version of the program.
    pub code_version: String,
    /// Plan revision in force.
    pub plan_revision: u32,
    /// What the planner has to know, where a stage decides something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<serde_json::Value>,
    /// How the attempt went. A commit is the end of its attempt, so there is no
    /// other record of it; manifests of older programs have an end record instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
}

/// How the attempt went that a commit ended: for people, and no part of a digest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Name of the worker process.
    pub worker: String,
    /// The worker's clock at the beginning.
    pub started_unix_s: u64,
    /// How long it took.
    pub wall_s: f64,
    /// What it measured: rates and times, which no artifact may hold.
    pub stats: serde_json::Map<String, serde_json::Value>,
}

impl Manifest {
    /// The version this program writes, and the newest it reads.
    pub const VERSION: u32 = 1;

    /// The manifest of a part that read nothing: an attempt's outputs, sorted by name. Whoever
    /// makes one that is to be trusted says the rest as well.
    pub fn new(slot: Slot, attempt: AttemptId, outputs: Vec<Artifact>) -> Self {
        Self {
            version: Self::VERSION,
            run: slot.run,
            iteration: slot.iteration,
            stage: slot.stage,
            part: slot.part,
            attempt: attempt.number,
            nonce: attempt.nonce,
            inputs: Vec::new(),
            outputs,
            seed: 0,
            numeric_class: String::new(),
            code_version: String::new(),
            plan_revision: 0,
            decision: None,
            work: None,
        }
    }

    /// The part that this is the commit of.
    pub fn slot(&self) -> Slot {
        Slot {
            run: self.run.clone(),
            iteration: self.iteration,
            stage: self.stage.clone(),
            part: self.part,
        }
    }

    /// The attempt that made it.
    pub fn attempt_id(&self) -> AttemptId {
        AttemptId {
            number: self.attempt,
            nonce: self.nonce.clone(),
        }
    }

    /// An output by name.
    ///
    /// # Errors
    /// [`Error::Unknown`] with the names there are.
    pub fn output(&self, name: &str) -> Result<&Artifact> {
        find(&self.outputs, name)
    }

    /// The stored form: JSON that people can read.
    ///
    /// # Errors
    /// More than 16 MiB.
    pub fn to_bytes(&self) -> Result<Bytes> {
        let key = Key::Commit(self.slot()).path();
        to_json(&key, "a manifest", self)
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// Too large, of a newer version, or not a manifest.
    pub fn from_bytes(content: &[u8]) -> Result<Self> {
        Self::read("manifest", content)
    }

    fn read(key: &str, content: &[u8]) -> Result<Self> {
        let manifest: Self = from_json(key, "a manifest", Self::VERSION, content)?;
        for artifact in &manifest.outputs {
            artifact.check().map_err(|why| Error::malformed(key, why))?;
        }
        Ok(manifest)
    }
}

/// How a commit ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Committed {
    /// This attempt's manifest is the commit.
    Won,
    /// Another attempt's is; here it is.
    Superseded(Box<Manifest>),
}

impl Store {
    /// Commits a part. The first manifest stands; it is safe to call again
    /// with the same one after an error.
    ///
    /// # Errors
    /// The store fails, or the commit that stands cannot be read.
    pub async fn commit(&self, manifest: &Manifest) -> Result<Committed> {
        let slot = manifest.slot();
        let key = Key::Commit(slot.clone());
        match self.create(&key, manifest.to_bytes()?).await? {
            Created::Won => Ok(Committed::Won),
            Created::Exists => Ok(Committed::Superseded(Box::new(Manifest::read(
                &key.path(),
                &self.get(&key).await?,
            )?))),
        }
    }

    /// The commit of a part, if there is one.
    ///
    /// # Errors
    /// The store fails, or the object is no manifest of this part.
    pub async fn manifest(&self, slot: &Slot) -> Result<Option<Manifest>> {
        let key = Key::Commit(slot.clone());
        let Some(content) = self.try_get(&key).await? else {
            return Ok(None);
        };
        let manifest = Manifest::read(&key.path(), &content)?;
        if manifest.slot() == *slot {
            return Ok(Some(manifest));
        }
        Err(Error::malformed(
            key.path(),
            format!(
                "it is the manifest of {}; was it copied here?",
                manifest.slot()
            ),
        ))
    }

    /// The committed parts of an iteration, sorted: one listing.
    ///
    /// # Errors
    /// The store fails.
    pub async fn commits(&self, run: &RunId, iteration: u32) -> Result<Vec<Slot>> {
        Ok(slots(self.list(&commits_prefix(run, iteration)).await?))
    }

    /// The committed parts of iteration `first` and all later ones, sorted: one listing.
    ///
    /// # Errors
    /// The store fails.
    pub async fn commits_from(&self, run: &RunId, first: u32) -> Result<Vec<Slot>> {
        Ok(slots(self.list_iterations(run, "commits", first).await?))
    }

    /// The committed parts of a run, sorted: one listing.
    ///
    /// # Errors
    /// The store fails.
    pub async fn all_commits(&self, run: &RunId) -> Result<Vec<Slot>> {
        Ok(slots(self.list_run(run, "commits").await?))
    }
}

fn slots(listed: Vec<(Key, u64)>) -> Vec<Slot> {
    let slot = |(key, _)| {
        if let Key::Commit(slot) = key {
            Some(slot)
        } else {
            None
        }
    };
    listed.into_iter().filter_map(slot).collect()
}

/// An artifact by name, or an error that lists the names there are.
pub(crate) fn find<'a>(artifacts: &'a [Artifact], name: &str) -> Result<&'a Artifact> {
    const NAMES_SHOWN: usize = 20;
    let known = || {
        let names: Vec<_> = artifacts
            .iter()
            .map(|a| a.name.as_str())
            .take(NAMES_SHOWN)
            .collect();
        let more = if artifacts.len() > NAMES_SHOWN {
            ", …"
        } else {
            ""
        };
        if names.is_empty() {
            "none".to_owned()
        } else {
            format!("{}{more}", names.join(", "))
        }
    };
    let missing = || Error::Unknown {
        what: "artifact",
        name: name.to_owned(),
        known: known(),
    };
    artifacts
        .iter()
        .find(|a| a.name == name)
        .ok_or_else(missing)
}

/// JSON with a limit, as all records of this crate are stored.
pub(crate) fn to_json(key: &str, what: &'static str, record: &impl Serialize) -> Result<Bytes> {
    let mut content = serde_json::to_vec_pretty(record).map_err(|e| Error::malformed(key, e))?;
    content.push(b'\n');
    check_size(key, what, content.len())?;
    Ok(content.into())
}

/// Reads what [`to_json`] wrote, version first: a newer record is not broken.
pub(crate) fn from_json<T: for<'de> Deserialize<'de>>(
    key: &str,
    what: &'static str,
    newest: u32,
    content: &[u8],
) -> Result<T> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    check_size(key, what, content.len())?;
    let not_json = |e| {
        Error::malformed(
            key,
            format!("it is not {what} ({e}); restore it from a copy"),
        )
    };
    let Version { version } = serde_json::from_slice(content).map_err(not_json)?;
    if version == 0 || version > newest {
        let why = format!(
            "{what} of version {version} needs a newer program; this one reads up to {newest}"
        );
        return Err(Error::malformed(key, why));
    }
    serde_json::from_slice(content).map_err(not_json)
}

fn check_size(key: &str, what: &'static str, size: usize) -> Result<()> {
    let (size, limit) = (size as u64, MANIFEST_BYTES_MAX);
    if size <= limit {
        Ok(())
    } else {
        Err(Error::TooLarge {
            key: key.to_owned(),
            what,
            size,
            limit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Digest;
    use serde_json::json;

    fn manifest() -> Manifest {
        let slot = Slot {
            run: "r".parse().unwrap(),
            iteration: 1,
            stage: "update".into(),
            part: 0,
        };
        let attempt = AttemptId {
            number: 1,
            nonce: "0000abcd".into(),
        };
        let name = "policy/config.json".to_owned();
        let output = Artifact {
            key: Key::File {
                slot: slot.clone(),
                attempt,
                name: name.clone(),
            },
            name,
            kind: "json".into(),
            size: 2,
            digest: Digest::of(b"{}"),
            chunk_digests: vec![Digest::of(b"{}")],
        };
        Manifest {
            version: Manifest::VERSION,
            run: slot.run,
            iteration: 1,
            stage: slot.stage,
            part: 0,
            attempt: 1,
            nonce: "0000abcd".into(),
            inputs: vec![InputRef {
                name: "advantage".into(),
                iteration: 1,
                stage: "advantage".into(),
                part: 0,
            }],
            outputs: vec![output],
            seed: u64::MAX,
            numeric_class: "cpu".into(),
            code_version: "0.1.0".into(),
            plan_revision: 0,
            decision: Some(json!({"kept": [1, 2], "b": 0.1})),
            work: None,
        }
    }

    fn refused(change: impl FnOnce(&mut serde_json::Value)) -> String {
        let mut value = serde_json::to_value(manifest()).unwrap();
        change(&mut value);
        Manifest::from_bytes(&serde_json::to_vec(&value).unwrap())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn it_survives_the_round_trip() {
        let manifest = manifest();
        let work = Work {
            worker: "w".to_owned(),
            started_unix_s: 7,
            wall_s: 0.5,
            stats: serde_json::Map::from_iter([("sampled_tokens".to_owned(), json!(3))]),
        };
        for work in [None, Some(work)] {
            let manifest = Manifest {
                work,
                ..manifest.clone()
            };
            assert_eq!(
                Manifest::from_bytes(&manifest.to_bytes().unwrap()).unwrap(),
                manifest
            );
        }
    }

    #[test]
    fn version_1_is_read_for_ever() {
        let golden = include_bytes!("../testdata/manifest-v1.json");
        assert_eq!(Manifest::from_bytes(golden).unwrap(), manifest());
        assert_eq!(
            manifest().to_bytes().unwrap(),
            &golden[..],
            "the written form changed: add a version"
        );
    }

    #[test]
    fn fields_of_newer_programs_are_ignored_within_a_version() {
        let mut value = serde_json::to_value(manifest()).unwrap();
        value["colour"] = json!("green");
        assert_eq!(
            Manifest::from_bytes(&serde_json::to_vec(&value).unwrap()).unwrap(),
            manifest()
        );
    }

    #[test]
    fn bad_manifests_are_refused_with_a_reason() {
        assert!(refused(|v| v["version"] = json!(2)).contains("newer program"));
        assert!(refused(|v| v["outputs"][0]["name"] = json!("other")).contains("has the key"));
        assert!(refused(|v| v["outputs"][0]["key"] = json!("runs/r/../x")).contains("not a key"));
        assert!(refused(|v| v["outputs"][0]["size"] = json!(1u64 << 40)).contains("chunk digests"));
        assert!(refused(|v| v["outputs"][0]["digest"] = json!("00")).contains("hexadecimal"));
        assert!(refused(|v| v["run"] = json!("UPPER")).contains("run id"));
        assert!(
            Manifest::from_bytes(b"\x00\x01")
                .unwrap_err()
                .to_string()
                .contains("not a manifest")
        );
        let large = vec![b' '; MANIFEST_BYTES_MAX as usize + 1];
        assert!(matches!(
            Manifest::from_bytes(&large),
            Err(Error::TooLarge { .. })
        ));
    }

    #[test]
    fn a_missing_output_names_the_others() {
        let text = manifest()
            .output("policy/model.safetensors")
            .unwrap_err()
            .to_string();
        assert!(text.contains("policy/config.json"), "{text}");
    }
}
