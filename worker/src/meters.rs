//! What a worker process has done since it started, for whoever operates it. Nothing here is read by
//! a stage, reaches an artifact, or is compared with another machine's clock.

use agentgym_envs::ClientCounters;
use agentgym_storage::{AttemptOutcome, Store};
use prometheus::{
    CounterVec, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Bounds of the latency histogram, in seconds: a built-in game answers in milliseconds, a browser
/// in tens of seconds.
const LATENCY_BOUNDS_S: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// Calls of the environments of one attempt that are counted already: by name of the environment
/// and kind of fault.
pub(crate) type FaultsSeen = BTreeMap<(String, &'static str), u64>;

/// The meters of one process, shared by its workers.
pub struct Meters {
    registry: Registry,
    stage_seconds: CounterVec,
    attempts: IntCounterVec,
    running: IntGaugeVec,
    tokens: IntCounterVec,
    claims: IntCounterVec,
    warnings: IntCounterVec,
    env_calls: HistogramVec,
    env_faults: IntCounterVec,
    requests: IntCounterVec,
    bytes: IntCounterVec,
    memory: GaugeVec,
    worker: IntGaugeVec,
    in_trouble: IntGauge,
    trouble: Mutex<Option<(Instant, String)>>,
}

impl Default for Meters {
    fn default() -> Self {
        let registry = Registry::new();
        macro_rules! meter {
            ($kind:ident, $name:literal, $help:literal, $labels:expr) => {{
                let made = $kind::new(Opts::new($name, $help), &$labels)
                    .expect("names and labels are constants and valid");
                registry
                    .register(Box::new(made.clone()))
                    .expect("every name is registered once");
                made
            }};
        }
        let env_calls = HistogramVec::new(
            HistogramOpts::new(
                "agentgym_env_call_seconds",
                "How long calls to an environment took, retries included.",
            )
            .buckets(LATENCY_BOUNDS_S.to_vec()),
            &["env"],
        )
        .expect("names and labels are constants and valid");
        let in_trouble = IntGauge::new(
            "agentgym_in_trouble",
            "1 while the store or the queue does not answer.",
        )
        .expect("the name is a constant and valid");
        for collector in [
            Box::new(env_calls.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(in_trouble.clone()),
        ] {
            registry
                .register(collector)
                .expect("every name is registered once");
        }
        Self {
            stage_seconds: meter!(
                CounterVec,
                "agentgym_stage_seconds_total",
                "Seconds of attempts that have ended, by stage and by how they ended.",
                ["stage", "outcome"]
            ),
            attempts: meter!(
                IntCounterVec,
                "agentgym_attempts_total",
                "Attempts that have ended, by stage and by how they ended.",
                ["stage", "outcome"]
            ),
            running: meter!(
                IntGaugeVec,
                "agentgym_parts_running",
                "Parts that are being made.",
                ["stage"]
            ),
            tokens: meter!(
                IntCounterVec,
                "agentgym_tokens_total",
                "Tokens of attempts that have ended, by what was done with them.",
                ["kind"]
            ),
            claims: meter!(
                IntCounterVec,
                "agentgym_claims_total",
                "Claims on parts: held, taken by another worker, or not renewed in time.",
                ["result"]
            ),
            warnings: meter!(
                IntCounterVec,
                "agentgym_warnings_total",
                "Warnings of the watchdog, by name.",
                ["name"]
            ),
            env_faults: meter!(
                IntCounterVec,
                "agentgym_env_faults_total",
                "Failed calls to an environment by kind; retried ones are of the kind retried.",
                ["env", "kind"]
            ),
            requests: meter!(
                IntCounterVec,
                "agentgym_store_requests_total",
                "Requests to the object store.",
                ["request"]
            ),
            bytes: meter!(
                IntCounterVec,
                "agentgym_store_bytes_total",
                "Bytes written into the object store and read out of it.",
                ["direction"]
            ),
            memory: meter!(
                GaugeVec,
                "agentgym_memory_bytes",
                "Memory that the process has, its peak in the newest attempt, and what the machine or the container allows.",
                ["of"]
            ),
            worker: meter!(
                IntGaugeVec,
                "agentgym_worker_info",
                "1 for every worker of the process, with its device.",
                ["worker", "device", "numeric_class", "version"]
            ),
            env_calls,
            in_trouble,
            trouble: Mutex::default(),
            registry,
        }
    }
}

/// A part that is being made, for the lifetime of this value.
pub(crate) struct Making(IntGauge);

impl Drop for Making {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Meters {
    /// The meters in Prometheus' text format; those of the store and the memory as they are now.
    pub fn text(&self, store: &Store) -> String {
        let done = store.requests();
        for (name, count) in [
            ("put", done.puts),
            ("get", done.gets),
            ("list", done.lists),
            ("delete", done.deletes),
        ] {
            raise(&self.requests, &[name], count);
        }
        raise(&self.bytes, &["written"], done.bytes_in);
        raise(&self.bytes, &["read"], done.bytes_out);
        for (name, bytes) in [
            ("resident", crate::memory::resident_bytes()),
            ("peak", crate::memory::peak_bytes()),
            ("machine", crate::memory::machine_bytes()),
        ] {
            self.memory.with_label_values(&[name]).set(bytes as f64);
        }
        let families = self.registry.gather();
        TextEncoder::new()
            .encode_to_string(&families)
            .expect("every family has a name and a value")
    }

    /// Since when, in seconds, the store or the queue fails, and how.
    pub fn trouble(&self) -> Option<(f64, String)> {
        let trouble = self.trouble.lock();
        let trouble = trouble.unwrap_or_else(PoisonError::into_inner);
        let (since, why) = trouble.as_ref()?;
        Some((since.elapsed().as_secs_f64(), why.clone()))
    }

    pub(crate) fn worker(&self, name: &str, device: &str, numeric_class: &str) {
        self.worker
            .with_label_values(&[name, device, numeric_class, crate::BUILD])
            .set(1);
    }

    pub(crate) fn warning(&self, name: &str) {
        self.warnings.with_label_values(&[name]).inc();
    }

    pub(crate) fn making(&self, stage: &str) -> Making {
        let gauge = self.running.with_label_values(&[stage]);
        gauge.inc();
        Making(gauge)
    }

    pub(crate) fn claim(&self, result: &str) {
        self.claims.with_label_values(&[result]).inc();
    }

    /// An attempt has ended.
    pub(crate) fn ended(
        &self,
        stage: &str,
        outcome: AttemptOutcome,
        wall_s: f64,
        stats: &Map<String, Value>,
    ) {
        let labels = [stage, outcome.name()];
        self.stage_seconds
            .with_label_values(&labels)
            .inc_by(wall_s.max(0.0));
        self.attempts.with_label_values(&labels).inc();
        // `sampled_tokens`, `scored_tokens`, …: whatever the stage counted.
        for (name, value) in stats {
            if let (Some(kind), Some(count)) = (name.strip_suffix("_tokens"), value.as_u64()) {
                self.tokens.with_label_values(&[kind]).inc_by(count);
            }
        }
    }

    pub(crate) fn env_call(&self, environment: &str, seconds: f64) {
        self.env_calls
            .with_label_values(&[environment])
            .observe(seconds);
    }

    /// Adds what a client has counted since the last look.
    pub(crate) fn env_faults(
        &self,
        environment: &str,
        counters: &ClientCounters,
        seen: &mut FaultsSeen,
    ) {
        let mut all = vec![("retried", counters.retries)];
        all.extend(agentgym_envs::FaultKind::ALL.map(|kind| (kind.name(), counters.faults(kind))));
        for (kind, count) in all {
            let seen = seen.entry((environment.to_owned(), kind)).or_default();
            if count > *seen {
                let labels = [environment, kind];
                let meter = self.env_faults.with_label_values(&labels);
                meter.inc_by(count - *seen);
                *seen = count;
            }
        }
    }

    pub(crate) fn in_trouble(&self, why: &str) {
        self.in_trouble.set(1);
        let trouble = self.trouble.lock();
        let mut trouble = trouble.unwrap_or_else(PoisonError::into_inner);
        let since = trouble.as_ref().map_or_else(Instant::now, |(at, _)| *at);
        *trouble = Some((since, why.to_owned()));
    }

    pub(crate) fn out_of_trouble(&self) {
        self.in_trouble.set(0);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Brings a counter up to a count that is kept elsewhere.
fn raise(counters: &IntCounterVec, labels: &[&str], count: u64) {
    let counter = counters.with_label_values(labels);
    counter.inc_by(count.saturating_sub(counter.get()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str, line: &str) -> Option<f64> {
        let found = text.lines().find_map(|l| l.strip_prefix(line))?;
        found.trim().parse().ok()
    }

    #[tokio::test]
    async fn what_was_done_is_counted_once() {
        let store = Store::open("memory:").await.unwrap();
        let meters = Meters::default();
        let stats = json!({"sampled_tokens": 120, "sampled_tokens_per_s": 60.5, "busy_s": 1.0});
        let stats = stats.as_object().unwrap();
        for _ in 0..2 {
            meters.ended("rollout", AttemptOutcome::Committed, 2.5, stats);
        }
        meters.ended("rollout", AttemptOutcome::Drained, 0.5, &Map::new());
        let making = meters.making("update");
        meters.env_call("textcraft", 0.003);
        meters.env_call("textcraft", 60.0);
        let text = meters.text(&store);
        let committed = r#"{outcome="committed",stage="rollout"}"#;
        for (name, expected) in [
            (format!("agentgym_stage_seconds_total{committed}"), 5.0),
            (format!("agentgym_attempts_total{committed}"), 2.0),
            (
                r#"agentgym_attempts_total{outcome="drained",stage="rollout"}"#.into(),
                1.0,
            ),
            (r#"agentgym_tokens_total{kind="sampled"}"#.into(), 240.0),
            (r#"agentgym_parts_running{stage="update"}"#.into(), 1.0),
            (
                r#"agentgym_env_call_seconds_bucket{env="textcraft",le="0.005"}"#.into(),
                1.0,
            ),
            (
                r#"agentgym_env_call_seconds_bucket{env="textcraft",le="+Inf"}"#.into(),
                2.0,
            ),
        ] {
            assert_eq!(value(&text, &name), Some(expected), "{name}\n{text}");
        }
        drop(making);
        let gets = store.requests().gets;
        let _ = store.runs().await.unwrap();
        let text = meters.text(&store);
        assert_eq!(
            value(&text, r#"agentgym_parts_running{stage="update"}"#),
            Some(0.0)
        );
        let lists = store.requests().lists as f64;
        for _ in 0..2 {
            let text = meters.text(&store);
            let listed = value(&text, r#"agentgym_store_requests_total{request="list"}"#);
            assert_eq!(listed, Some(lists), "{gets}");
        }
        assert!(value(&text, r#"agentgym_memory_bytes{of="resident"}"#).unwrap() > 1e6);
    }

    #[test]
    fn trouble_has_a_beginning_and_an_end() {
        let meters = Meters::default();
        assert_eq!(meters.trouble(), None);
        meters.in_trouble("no store");
        meters.in_trouble("no queue");
        assert_eq!(meters.trouble().unwrap().1, "no queue");
        meters.out_of_trouble();
        assert_eq!(meters.trouble(), None);
    }
}
