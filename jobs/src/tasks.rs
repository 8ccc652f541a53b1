//! The tasks that an iteration draws: a pure function of the plan, so a resumed run, another worker
//! or another part size sees the same tasks.

use crate::config::keys::limits::LISTED_MAX;
use crate::config::{Data, Environment, Items, TaskSource};
use crate::episode::Task;
use crate::files::{self, ITEMS_BYTES_MAX};
use crate::random::permutation;
use crate::{Error, Result};
use agentgym_envs::spec;
use serde::Deserializer as _;
use serde::de::{SeqAccess, Visitor};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The resolved task sources of a plan.
#[derive(Debug)]
pub struct TaskPool {
    sources: Vec<Source>,
    batch_size: usize,
    shuffle: bool,
    seed: u64,
    /// Of the sources, relative to each other.
    weights: Vec<f64>,
    /// Source of each draw index where all have entered.
    pattern: Vec<usize>,
    permutations: Mutex<Permutations>,
}

/// The order of a source in a pass over its tasks, by (source, pass).
type Permutations = BTreeMap<(usize, u64), Arc<Vec<u32>>>;

#[derive(Debug)]
struct Source {
    env: String,
    ids: Items,
    /// Draws of an iteration that come from this source.
    per_batch: usize,
    /// Tasks of its order by which an iteration begins behind the one before.
    stride: usize,
}

impl TaskPool {
    /// Resolves the sources of `data.tasks`.
    ///
    /// # Errors
    /// Bad ranges, or shares that leave a source without draws.
    pub fn new(data: &Data) -> Result<Self> {
        let mut sources = Vec::new();
        for (index, source) in data.tasks.iter().enumerate() {
            let ids = source.ids.items(&format!("data.tasks[{index}].ids"))?;
            if ids.len() == 0 {
                return Err(Error::value(
                    format!("data.tasks[{index}].ids"),
                    "holds no task",
                ));
            }
            sources.push(Source {
                env: source.env.clone(),
                ids,
                per_batch: 0,
                stride: 0,
            });
        }
        // Without shares, sources form one pool: the share is proportional to the size.
        let sizes: f64 = sources.iter().map(|s| s.ids.len() as f64).sum();
        let weights: Vec<f64> = data
            .tasks
            .iter()
            .zip(&sources)
            .map(|(given, source)| given.share.unwrap_or(source.ids.len() as f64 / sizes))
            .collect();
        let pattern = spread(&weights, data.train_batch_size);
        for index in &pattern {
            sources[*index].per_batch += 1;
        }
        for source in &mut sources {
            // Under a curriculum a source may fill whole batches.
            source.stride = match data.curriculum.solved {
                None => source.per_batch,
                Some(_) => data.train_batch_size,
            };
        }
        for (index, source) in sources.iter().enumerate() {
            if source.per_batch == 0 {
                return Err(Error::value(
                    format!("data.tasks[{index}].share"),
                    format!(
                        "`{}` gets no task in a batch of {}; raise its share or the batch",
                        source.env, data.train_batch_size
                    ),
                ));
            }
        }
        Ok(Self {
            sources,
            batch_size: data.train_batch_size,
            shuffle: data.shuffle,
            seed: data.seed,
            weights,
            pattern,
            permutations: Mutex::default(),
        })
    }

    /// Iterations in one pass over the data: until the first source wraps.
    pub fn iterations_per_pass(&self) -> u32 {
        let passes = self
            .sources
            .iter()
            .map(|s| s.ids.len() / s.stride)
            .min()
            .unwrap_or(0);
        u32::try_from(passes).unwrap_or(u32::MAX)
    }

    /// Number of tasks in all sources.
    pub fn len(&self) -> usize {
        self.sources.iter().map(|s| s.ids.len()).sum()
    }

    /// True if there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Draws per iteration from each environment.
    pub fn shares(&self) -> BTreeMap<&str, usize> {
        let mut shares = BTreeMap::new();
        for source in &self.sources {
            *shares.entry(source.env.as_str()).or_default() += source.per_batch;
        }
        shares
    }

    /// The source of each draw index where the first so many have entered.
    pub fn pattern(&self, entered: usize) -> Cow<'_, [usize]> {
        match entered < self.sources.len() {
            true => spread(&self.weights[..entered], self.batch_size).into(),
            false => self.pattern.as_slice().into(),
        }
    }

    /// The tasks of a 1-based iteration, by draw index, from all sources.
    pub fn draws(&self, iteration: u32) -> Vec<Task> {
        self.draws_of(iteration, self.sources.len())
    }

    /// The same from the first so many sources.
    pub fn draws_of(&self, iteration: u32, entered: usize) -> Vec<Task> {
        let mut taken = vec![0u64; self.sources.len()];
        self.pattern(entered)
            .iter()
            .map(|&index| {
                let source = &self.sources[index];
                let before = u64::from(iteration.saturating_sub(1)) * source.stride as u64;
                let position = before + taken[index];
                taken[index] += 1;
                let len = source.ids.len() as u64;
                let (pass, at) = (position / len, (position % len) as usize);
                let at = if self.shuffle {
                    self.permuted(index, pass)[at] as usize
                } else {
                    at
                };
                Task {
                    env: source.env.clone(),
                    item_id: source.ids.at(at),
                }
            })
            .collect()
    }

    fn permuted(&self, source: usize, pass: u64) -> Arc<Vec<u32>> {
        const PASSES_KEPT: usize = 8;
        let mut cache = self
            .permutations
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if cache.len() > PASSES_KEPT {
            cache.clear();
        }
        let len = self.sources[source].ids.len();
        let seed = self.shuffle_seed(source);
        Arc::clone(
            cache
                .entry((source, pass))
                .or_insert_with(|| Arc::new(permutation(seed, pass, len))),
        )
    }

    /// The seed for the order of a source, used together with the pass.
    pub fn shuffle_seed(&self, source: usize) -> u64 {
        self.seed.wrapping_add((source as u64) << 32)
    }
}

/// Assigns a source to each of `count` draws so that every prefix is as close to the weights as
/// integers allow; so all minibatches mix the sources alike.
fn spread(weights: &[f64], count: usize) -> Vec<usize> {
    let total: f64 = weights.iter().sum();
    let mut given = vec![0.0; weights.len()];
    (1..=count)
        .filter_map(|so_far| {
            let lag = |i: usize, given: &[f64]| weights[i] / total * so_far as f64 - given[i];
            let most = (0..weights.len())
                .max_by(|&a, &b| lag(a, &given).total_cmp(&lag(b, &given)).then(b.cmp(&a)))?;
            given[most] += 1.0;
            Some(most)
        })
        .collect()
}

/// Reads an AgentItemId file: a JSON array of objects with an `item_id` such as `webshop_6`; the
/// number after the last underscore is the task id.
///
/// # Errors
/// An unreadable file, or a row without a usable `item_id` (named by its index).
pub fn read_item_ids(key: &str, path: &Path, env: &str) -> Result<TaskSource> {
    let ids = read_items(key, path, env)?.into_iter().map(|(_, id)| id);
    Ok(TaskSource {
        env: env.to_owned(),
        ids: crate::config::Ids::List(ids.collect()),
        ..TaskSource::default()
    })
}

/// The same for a file of training tasks, in which the prefix before the number names the
/// environment. Items of environments declared in `known` form one source per environment; all
/// others belong to `env`, and may have any single prefix that is not the name of another
/// environment.
///
/// # Errors
/// As [`read_item_ids`], or a row of an environment that is not declared.
pub fn read_train_items(
    path: &Path,
    env: &str,
    known: &BTreeMap<String, Environment>,
) -> Result<Vec<TaskSource>> {
    let own = known.get(env).map_or(env, |e| e.task_name.as_str());
    let mut sources: Vec<(String, Vec<i64>)> = Vec::new();
    let mut stranger: Option<(usize, Arc<str>)> = None;
    let items = read_items("data.train_file", path, env)?;
    for (index, (name, id)) in items.into_iter().enumerate() {
        let belongs = match known.contains_key(&*name) {
            true => &*name,
            false => env,
        };
        if belongs == env && ![env, own, ""].contains(&&*name) {
            let (first, other) = stranger.get_or_insert((index, Arc::clone(&name)));
            if spec::spec(&name).is_ok() || *other != name {
                let others = match *other == name {
                    true => String::new(),
                    false => format!(", row {first} is of `{other}`"),
                };
                return Err(Error::Format {
                    path: path.into(),
                    message: format!(
                        "row {index} is `{name}_{id}`{others}, and the file is of `{env}` \
                         (actor_rollout_ref.agentgym.task_name); declare `{name}` under \
                         actor_rollout_ref.agentgym.envs, or give a file of one environment"
                    ),
                });
            }
        }
        match sources.iter_mut().find(|(known, _)| known == belongs) {
            Some((_, ids)) => ids.push(id),
            None => sources.push((belongs.to_owned(), vec![id])),
        }
    }
    let sources = sources.into_iter().map(|(env, ids)| TaskSource {
        env,
        ids: crate::config::Ids::List(ids),
        ..TaskSource::default()
    });
    Ok(sources.collect())
}

/// Prefix and number of every item; the prefix is empty if there is none.
fn read_items(key: &str, path: &Path, env: &str) -> Result<Vec<(Arc<str>, i64)>> {
    let bytes = files::read(key, path, ITEMS_BYTES_MAX)?;
    let format = |message: String| Error::Format {
        path: path.into(),
        message,
    };
    let mut refused = None;
    let rows = Rows {
        env,
        refused: &mut refused,
    };
    let mut json = serde_json::Deserializer::from_slice(&bytes);
    let items = json.deserialize_seq(rows).and_then(|items| {
        json.end()?;
        Ok(items)
    });
    match (items, refused) {
        (Ok(items), _) if items.is_empty() => Err(format("holds no items".into())),
        (Ok(items), _) => Ok(items),
        (Err(_), Some(why)) => Err(format(why)),
        (Err(e), None) => Err(format(format!("is not a JSON array of items: {e}"))),
    }
}

/// Reads the rows one by one, so that only the current row is in memory.
struct Rows<'a> {
    env: &'a str,
    /// Why a row that is valid JSON was refused.
    refused: &'a mut Option<String>,
}

impl<'de> Visitor<'de> for Rows<'_> {
    type Value = Vec<(Arc<str>, i64)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of {\"item_id\": TEXT}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<Self::Value, A::Error> {
        let mut items: Self::Value = Vec::new();
        while let Some(row) = rows.next_element::<serde_json::Value>()? {
            let item = row.get("item_id").and_then(|v| v.as_str());
            let split = item.map(|text| text.rsplit_once('_').unwrap_or(("", text)));
            let found = split.and_then(|(name, id)| Some((name, id.parse().ok()?)));
            let why = match found {
                Some(_) if items.len() >= LISTED_MAX => {
                    format!(
                        "has more than {LISTED_MAX} rows; give fewer, or data.tasks with a range"
                    )
                }
                Some((name, id)) => {
                    // Most rows have the same prefix as the row before.
                    let name = match items.last() {
                        Some((last, _)) if **last == *name => Arc::clone(last),
                        _ => Arc::from(name),
                    };
                    items.push((name, id));
                    continue;
                }
                None => {
                    let found = match row.get("item_id") {
                        None => "no item_id".to_owned(),
                        Some(found) => format!("item_id {found}"),
                    };
                    format!(
                        "row {} has {found}; expected text that ends in _NUMBER, like {}_6",
                        items.len(),
                        self.env
                    )
                }
            };
            *self.refused = Some(why);
            return Err(serde::de::Error::custom("refused"));
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CurriculumCtrl, Ids};
    use std::collections::BTreeSet;

    fn pool(sources: &[(&str, &str, Option<f64>)], batch: usize) -> TaskPool {
        seeded(sources, batch, 3)
    }

    fn seeded(sources: &[(&str, &str, Option<f64>)], batch: usize, seed: u64) -> TaskPool {
        under(sources, batch, seed, None)
    }

    fn under(
        sources: &[(&str, &str, Option<f64>)],
        batch: usize,
        seed: u64,
        solved: Option<f64>,
    ) -> TaskPool {
        let tasks = sources
            .iter()
            .map(|(env, ids, share)| TaskSource {
                env: (*env).into(),
                ids: Ids::Range((*ids).into()),
                share: *share,
                ..TaskSource::default()
            })
            .collect();
        TaskPool::new(&Data {
            train_file: None,
            tasks,
            train_batch_size: batch,
            max_prompt_length: 1,
            max_response_length: 1,
            shuffle: true,
            seed,
            curriculum: CurriculumCtrl {
                solved,
                iterations: 2,
            },
        })
        .unwrap()
    }

    #[test]
    fn a_pass_draws_every_task_once() {
        let pool = pool(&[("a", "0..40", None)], 8);
        let mut seen: Vec<i64> = (1..=5)
            .flat_map(|i| pool.draws(i))
            .map(|t| t.item_id)
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..40).collect::<Vec<_>>());
        assert_ne!(
            pool.draws(1),
            pool.draws(6),
            "the second pass has its own order"
        );
        assert_eq!(pool.iterations_per_pass(), 5);
    }

    /// Sources of equal length have different orders, as have runs with different seeds.
    #[test]
    fn seeds_and_sources_have_orders_of_their_own() {
        let of = |pool: &TaskPool, env: &str| -> Vec<i64> {
            let draws = pool.draws(1).into_iter();
            draws.filter(|t| t.env == env).map(|t| t.item_id).collect()
        };
        let sources = [("a", "0..40", Some(0.5)), ("b", "0..40", Some(0.5))];
        let (three, four) = (seeded(&sources, 20, 3), seeded(&sources, 20, 4));
        let orders = [
            of(&three, "a"),
            of(&three, "b"),
            of(&four, "a"),
            of(&four, "b"),
        ];
        for (i, order) in orders.iter().enumerate() {
            assert_eq!(order.len(), 10);
            assert!(!orders[..i].contains(order), "{orders:?}");
        }
        assert!(!three.is_empty() && seeded(&[], 20, 3).is_empty());
        // Existing plans keep their order.
        assert_eq!([0, 1].map(|s| three.shuffle_seed(s)), [3, 3 + (1 << 32)]);
    }

    #[test]
    fn under_a_curriculum_a_source_is_drawn_alone_and_repeats_nothing_in_a_pass() {
        let sources = [("a", "0..40", Some(0.5)), ("b", "0..60", Some(0.5))];
        let pool = under(&sources, 8, 3, Some(0.8));
        let drawn = |iteration, entered| pool.draws_of(iteration, entered);
        assert!(drawn(1, 1).iter().all(|task| task.env == "a"));
        assert_eq!(drawn(3, 2), pool.draws(3));
        assert_eq!(drawn(3, 2).iter().filter(|task| task.env == "b").count(), 4);
        // One source for three iterations, then both: no task of a pass comes twice.
        let entered = [1, 1, 1, 2, 2].into_iter().enumerate();
        let all: Vec<Task> = entered
            .flat_map(|(i, entered)| drawn(i as u32 + 1, entered))
            .collect();
        let different: BTreeSet<(&str, i64)> = all
            .iter()
            .map(|task| (task.env.as_str(), task.item_id))
            .collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(pool.iterations_per_pass(), 5);
    }

    #[test]
    fn shares_hold_in_every_half_of_the_batch() {
        let pool = pool(
            &[("a", "0..1000", Some(0.75)), ("b", "0..10", Some(0.25))],
            16,
        );
        for iteration in [1, 2, 77] {
            let draws = pool.draws(iteration);
            for half in draws.chunks(8) {
                assert_eq!(half.iter().filter(|t| t.env == "b").count(), 2);
            }
        }
        assert_eq!(pool.shares(), [("a", 12), ("b", 4)].into());
        // Weights are relative.
        assert_eq!(spread(&[3.0, 1.0], 8), spread(&[0.75, 0.25], 8));
        assert_eq!(spread(&[3.0, 1.0], 4), [0, 0, 1, 0]);
    }

    #[test]
    fn a_file_may_hold_items_of_every_environment_that_is_declared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ids.json");
        let known: BTreeMap<String, Environment> = ["textcraft", "babyai"]
            .map(|name| {
                let environment = Environment {
                    task_name: name.into(),
                    env_addr: "builtin".into(),
                    max_rounds: None,
                    max_tokens: None,
                };
                (name.to_owned(), environment)
            })
            .into();
        let read = |ids: &[&str]| {
            let rows: Vec<_> = ids
                .iter()
                .map(|id| serde_json::json!({"item_id": id}))
                .collect();
            std::fs::write(&path, serde_json::to_vec(&rows).unwrap()).unwrap();
            read_train_items(&path, "textcraft", &known)
        };
        let sources = read(&["textcraft_3", "babyai_1", "textcraft_5"]).unwrap();
        let shown: Vec<_> = sources
            .iter()
            .map(|s| (s.env.as_str(), s.ids.resolve("").unwrap()))
            .collect();
        assert_eq!(shown, [("textcraft", vec![3, 5]), ("babyai", vec![1])]);
        assert_eq!(read(&["item_3", "item_4", "5"]).unwrap().len(), 1);
        for (ids, words) in [
            (&["textcraft_3", "webshop_6"][..], ["row 1", "`webshop_6`"]),
            (&["a_3", "b_6"], ["row 1", "row 0 is of `a`"]),
            (&["textcraft_3", "textcraft"], ["row 1", "_NUMBER"]),
        ] {
            let message = read(ids).unwrap_err().to_string();
            let all = words.iter().all(|word| message.contains(word));
            assert!(all && message.contains("ids.json"), "{message}");
        }
        std::fs::write(&path, r#"{"item_id": "textcraft_3"}"#).unwrap();
        let message = read_train_items(&path, "textcraft", &known).unwrap_err();
        let message = message.to_string();
        assert!(
            message.contains("an array of {\"item_id\": TEXT}"),
            "{message}"
        );
    }
}
