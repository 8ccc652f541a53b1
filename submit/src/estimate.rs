//! How long a run still takes: one estimate, which the bar, the plain log and `status` show. It
//! follows from when the policies were committed, by the workers' clocks, and is for people only.

use agentgym_jobs::plan::Plan;

/// Iterations that are looked back on: enough to even out evaluations, few enough to follow a
/// change.
pub(crate) const ITERATIONS: u32 = 6;
/// An iteration that took this many times the median holds a pause of the run, and says nothing.
const PAUSE: f64 = 10.0;
/// Share of the iteration in progress that may count as done by the clock alone.
const DONE_MAX: f64 = 0.9;

/// What is known of the time that is left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeLeft {
    /// Seconds from one new policy to the next, at present.
    pub iteration_s: f64,
    /// Seconds until the last policy is committed.
    pub left_s: f64,
}

/// The iterations whose ends an estimate wants to know when the newest policy is `latest`.
pub(crate) fn wanted(plan: &Plan, latest: u32) -> std::ops::RangeInclusive<u32> {
    // The first iteration begins with what is done once, and what a fork took over was made
    // elsewhere.
    let first = plan.forked_at().map_or(1, |last| last.max(1));
    first.max(latest.saturating_sub(ITERATIONS))..=latest
}

/// The estimate at `now_unix_s`; `ended` has an iteration and when its policy was committed, in
/// order. `None` before two of them are known, or when no iteration is left.
///
/// An iteration is taken to last in proportion to its horizon, as far as those that are known bear
/// that out; where the horizon stays the same this is their mean.
pub(crate) fn estimate(plan: &Plan, ended: &[(u32, f64)], now_unix_s: f64) -> Option<TimeLeft> {
    let (latest, last_end) = *ended.last()?;
    let spans = ended.windows(2).map(|pair| {
        let [(before, from), (n, to)] = [pair[0], pair[1]];
        let each = (to - from).max(0.0) / f64::from((n - before).max(1));
        (f64::from(plan.rounds_max(n)), each)
    });
    let mut spans: Vec<(f64, f64)> = spans.collect();
    let mut sorted: Vec<f64> = spans.iter().map(|(_, s)| *s).collect();
    sorted.sort_by(f64::total_cmp);
    let median = *sorted.get(sorted.len() / 2)?;
    spans.retain(|(_, s)| *s <= PAUSE * median);
    let line = Line::through(&spans);
    let each = |n: u32| line.at(f64::from(plan.rounds_max(n)));
    let mut left_s: f64 = (latest + 1..=plan.iterations).map(each).sum();
    if latest < plan.iterations {
        let next = each(latest + 1);
        left_s -= (now_unix_s - last_end).clamp(0.0, DONE_MAX * next);
    }
    Some(TimeLeft {
        iteration_s: each((latest + 1).min(plan.iterations)),
        left_s: left_s.max(0.0),
    })
}

/// Seconds by horizon: a line that neither falls nor begins below zero.
struct Line {
    base_s: f64,
    per_round_s: f64,
}

impl Line {
    /// Least squares.
    fn through(points: &[(f64, f64)]) -> Self {
        let count = points.len().max(1) as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|p| p.0), mean(|p| p.1));
        let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
        let both: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
        // A single horizon says nothing of others: in proportion.
        let proportional = y / x.max(1.0);
        let slope = match spread > 0.0 {
            true => (both / spread).clamp(0.0, proportional),
            false => proportional,
        };
        Self {
            base_s: y - slope * x,
            per_round_s: slope,
        }
    }

    fn at(&self, rounds: f64) -> f64 {
        self.base_s + self.per_round_s * rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_jobs::config::ResolvedConfig;
    use std::path::Path;

    fn plan(overrides: &[&str]) -> Plan {
        let text = "
data: {tasks: [{env: textcraft, ids: 0..4}], train_batch_size: 4}
actor_rollout_ref: {rollout: {n: 2}}
trainer: {total_epochs: 20}
";
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &overrides).unwrap();
        Plan::new(config, Path::new("")).unwrap()
    }

    /// The plan's iterations, each lasting `each(n)` seconds from time 1000 on.
    fn ends(plan: &Plan, each: impl Fn(u32) -> f64) -> Vec<(u32, f64)> {
        let mut now = 1000.0;
        (1..=plan.iterations)
            .map(|n| {
                now += each(n);
                (n, now)
            })
            .collect()
    }

    fn at(plan: &Plan, all: &[(u32, f64)], latest: u32, later_s: f64) -> Option<TimeLeft> {
        let wanted = wanted(plan, latest);
        let known: Vec<_> = (all.iter().copied())
            .filter(|(n, _)| wanted.contains(n))
            .collect();
        estimate(plan, &known, all[latest as usize - 1].1 + later_s)
    }

    #[test]
    fn a_run_whose_iterations_grow_ends_when_it_was_said() {
        let grows = [
            "algorithm.rounds_ctrl.type=fixed",
            "algorithm.rounds_ctrl.rounds=5",
        ];
        let fixed = plan(&grows);
        let grows = [
            "algorithm.rounds_ctrl.type=scaling_inter_stepwise",
            "algorithm.rounds_ctrl.steps_scaling_inter=5",
            "algorithm.rounds_ctrl.rounds=[5,10,15,20]",
        ];
        let growing = plan(&grows);
        assert!(
            growing.rounds_max(20) > growing.rounds_max(1),
            "the horizon grows"
        );
        for plan in [&fixed, &growing] {
            let all = ends(plan, |n| 2.0 + 1.5 * f64::from(plan.rounds_max(n)));
            let end = all.last().unwrap().1;
            for latest in 7..plan.iterations {
                for later_s in [0.0, 3.0] {
                    let told = at(plan, &all, latest, later_s).unwrap();
                    let truth = end - all[latest as usize - 1].1 - later_s;
                    let off = (told.left_s - truth).abs() / truth;
                    assert!(off < 0.15, "after {latest}: {} for {truth}", told.left_s);
                }
            }
        }
    }

    #[test]
    fn a_pause_and_a_clock_that_is_off_do_not_count() {
        let plan = plan(&[]);
        let all = ends(&plan, |n| if n == 6 { 50_000.0 } else { 10.0 });
        let told = at(&plan, &all, 8, 0.0).unwrap();
        let left = 10.0 * f64::from(plan.iterations - 8);
        assert_eq!((told.iteration_s, told.left_s), (10.0, left));
        assert_eq!(at(&plan, &all, 8, -1e6).unwrap().left_s, left);
        assert_eq!(at(&plan, &all, 8, 1e6).unwrap().left_s, left - 9.0);
        let last = plan.iterations;
        assert_eq!(at(&plan, &all, last, 0.0).unwrap().left_s, 0.0);
        assert_eq!(at(&plan, &all, 1, 0.0), None, "nothing is known yet");
    }
}
