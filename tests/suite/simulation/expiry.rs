//! Retention under concurrency: parts are committed, read, journalled, forked and expired at the
//! same time, by processes that die and get wrong answers.
//!
//! A reader gets the bytes or an error about the tombstone. A fork whose pin was acknowledged keeps
//! its objects. Files covered by the retention rule, and the journal of a part without a commit,
//! are never deleted.

use super::store::SimulatedStore;
use super::world::{Faults, Link, Rng, World};
use agentgym_storage::{
    Artifact, AttemptId, Committed, Error, Inputs, Journal, Key, Manifest, Outputs, PartKey,
    Result, RunId, Store, nonce,
};
use bytes::Bytes;
use futures::future::{FutureExt, join_all};
use object_store::memory::InMemory;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;

const ITERATIONS: u32 = 8;
const KEPT: u32 = 2;
const HEAVY: &str = "policy/model";
const LIGHT: &str = "metrics.json";

/// Plays a seed; returns the violations.
pub(super) fn play(seed: u64) -> Vec<String> {
    let mut rng = Rng::new(seed);
    let faults = Faults {
        // Dead processes are not replaced here.
        crash: 0.0,
        // The readers belong to the test, and no attempt catches their panics.
        store_panics: 0.0,
        ..Faults::of(&mut rng)
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new(rng, faults, false);
        let scene = Scene {
            objects: Arc::new(InMemory::new()),
            pinned: Mutex::default(),
            unfinished: Mutex::default(),
            world: Arc::clone(&world),
        };
        let mut actors = vec![scene.trains().boxed_local()];
        for _ in 0..2 {
            actors.push(scene.expires().boxed_local());
            actors.push(scene.reads().boxed_local());
            actors.push(scene.forks().boxed_local());
        }
        join_all(actors).await;
        scene.verify().await;
        let log = world.log();
        assert!(
            log.deleted.len() as u32 >= ITERATIONS - KEPT || !log.violations.is_empty(),
            "seed {seed}: nothing was deleted"
        );
        log.violations.clone()
    })
}

struct Scene {
    objects: Arc<InMemory>,
    world: Arc<World>,
    /// Keys that were promised to a fork.
    pinned: Mutex<BTreeSet<Key>>,
    /// Journal segments of parts that never get a commit.
    unfinished: Mutex<BTreeSet<Key>>,
}

fn run() -> RunId {
    "world".parse().unwrap()
}

fn slot(iteration: u32, stage: &str) -> PartKey {
    PartKey {
        run: run(),
        iteration,
        stage: stage.to_owned(),
        part: 0,
    }
}

fn content(iteration: u32, name: &str) -> Bytes {
    format!("{name} of {iteration}").into_bytes().into()
}

/// Repeats a request until it succeeds.
async fn surely<T>(mut ask: impl AsyncFnMut() -> Result<T>) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    }
}

impl Scene {
    fn store(&self, who: &str) -> Store {
        let objects = SimulatedStore {
            objects: Arc::clone(&self.objects),
            link: Link::new(who, Arc::clone(&self.world)),
        };
        Store::over(Arc::new(objects), "simulated")
    }

    fn truth(&self) -> Store {
        Store::over(Arc::clone(&self.objects) as _, "the truth")
    }

    fn span(&self, ms: u64) -> Duration {
        self.world.rng().span(ms)
    }

    /// Commits one iteration after another, each with its journals.
    async fn trains(&self) {
        let store = self.store("trainer");
        for iteration in 1..=ITERATIONS {
            surely(async || {
                let id = AttemptId {
                    number: 1,
                    nonce: nonce(),
                };
                for stage in ["update", "evaluate"] {
                    let slot = slot(iteration, stage);
                    let mut journal = Journal::open(store.clone(), slot.clone(), id.clone());
                    journal.append(content(iteration, "journal")).await?;
                    if stage == "evaluate" {
                        let key = Key::JournalSegment {
                            slot,
                            attempt: id.clone(),
                            segment: 0,
                        };
                        self.unfinished.lock().unwrap().insert(key);
                    }
                }
                let slot = slot(iteration, "update");
                let mut outputs = Outputs::new(store.clone(), slot.clone(), id.clone());
                for name in [HEAVY, LIGHT] {
                    outputs
                        .bytes(name, "simulated", content(iteration, name))
                        .await?;
                }
                let manifest = Manifest::new(slot, id, outputs.into_artifacts());
                match store.commit(&manifest).await? {
                    Committed::Won | Committed::Superseded(_) => Ok(()),
                }
            })
            .await;
            sleep(self.span(5_000)).await;
        }
    }

    /// Expires every iteration once it is committed; two of these run concurrently.
    async fn expires(&self) {
        let store = self.store("retention");
        for latest in 1..=ITERATIONS {
            surely(async || {
                let mut manifests = Vec::new();
                for iteration in 1..=latest {
                    let missing = || Error::NotFound {
                        key: iteration.to_string(),
                        url: String::new(),
                    };
                    let found = store.manifest(&slot(iteration, "update")).await?;
                    manifests.push(found.ok_or_else(missing)?);
                }
                let keep =
                    |m: &Manifest, a: &Artifact| m.iteration + KEPT > latest || a.name == LIGHT;
                store.expire(&run(), latest, keep, &manifests).await
            })
            .await;
        }
    }

    async fn reads(&self) {
        let store = self.store("reader");
        for _ in 0..60 {
            let iteration = 1 + self.world.rng().below(u64::from(ITERATIONS)) as u32;
            if let Ok(Some(manifest)) = store.manifest(&slot(iteration, "update")).await {
                let inputs =
                    Inputs::new(store.clone(), vec![("it".to_owned(), manifest)], "unused");
                for name in [HEAVY, LIGHT] {
                    match inputs.bytes("it", name).await {
                        Ok(found) if found == content(iteration, name) => {}
                        Err(Error::Removed { .. }) if name == HEAVY => {}
                        Err(Error::Unavailable { .. }) => {}
                        other => self
                            .world
                            .violated(format!("a reader of {name} of {iteration} got {other:?}")),
                    }
                }
            }
            sleep(self.span(2_000)).await;
        }
    }

    /// Forks from an iteration whose policy it has just seen.
    async fn forks(&self) {
        let store = self.store("fork");
        for _ in 0..6 {
            sleep(self.span(8_000)).await;
            let iteration = 1 + self.world.rng().below(u64::from(ITERATIONS)) as u32;
            let Ok(Some(manifest)) = store.manifest(&slot(iteration, "update")).await else {
                continue;
            };
            let child: RunId = format!("fork-{}", nonce()).parse().unwrap();
            let keys: BTreeSet<Key> = manifest.outputs.iter().map(|a| a.key.clone()).collect();
            if store.pin(&run(), &child, keys.clone()).await.is_ok() {
                self.pinned.lock().unwrap().extend(keys);
            }
        }
    }

    async fn verify(&self) {
        let truth = self.truth();
        let pinned: Vec<Key> = self.pinned.lock().unwrap().iter().cloned().collect();
        let unfinished: Vec<Key> = self.unfinished.lock().unwrap().iter().cloned().collect();
        for key in pinned.into_iter().chain(unfinished) {
            if truth.try_get(&key).await.unwrap().is_none() {
                self.world.violated(format!("{key} is gone"));
            }
        }
        for iteration in 1..=ITERATIONS {
            let found = truth.manifest(&slot(iteration, "update")).await.unwrap();
            let manifest = found.unwrap();
            for artifact in &manifest.outputs {
                let kept = iteration + KEPT > ITERATIONS || artifact.name == LIGHT;
                if kept && truth.try_get(&artifact.key).await.unwrap().is_none() {
                    self.world
                        .violated(format!("{} of {iteration} is gone", artifact.name));
                }
            }
        }
    }
}
