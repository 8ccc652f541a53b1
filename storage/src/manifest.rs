//! The commit. A manifest names what a part read and wrote; creating it, if absent, under the key
//! of its slot completes the part. Before that nothing of an attempt counts; after that nothing can
//! change.

use crate::seal;
use crate::{Artifact, AttemptId, Error, Key, PartKey, Result, RunId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Largest manifest; one artifact takes about 400 bytes.
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

/// The attempt of another run that wrote the files that a fork's commit names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The run in whose folder the files are stored; a pin there keeps them.
    pub run: RunId,
    /// Number of the attempt there.
    pub attempt: u32,
    /// Its nonce.
    pub nonce: String,
}

/// What a committed part read and wrote, and how it was made.
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
    /// The artifacts written, sorted by name.
    pub outputs: Vec<Artifact>,
    /// Seed of the run.
    pub seed: u64,
    /// Numeric class: machines of one class compute identical bytes.
    pub numeric_class: String,
    /// Version of the program.
    pub code_version: String,
    /// Plan revision in force.
    pub plan_revision: u32,
    /// The stage's decision, if it makes one that the planner needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<serde_json::Value>,
    /// Set where a fork took over a part: the attempt of the other run that wrote the files. All
    /// other commits name only files of their own attempt, and uploads that it finished for earlier
    /// attempts at the same part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// How the attempt went. The commit is the end of its attempt, so there is no end record;
    /// manifests of older programs have an end record instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
}

/// How the committed attempt went: for people, and not part of any digest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Name of the worker process.
    pub worker: String,
    /// The worker's clock at the start.
    pub started_unix_s: u64,
    /// How long it took.
    pub wall_s: f64,
    /// What it measured: rates and times, which no artifact may hold.
    pub stats: serde_json::Map<String, serde_json::Value>,
}

impl Manifest {
    /// The version that this program writes of most parts. Version 1 has no digest of its own and
    /// does not record the origin of its files.
    pub const VERSION: u32 = 2;
    /// The version of a part whose files lie in the folders of several attempts at it.
    pub const OF_SEVERAL_ATTEMPTS: u32 = 3;
    /// The version of a part of which a file is stored as its difference from another part's.
    pub const OF_DIFFERENCES: u32 = 4;
    /// The version of a part of which a file is written after the commit.
    pub const OF_LATER_FILES: u32 = 5;
    /// The version of a part of which a file is stored by the numbers that changed; the newest that this
    /// program reads.
    pub const OF_SPARSE_DIFFERENCES: u32 = 6;

    /// The manifest of a part with no inputs: an attempt's outputs, sorted by name. The caller sets
    /// the remaining fields.
    pub fn new(slot: PartKey, attempt: AttemptId, outputs: Vec<Artifact>) -> Self {
        Self {
            version: Self::version_of(&outputs, &attempt),
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
            origin: None,
            work: None,
        }
    }

    fn version_of(outputs: &[Artifact], maker: &AttemptId) -> u32 {
        let is_other =
            |a: &Artifact| matches!(&a.key, Key::File { attempt, .. } if attempt != maker);
        if outputs.iter().any(is_sparse) {
            return Self::OF_SPARSE_DIFFERENCES;
        }
        if outputs.iter().any(|a| a.after_commit) {
            return Self::OF_LATER_FILES;
        }
        if outputs.iter().any(|a| a.delta.is_some()) {
            return Self::OF_DIFFERENCES;
        }
        match outputs.iter().any(is_other) {
            true => Self::OF_SEVERAL_ATTEMPTS,
            false => Self::VERSION,
        }
    }

    /// The manifest that a fork named `child` commits for the same part: the outputs for which
    /// `keep` returns true, at their existing keys. The caller sets the remaining fields.
    ///
    /// # Errors
    /// The outputs do not all come from attempts at this part.
    pub fn taken_over(mut self, child: RunId, keep: impl FnMut(&Artifact) -> bool) -> Result<Self> {
        let key = Key::Commit(self.slot()).path();
        self.outputs.retain(keep);
        // A fork of a fork names the run that wrote the files.
        (self.version, self.origin) = match self.outputs.first().map(|first| &first.key) {
            Some(Key::File { slot, attempt, .. }) => {
                let origin = Origin {
                    run: slot.run.clone(),
                    attempt: attempt.number,
                    nonce: attempt.nonce.clone(),
                };
                (Self::version_of(&self.outputs, attempt), Some(origin))
            }
            _ => (Self::VERSION, None),
        };
        self.run = child;
        self.inputs = Vec::new();
        self.decision = None;
        self.check().map_err(|why| Error::malformed(key, why))?;
        Ok(self)
    }

    /// The part whose commit this is.
    pub fn slot(&self) -> PartKey {
        PartKey {
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

    /// The outputs that are written after the commit, or never.
    pub fn written_later(&self) -> impl Iterator<Item = &Artifact> {
        self.outputs.iter().filter(|output| output.after_commit)
    }

    /// An output by name.
    ///
    /// # Errors
    /// [`Error::Unknown`], which lists the known names.
    pub fn output(&self, name: &str) -> Result<&Artifact> {
        find(&self.outputs, name)
    }

    /// The stored form: human-readable JSON.
    ///
    /// # Errors
    /// More than 16 MiB, or content that readers refuse.
    pub fn to_bytes(&self) -> Result<Bytes> {
        const WHAT: &str = "a manifest";
        let key = Key::Commit(self.slot()).path();
        self.check().map_err(|why| Error::malformed(&key, why))?;
        let text = to_json(&key, WHAT, self)?;
        if self.version == 1 {
            return Ok(text);
        }
        let sealed = seal::seal(&text);
        check_size(&key, WHAT, sealed.len())?;
        Ok(sealed)
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// Too large, of a newer version, not a manifest, or changed since it was committed.
    pub fn from_bytes(content: &[u8]) -> Result<Self> {
        Self::read("manifest", content)
    }

    pub(crate) fn read(key: &str, content: &[u8]) -> Result<Self> {
        const REMEDY: &str =
            "; restore it from a copy, or delete it so that the part is made again";
        let manifest: Self = from_json(key, "a manifest", Self::OF_SPARSE_DIFFERENCES, content)?;
        let sealed = match manifest.version {
            1 if seal::is_sealed(content) => {
                Err("it has a digest, which version 1 has not: its version was changed".to_owned())
            }
            1 => Ok(()),
            _ => seal::check(content),
        };
        sealed
            .and_then(|()| manifest.check())
            .map_err(|why| Error::malformed(key, why + REMEDY))?;
        Ok(manifest)
    }

    /// Checks the manifest's claims about its artifacts.
    fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for artifact in &self.outputs {
            artifact.check()?;
            let features = [
                (
                    artifact.delta.is_some(),
                    Self::OF_DIFFERENCES,
                    "is a difference",
                ),
                (
                    artifact.after_commit,
                    Self::OF_LATER_FILES,
                    "is written after the commit",
                ),
                (
                    is_sparse(artifact),
                    Self::OF_SPARSE_DIFFERENCES,
                    "is a difference of the numbers that changed",
                ),
            ];
            let mut newer = features
                .iter()
                .filter(|(has, since, _)| *has && self.version < *since);
            if let Some((_, _, what)) = newer.next() {
                let (name, version) = (&artifact.name, self.version);
                return Err(format!(
                    "artifact `{name}` {what}, which version {version} has not"
                ));
            }
            if self.version > 1 {
                self.check_owner(artifact)?;
                if !names.insert(&artifact.name) {
                    return Err(format!("it names `{}` twice", artifact.name));
                }
            }
        }
        match &self.origin {
            Some(origin) if origin.run == self.run => Err("it takes over its own files".to_owned()),
            Some(_) if !self.inputs.is_empty() => {
                Err("what is taken over has no inputs of its own".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// An artifact must be in the folder of the attempt that committed it; for a part that a fork
    /// took over, in the folder of the attempt that wrote it, at the same part of the other run. From
    /// version 3 on another attempt at the part will do.
    fn check_owner(&self, artifact: &Artifact) -> Result<(), String> {
        let (mut owner, mut maker) = (self.slot(), self.attempt_id());
        if let Some(origin) = &self.origin {
            owner.run = origin.run.clone();
            (maker.number, maker.nonce) = (origin.attempt, origin.nonce.clone());
        }
        match &artifact.key {
            Key::File { slot, attempt, .. }
                if *slot == owner
                    && (*attempt == maker || self.version >= Self::OF_SEVERAL_ATTEMPTS) =>
            {
                Ok(())
            }
            key => Err(format!(
                "artifact `{}` lies at {key}, and not in the folder of attempt {maker} at {owner}",
                artifact.name
            )),
        }
    }
}

/// An artifact by name, or an error that lists the known names.
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

/// Serializes a record as JSON, the form of all records of this crate, with a size limit.
pub(crate) fn to_json(key: &str, what: &'static str, record: &impl Serialize) -> Result<Bytes> {
    let mut content = serde_json::to_vec_pretty(record).map_err(|e| Error::malformed(key, e))?;
    content.push(b'\n');
    check_size(key, what, content.len())?;
    Ok(content.into())
}

/// Reads what [`to_json`] wrote. The version is read first, so that a newer record is reported as
/// newer and not as damaged.
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

/// Whether reading an artifact takes a sparse difference.
fn is_sparse(artifact: &Artifact) -> bool {
    let mut differences = artifact.links().filter_map(|link| link.delta.as_deref());
    differences.any(|difference| difference.sparse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Delta, Digest, Frame};
    use serde_json::json;

    fn manifest() -> Manifest {
        let slot = PartKey {
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
            delta: None,
            after_commit: false,
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
            origin: None,
            work: None,
        }
    }

    fn stored(value: &serde_json::Value) -> Vec<u8> {
        [serde_json::to_vec_pretty(value).unwrap(), b"\n".to_vec()].concat()
    }

    /// The error for a manifest that was changed and sealed again.
    fn refused(change: impl FnOnce(&mut serde_json::Value)) -> String {
        let mut value = serde_json::to_value(manifest()).unwrap();
        change(&mut value);
        Manifest::from_bytes(&seal::seal(&stored(&value)))
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
    fn every_version_is_read_for_ever() {
        for (version, golden) in [
            (1, &include_bytes!("../testdata/manifest-v1.json")[..]),
            (2, include_bytes!("../testdata/manifest-v2.json")),
            (3, include_bytes!("../testdata/manifest-v3.json")),
            (4, include_bytes!("../testdata/manifest-v4.json")),
            (5, include_bytes!("../testdata/manifest-v5.json")),
            (6, include_bytes!("../testdata/manifest-v6.json")),
        ] {
            let mut manifest = Manifest {
                version,
                ..manifest()
            };
            manifest.outputs[0].after_commit = version == Manifest::OF_LATER_FILES;
            if [Manifest::OF_DIFFERENCES, Manifest::OF_SPARSE_DIFFERENCES].contains(&version) {
                let mut base = manifest.outputs[0].clone();
                if let Key::File { slot, .. } = &mut base.key {
                    slot.iteration = 0;
                }
                manifest.outputs[0].delta = Some(Box::new(Delta {
                    base,
                    width: 2,
                    sparse: version == Manifest::OF_SPARSE_DIFFERENCES,
                    frames: vec![Frame {
                        size: 9,
                        digest: Digest::of(b"frame"),
                    }],
                }));
            }
            if version >= Manifest::OF_DIFFERENCES {
                let made = Manifest::new(
                    manifest.slot(),
                    manifest.attempt_id(),
                    manifest.outputs.clone(),
                );
                assert_eq!(made.version, version);
            }
            if version == Manifest::OF_SEVERAL_ATTEMPTS {
                (manifest.attempt, manifest.nonce) = (2, "0000beef".to_owned());
                let maker = manifest.attempt_id();
                let outputs = manifest.outputs.clone();
                let made = Manifest::new(manifest.slot(), maker, outputs);
                assert_eq!(made.version, version);
            }
            assert_eq!(Manifest::from_bytes(golden).unwrap(), manifest);
            assert_eq!(
                manifest.to_bytes().unwrap(),
                golden,
                "the written form changed: add a version"
            );
        }
    }

    /// Without a digest of its own, a manifest with one of these changes was read without an error.
    #[test]
    fn a_changed_manifest_is_not_read() {
        let written = String::from_utf8(manifest().to_bytes().unwrap().to_vec()).unwrap();
        for (what, with) in [
            (
                "\"iteration\": 1,\n      \"stage\": \"adv",
                "\"iteration\": 0,\n      \"stage\": \"adv",
            ),
            ("\"numeric_class\": \"cpu\"", "\"numeric_class\": \"any\""),
            ("\"b\": 0.1", "\"b\": 0.2"),
            ("\"kept\": [\n      1", "\"kept\": [\n      7"),
            ("\"code_version\": \"0.1.0\"", "\"code_version\": \"0.1.1\""),
            ("\"version\": 2", "\"version\": 1"),
        ] {
            let changed = written.replacen(what, with, 1);
            assert_ne!(changed, written, "{what}");
            let error = Manifest::from_bytes(changed.as_bytes()).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("digest") || text.contains("version"),
                "{text}"
            );
            assert!(text.contains("delete it"), "{text}");
        }
        let torn = written.replace(",\n  \"digest\"", ",\n  \"gidest\"");
        assert!(Manifest::from_bytes(torn.as_bytes()).is_err());
    }

    /// A taken-over manifest names files of one attempt at the same part of the other run.
    #[test]
    fn only_what_is_taken_over_names_the_files_of_another_run() {
        let of_child = |m: Manifest| m.taken_over("child".parse().unwrap(), |_| true);
        let taken = of_child(manifest()).unwrap();
        assert_eq!(taken.origin.as_ref().unwrap().run.as_str(), "r");
        let read = Manifest::from_bytes(&taken.to_bytes().unwrap()).unwrap();
        assert_eq!(read, taken);
        // A fork of the fork names the same files.
        let again = taken
            .clone()
            .taken_over("grandchild".parse().unwrap(), |_| true);
        assert_eq!(again.unwrap().origin, taken.origin);
        let refused = |change: fn(&mut Manifest)| {
            let mut manifest = taken.clone();
            change(&mut manifest);
            manifest.to_bytes().unwrap_err().to_string()
        };
        assert!(refused(|m| m.origin = None).contains("lies at runs/r/"));
        assert!(refused(|m| m.part = 1).contains("lies at runs/r/"));
        assert!(refused(|m| m.origin.as_mut().unwrap().attempt = 2).contains("lies at"));
        assert!(refused(|m| m.origin.as_mut().unwrap().run = m.run.clone()).contains("lies at"));
        assert!(refused(|m| m.inputs = manifest().inputs).contains("no inputs"));
    }

    #[test]
    fn fields_of_newer_programs_are_ignored_within_a_version() {
        let mut value = serde_json::to_value(manifest()).unwrap();
        value["colour"] = json!("green");
        assert_eq!(
            Manifest::from_bytes(&seal::seal(&stored(&value))).unwrap(),
            manifest()
        );
    }

    #[test]
    fn bad_manifests_are_refused_with_a_reason() {
        assert!(refused(|v| v["version"] = json!(7)).contains("newer program"));
        let early = refused(|v| v["outputs"][0]["after_commit"] = json!(true));
        assert!(early.contains("which version 2 has not"), "{early}");
        let sparse: serde_json::Value =
            serde_json::from_slice(include_bytes!("../testdata/manifest-v6.json")).unwrap();
        let early = refused(|v| {
            (v["version"], v["outputs"]) = (json!(5), sparse["outputs"].clone());
        });
        assert!(early.contains("which version 5 has not"), "{early}");
        let elsewhere = "runs/r/files/00000001/update/000001/a0001-0000abcd/policy/config.json";
        assert!(refused(|v| v["outputs"][0]["key"] = json!(elsewhere)).contains("lies at"));
        let other = "runs/r/files/00000001/update/000000/a0002-0000abcd/policy/config.json";
        assert!(refused(|v| v["outputs"][0]["key"] = json!(other)).contains("lies at"));
        // Another attempt will do where the version says so; another part never does.
        let why = refused(|v| {
            v["version"] = json!(3);
            v["outputs"][0]["key"] = json!(elsewhere);
        });
        assert!(why.contains("lies at"), "{why}");
        assert!(
            refused(|v| {
                let twice = v["outputs"][0].clone();
                v["outputs"].as_array_mut().unwrap().push(twice);
            })
            .contains("twice")
        );
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
