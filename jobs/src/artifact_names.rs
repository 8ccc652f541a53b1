//! Names of artifacts, shared by the stages that write them and their readers.

/// Episodes, in the order of the part.
pub const EPISODES: &str = "episodes.bin";
/// Greedy episodes used as baselines.
pub const BASELINES: &str = "baseline.bin";
/// Log-probs of a part of the rollouts.
pub const LOG_PROBS: &str = "log_probs.bin";
/// The critic's values of the same tokens.
pub const VALUES: &str = "values.bin";
/// The batch of an update, by slot.
pub const BATCH: &str = "batch.bin";
/// Training targets of the critic.
pub const TARGETS: &str = "targets.bin";
/// The state of the KL penalty's controller.
pub const KL: &str = "kl.json";
/// What has entered of the sources of `data.tasks`.
pub const CURRICULUM: &str = "curriculum.json";
/// The groups that a filter has chosen so far.
pub const SELECTION: &str = "selection.json";
/// Metrics of a part.
pub const METRICS: &str = "metrics.json";
/// Where each kept episode was played.
pub const LINEAGE: &str = "lineage.json";
/// Optimizer steps of the policy.
pub const UPDATE: &str = "update.json";
/// Optimizer steps of the critic.
pub const CRITIC_UPDATE: &str = "critic_update.json";
/// Evaluated items, one per line.
pub const ITEMS: &str = "items.jsonl";
/// What tells a server that serves this policy from one that serves another.
pub const PROBE: &str = "probe.json";
