//! What each number of a config may be, in one place. A limit is far beyond any real run and
//! well below what would make a plan take long to compute, overflow a sum or train on
//! infinities; the reason beside it says why it is enough.

use crate::config::tree::get;
use crate::{Error, Result};
use serde_json::Value;
use std::fmt;

/// Iterations of a run, and everything that is counted in them.
pub(crate) const ITERATIONS_MAX: u32 = 1_000_000;
/// Parts of one iteration, and jobs that a program may have to list at once.
pub(crate) const PARTS_MAX: u64 = 100_000;
/// Optimizer steps of one iteration.
pub(crate) const STEPS_MAX: u64 = 1_000_000;
/// Different tasks of a run, over all sources; ranges cost nothing until they are drawn from.
pub(crate) const TASKS_MAX: usize = 10_000_000;
/// Tasks that a plan names one by one, which it keeps as text.
pub(crate) const LISTED_MAX: usize = 2_000_000;

/// The range of a key's number, or of each number where it is a list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    /// Dotted path of the key.
    pub path: &'static str,
    least: f64,
    most: f64,
    /// `least` itself is outside.
    above: bool,
    /// `most` itself is outside.
    below: bool,
    unit: &'static str,
    /// Also asked of plans that are stored: what would stop whoever reads one.
    stored: bool,
    /// Why nobody needs more.
    pub why: &'static str,
}

const fn whole(path: &'static str, least: u64, most: u64, why: &'static str) -> Limit {
    Limit {
        path,
        least: least as f64,
        most: most as f64,
        above: false,
        below: false,
        unit: "",
        stored: true,
        why,
    }
}

const fn seconds(path: &'static str, least: f64) -> Limit {
    Limit {
        least,
        unit: " seconds",
        ..whole(
            path,
            0,
            1_000_000_000,
            "thirty years; more cannot be added to a clock",
        )
    }
}

/// A number of the arithmetic. What is outside was never sensible, but runs that had it can be
/// read and carried on.
const fn real(path: &'static str, least: f64, most: f64, why: &'static str) -> Limit {
    Limit {
        least,
        most,
        stored: false,
        ..whole(path, 0, 0, why)
    }
}

/// As [`real`], without the least number itself.
const fn above(path: &'static str, least: f64, most: f64, why: &'static str) -> Limit {
    Limit {
        above: true,
        ..real(path, least, most, why)
    }
}

/// As [`real`], without the largest number itself.
const fn below(path: &'static str, least: f64, most: f64, why: &'static str) -> Limit {
    Limit {
        below: true,
        ..real(path, least, most, why)
    }
}

const MILLION: u64 = 1_000_000;
const STEPS: &str = "a step takes tens of milliseconds at the least";
const TOKENS: &str = "ten times the longest context of any model";
const MANY_TOKENS: &str = "as good as no limit";
const ANY: &str = "as good as never";
const TASKS: &str = "a hundred times the largest batches that were published";
const RATE: &str = "AdamW moves every weight by about so much in a step";
const MOMENTS: &str = "at 1 a moment never forgets, and its correction divides by 0";
const DECAY: &str = "more turns weights around in a step";
const SHARE: &str = "a share";
const FACTOR: &str = "more drowns everything else";
const NORM: &str = "as good as no clipping";
const COLDEST: &str = "less is as good as greedy, and its inverse soon no number in f32";

/// Every number that has a range. Seeds and priorities may be anything that their types hold.
pub const LIMITS: &[Limit] = &[
    whole("run.fork.iteration", 0, ITERATIONS_MAX as u64, STEPS),
    whole(
        "jobs.workers",
        0,
        1024,
        "each holds models of its own, and one process has one machine",
    ),
    whole(
        "jobs.threads",
        1,
        4096,
        "the largest machines have some two thousand",
    ),
    whole("jobs.rollout_part_tasks", 1, MILLION, TASKS),
    whole("jobs.unit_tokens", 1, 1_000_000_000, MANY_TOKENS),
    whole(
        "jobs.update_shards",
        1,
        10_000,
        "each is a job for a worker of its own",
    ),
    whole("jobs.sft_part_steps", 1, 100 * MILLION, STEPS),
    whole("jobs.dpo_part_steps", 1, 100 * MILLION, STEPS),
    whole("jobs.pack_tokens", 1, 1_000_000_000, MANY_TOKENS),
    whole(
        "jobs.decode_rows",
        1,
        65_536,
        "every row has a KV cache of its own",
    ),
    whole("jobs.cache_tokens", 0, 1_000_000_000_000, MANY_TOKENS),
    seconds("jobs.journal_interval_s", 0.001),
    seconds("jobs.beat_timeout_s", 1.0),
    seconds("jobs.lease_ttl_s", 1.0),
    seconds("jobs.backoff_s", 0.0),
    whole("jobs.failures_max", 1, MILLION, ANY),
    whole("jobs.vanished_max", 1, MILLION, ANY),
    whole("jobs.length_max", 1, 1_000_000_000, ANY),
    Limit {
        unit: " gigabytes",
        ..whole(
            "jobs.cache_gb",
            0,
            1_000_000_000,
            "an exabyte; it is counted in bytes",
        )
    },
    whole("data.train_batch_size", 1, MILLION, TASKS),
    whole("data.max_prompt_length", 1, 100 * MILLION, TOKENS),
    whole("data.max_response_length", 1, 100 * MILLION, TOKENS),
    whole(
        "actor_rollout_ref.model.lora_rank",
        0,
        65_536,
        "no weight of a known model has so many rows",
    ),
    above(
        "actor_rollout_ref.model.lora_alpha",
        0.0,
        1e6,
        "a factor on the adapter",
    ),
    whole(
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        1,
        MILLION,
        TASKS,
    ),
    whole(
        "actor_rollout_ref.actor.ppo_micro_batch_size",
        0,
        1_000_000_000,
        TASKS,
    ),
    whole("actor_rollout_ref.actor.ppo_epochs", 1, 10_000, STEPS),
    real(
        "actor_rollout_ref.actor.clip_ratio",
        0.0,
        1e6,
        "as good as no clipping",
    ),
    above(
        "actor_rollout_ref.actor.clip_ratio_low",
        0.0,
        1.0,
        "at 1 a ratio may fall to 0",
    ),
    above(
        "actor_rollout_ref.actor.clip_ratio_high",
        0.0,
        1e6,
        "as good as no clipping",
    ),
    above(
        "actor_rollout_ref.actor.clip_ratio_c",
        1.0,
        1e6,
        "as good as none; null does without",
    ),
    real("actor_rollout_ref.actor.entropy_coeff", -1e6, 1e6, FACTOR),
    real("actor_rollout_ref.actor.kl_loss_coef", 0.0, 1e6, FACTOR),
    above("actor_rollout_ref.actor.grad_clip", 0.0, 1e12, NORM),
    above("actor_rollout_ref.actor.optim.lr", 0.0, 100.0, RATE),
    real(
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
        0.0,
        1.0,
        SHARE,
    ),
    real(
        "actor_rollout_ref.actor.optim.min_lr_ratio",
        0.0,
        1.0,
        SHARE,
    ),
    below("actor_rollout_ref.actor.optim.betas", 0.0, 1.0, MOMENTS),
    real(
        "actor_rollout_ref.actor.optim.weight_decay",
        0.0,
        1000.0,
        DECAY,
    ),
    whole(
        "actor_rollout_ref.rollout.n",
        1,
        100_000,
        "a hundred times the largest groups that were published",
    ),
    real("actor_rollout_ref.rollout.temperature", 1e-6, 1e6, COLDEST),
    Limit {
        least: -1.0,
        ..real(
            "actor_rollout_ref.rollout.top_k",
            0.0,
            1e9,
            "-1 or 0 switches it off; no vocabulary is larger",
        )
    },
    above(
        "actor_rollout_ref.rollout.top_p",
        0.0,
        1.0,
        "a probability; 1 switches it off",
    ),
    whole(
        "actor_rollout_ref.rollout.max_tokens",
        1,
        100 * MILLION,
        TOKENS,
    ),
    whole(
        "actor_rollout_ref.rollout.max_model_len",
        1,
        100 * MILLION,
        TOKENS,
    ),
    whole(
        "actor_rollout_ref.rollout.prompt_length",
        0,
        100 * MILLION,
        TOKENS,
    ),
    whole(
        "actor_rollout_ref.rollout.response_length",
        0,
        100 * MILLION,
        TOKENS,
    ),
    seconds("actor_rollout_ref.rollout.episode_deadline_s", 0.001),
    whole("actor_rollout_ref.rollout.fault_retries", 0, MILLION, ANY),
    whole("actor_rollout_ref.agentgym.max_retries", 0, MILLION, ANY),
    whole("actor_rollout_ref.agentgym.sessions_max", 1, MILLION, ANY),
    seconds("actor_rollout_ref.agentgym.timeout", 0.001),
    whole(
        "actor_rollout_ref.agentgym.context_turns",
        1,
        MILLION,
        "null is all of them",
    ),
    real("algorithm.gamma", 0.0, 1.0, SHARE),
    real("algorithm.lam", 0.0, 1.0, SHARE),
    whole(
        "algorithm.lag",
        0,
        100,
        "every policy of the lag is kept and samples get older with it",
    ),
    real("algorithm.kl_ctrl.kl_coef", 0.0, 1e6, FACTOR),
    above(
        "algorithm.kl_ctrl.target_kl",
        0.0,
        1e6,
        "nats per token; a vocabulary has some twelve",
    ),
    above("algorithm.kl_ctrl.horizon", 0.0, 1e12, ANY),
    whole(
        "algorithm.filter_groups.max_num_gen_batches",
        0,
        MILLION,
        "with the filter at most 16",
    ),
    above(
        "algorithm.rollout_correction.rollout_is_threshold",
        0.0,
        1e9,
        "as good as none",
    ),
    whole(
        "algorithm.rounds_ctrl.rounds",
        1,
        MILLION,
        "a round is a reply of the policy",
    ),
    whole(
        "algorithm.rounds_ctrl.steps_scaling_inter",
        1,
        1_000_000_000,
        "as good as one stage",
    ),
    whole("critic.ppo_mini_batch_size", 1, MILLION, TASKS),
    whole("critic.ppo_micro_batch_size", 0, 1_000_000_000, TASKS),
    whole("critic.ppo_epochs", 1, 10_000, STEPS),
    above("critic.cliprange_value", 0.0, 1e9, "null does without"),
    above("critic.grad_clip", 0.0, 1e12, NORM),
    above("critic.optim.lr", 0.0, 100.0, RATE),
    real("critic.optim.lr_warmup_steps_ratio", 0.0, 1.0, SHARE),
    real("critic.optim.min_lr_ratio", 0.0, 1.0, SHARE),
    below("critic.optim.betas", 0.0, 1.0, MOMENTS),
    real("critic.optim.weight_decay", 0.0, 1000.0, DECAY),
    whole("sft.batch_size", 1, MILLION, TASKS),
    whole("sft.steps", 0, 100 * MILLION, STEPS),
    whole("sft.epochs", 1, 10_000, "nobody passes over data so often"),
    Limit {
        stored: true,
        ..below("sft.validation_share", 0.0, 1.0, SHARE)
    },
    above("sft.lr", 0.0, 100.0, RATE),
    whole("sft.warmup_steps", 0, 100 * MILLION, STEPS),
    real("sft.min_lr_ratio", 0.0, 1.0, SHARE),
    below("sft.betas", 0.0, 1.0, MOMENTS),
    real("sft.weight_decay", 0.0, 1000.0, DECAY),
    real("sft.grad_clip", 0.0, 1e12, "0 switches it off"),
    whole("sft.max_length", 1, 100 * MILLION, TOKENS),
    real("dpo.reward_gap", 0.0, 1e9, "rewards are about 1"),
    real("dpo.expert_threshold", -1e9, 1e9, "rewards are about 1"),
    whole("dpo.prompt_length", 0, MILLION, "messages"),
    above("dpo.beta", 0.0, 1e6, FACTOR),
    whole("dpo.batch_size", 1, MILLION, TASKS),
    whole("dpo.steps", 0, 100 * MILLION, STEPS),
    above("dpo.lr", 0.0, 100.0, RATE),
    whole("dpo.warmup_steps", 0, 100 * MILLION, STEPS),
    real("dpo.min_lr_ratio", 0.0, 1.0, SHARE),
    below("dpo.betas", 0.0, 1.0, MOMENTS),
    real("dpo.weight_decay", 0.0, 1000.0, DECAY),
    real("dpo.grad_clip", 0.0, 1e12, "0 switches it off"),
    whole("dpo.max_length", 1, 100 * MILLION, TOKENS),
    whole("agentevol.steps", 0, 100 * MILLION, STEPS),
    whole(
        "evaluation.samples",
        1,
        100_000,
        "estimates are exact to three digits long before",
    ),
    Limit {
        least: 0.0,
        ..real("evaluation.temperature", 0.0, 1e6, "0 is greedy")
    },
    whole(
        "evaluation.max_rounds",
        1,
        MILLION,
        "a round is a reply of the policy",
    ),
    whole(
        "evaluation.k",
        0,
        MILLION,
        "no more than evaluation.samples",
    ),
    whole("guard.patience", 1, MILLION, ANY),
    whole(
        "trainer.total_training_steps",
        0,
        ITERATIONS_MAX as u64,
        "a hundred times the longest runs that were published",
    ),
    whole("trainer.total_epochs", 1, MILLION, STEPS),
    whole("trainer.save_freq", 0, u32::MAX as u64, ANY),
    whole("trainer.test_freq", 0, u32::MAX as u64, ANY),
    whole("trainer.critic_warmup", 0, u32::MAX as u64, ANY),
];

/// The limit of a key, if it has one.
pub fn limit_of(path: &str) -> Option<&'static Limit> {
    LIMITS.iter().find(|limit| limit.path == path)
}

/// Checks every number of a resolved tree; of a stored plan only what would stop its reader.
pub(crate) fn check(tree: &Value, stored: bool) -> Result<()> {
    for limit in LIMITS.iter().filter(|limit| limit.stored || !stored) {
        let Some(value) = get(tree, limit.path) else {
            continue;
        };
        let numbers = match value {
            Value::Array(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        for (index, number) in numbers.iter().enumerate() {
            let Some(found) = number.as_f64().filter(|found| !limit.holds(*found)) else {
                continue;
            };
            let key = match value.is_array() {
                true => format!("{}[{index}]", limit.path),
                false => limit.path.to_owned(),
            };
            let found = if number.is_f64() {
                format!("{found}")
            } else {
                number.to_string()
            };
            return Err(Error::value(
                key,
                format!("must be {limit}, found {found} ({})", limit.why),
            ));
        }
    }
    Ok(())
}

impl Limit {
    fn holds(&self, value: f64) -> bool {
        let low = match self.above {
            true => value > self.least,
            false => value >= self.least,
        };
        let high = match self.below {
            true => value < self.most,
            false => value <= self.most,
        };
        low && high
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            least, most, unit, ..
        } = *self;
        match (self.above, self.below) {
            (true, _) => write!(
                f,
                "above {} and at most {}{unit}",
                Plain(least),
                Plain(most)
            ),
            (_, true) => write!(
                f,
                "at least {} and below {}{unit}",
                Plain(least),
                Plain(most)
            ),
            (false, false) => write!(f, "{} to {}{unit}", Plain(least), Plain(most)),
        }
    }
}

/// A number as people write it: very small and very large reals by their exponent.
struct Plain(f64);

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            x if x != 0.0 && x.abs() < 1e-3 => write!(f, "{x:e}"),
            x => write!(f, "{x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::{KEYS, Kind, find};

    /// A new key with a number gets a range, or a reason here to have none.
    #[test]
    fn every_number_has_a_limit() {
        const ANYTHING: [&str; 3] = ["run.seed", "data.seed", "jobs.priority"];
        for key in KEYS.iter().filter(|key| key.kind != Kind::Unused) {
            let default: Value = serde_saphyr::from_str(key.default).unwrap();
            let holds_numbers = match &default {
                Value::Array(list) => list.iter().any(Value::is_number),
                one => one.is_number(),
            };
            if holds_numbers && !ANYTHING.contains(&key.path) {
                assert!(limit_of(key.path).is_some(), "{} has no limit", key.path);
            }
        }
        for (index, limit) in LIMITS.iter().enumerate() {
            let key = find(limit.path).filter(|key| key.path == limit.path);
            assert!(key.is_some(), "{} is no key", limit.path);
            let same = |other: &Limit| other.path == limit.path;
            assert!(!LIMITS[..index].iter().any(same), "{} twice", limit.path);
            assert!(limit.least < limit.most, "{}", limit.path);
        }
    }

    /// A run that began under an older program can be looked at and carried on, whatever its
    /// rates were; what would keep its reader busy for ever is refused all the same.
    #[test]
    fn stored_plans_are_asked_for_sizes_alone() {
        use crate::config::ResolvedConfig;
        use std::path::Path;
        let text = |given: &str| {
            format!(
                "{{data: {{tasks: [{{env: mygame, ids: 0..9}}]}}, actor_rollout_ref: {{agentgym: {{task_name: mygame}}, rollout: {{n: 2}}}}, {given}}}"
            )
        };
        let path = Path::new("x.yaml");
        let old = text("sft: {betas: [1.5, -1], lr: 1e38, weight_decay: -1}");
        assert!(ResolvedConfig::parse_stored(path, &old, &[]).is_ok());
        assert!(ResolvedConfig::parse("x", path, &old, &[]).is_err());
        for (given, key) in [
            (
                "trainer: {total_training_steps: 4294967295}",
                "trainer.total_training_steps",
            ),
            (
                "jobs: {decode_rows: 4611686018427387904}",
                "jobs.decode_rows",
            ),
        ] {
            let read = ResolvedConfig::parse_stored(path, &text(given), &[]);
            let said = read.unwrap_err().to_string();
            assert!(said.contains(key), "{said}");
        }
    }
}
