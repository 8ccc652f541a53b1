//! How many rounds an episode may take, as a pure function of the iteration.
//! There is no counter that a restart could get wrong: iteration 101 has the
//! same horizon whether it follows iteration 100 or a crash.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The horizon of every iteration. Fields are private because a schedule without rounds, or
/// with a stage of 0 iterations, is invalid; a configuration is checked when it is read.
///
/// ```yaml
/// type: scaling_inter_stepwise     # or: type: fixed, rounds: 30
/// rounds: [10, 20, 30]
/// steps_scaling_inter: 100
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct HorizonSchedule {
    /// Never empty, no entry 0.
    rounds: Vec<u32>,
    /// Iterations per entry, at least 1; `None` for a fixed horizon.
    steps_scaling_inter: Option<u32>,
}

impl HorizonSchedule {
    /// The same horizon for every iteration.
    pub fn fixed(rounds: u32) -> Result<Self, Error> {
        Self::checked(vec![rounds], None)
    }

    /// ScalingInter-RL: entry `s` of `rounds` holds for `steps_scaling_inter`
    /// iterations, the last one for all that follow. Source: arXiv:2509.08755 §3.
    pub fn scaling_inter_stepwise(
        rounds: Vec<u32>,
        steps_scaling_inter: u32,
    ) -> Result<Self, Error> {
        Self::checked(rounds, Some(steps_scaling_inter))
    }

    fn checked(rounds: Vec<u32>, steps_scaling_inter: Option<u32>) -> Result<Self, Error> {
        if rounds.is_empty() || rounds.contains(&0) {
            let expected = "one or more round counts, each at least 1";
            return Err(Error::Parameter {
                name: "rounds_ctrl.rounds",
                found: format!("{rounds:?}"),
                expected,
            });
        }
        if steps_scaling_inter == Some(0) {
            let name = "rounds_ctrl.steps_scaling_inter";
            return Err(Error::Parameter {
                name,
                found: "0".to_owned(),
                expected: "at least 1 iteration",
            });
        }
        Ok(Self {
            rounds,
            steps_scaling_inter,
        })
    }

    /// The most rounds an episode of `iteration` (1-based) may take. Iteration
    /// 0, which only evaluates the start policy, has the horizon of iteration 1.
    pub fn rounds_max(&self, iteration: u32) -> u32 {
        let last = self.rounds.len() - 1;
        let entry = match self.steps_scaling_inter {
            None => 0,
            Some(iterations) => (iteration.saturating_sub(1) / iterations) as usize,
        };
        self.rounds[entry.min(last)]
    }

    /// The largest horizon of any iteration.
    pub fn largest(&self) -> u32 {
        self.rounds.iter().copied().fold(0, u32::max)
    }

    /// The first iteration of each entry with its horizon, up to `iterations_max`;
    /// a plan prints this.
    pub fn entries(&self, iterations_max: u32) -> Vec<(u32, u32)> {
        let iterations = self.steps_scaling_inter.map_or(1, u64::from);
        let starts = self
            .rounds
            .iter()
            .enumerate()
            .map(|(entry, &rounds)| (entry as u64 * iterations + 1, rounds));
        starts
            .take_while(|&(first, _)| first <= u64::from(iterations_max))
            .map(|(first, rounds)| (first as u32, rounds))
            .collect()
    }
}

/// The schedule as it is written in a configuration.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Written {
    Fixed {
        rounds: u32,
    },
    ScalingInterStepwise {
        rounds: Vec<u32>,
        steps_scaling_inter: u32,
    },
}

impl TryFrom<Written> for HorizonSchedule {
    type Error = Error;

    fn try_from(written: Written) -> Result<Self, Error> {
        match written {
            Written::Fixed { rounds } => Self::fixed(rounds),
            Written::ScalingInterStepwise {
                rounds,
                steps_scaling_inter,
            } => Self::scaling_inter_stepwise(rounds, steps_scaling_inter),
        }
    }
}

impl From<HorizonSchedule> for Written {
    fn from(schedule: HorizonSchedule) -> Self {
        match schedule.steps_scaling_inter {
            None => Self::Fixed {
                rounds: schedule.rounds[0],
            },
            Some(steps_scaling_inter) => Self::ScalingInterStepwise {
                rounds: schedule.rounds,
                steps_scaling_inter,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{golden, rows};

    #[test]
    fn golden_horizons_at_every_iteration() {
        for case in golden("rounds").cases() {
            let rounds = rows(&case["rounds"])
                .map(|entry| entry.as_u64().unwrap() as u32)
                .collect();
            let iterations = case["steps_scaling_inter"].as_u64().unwrap() as u32;
            let schedule = HorizonSchedule::scaling_inter_stepwise(rounds, iterations).unwrap();
            for (iteration, horizon) in case["horizon_by_step"].as_object().unwrap() {
                let found = schedule.rounds_max(iteration.parse().unwrap());
                assert_eq!(
                    u64::from(found),
                    horizon.as_u64().unwrap(),
                    "iteration {iteration}"
                );
            }
        }
    }

    #[test]
    fn as_written_in_a_configuration() {
        let text = r#"{"type":"scaling_inter_stepwise","rounds":[5,8,10],"steps_scaling_inter":3}"#;
        let schedule: HorizonSchedule = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&schedule).unwrap(), text);
        assert_eq!(schedule.entries(9), [(1, 5), (4, 8), (7, 10)]);
        assert_eq!(schedule.entries(6), [(1, 5), (4, 8)]);
        assert_eq!((schedule.rounds_max(0), schedule.largest()), (5, 10));
        let fixed: HorizonSchedule =
            serde_json::from_str(r#"{"type":"fixed","rounds":30}"#).unwrap();
        assert_eq!((fixed.rounds_max(1), fixed.rounds_max(u32::MAX)), (30, 30));
    }

    #[test]
    fn schedules_that_mean_nothing() {
        assert!(HorizonSchedule::fixed(0).is_err());
        assert!(HorizonSchedule::scaling_inter_stepwise(vec![], 3).is_err());
        let error = HorizonSchedule::scaling_inter_stepwise(vec![5], 0)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "rounds_ctrl.steps_scaling_inter is 0: it must be at least 1 iteration"
        );
        assert!(serde_json::from_str::<HorizonSchedule>(r#"{"type":"fixed","rounds":0}"#).is_err());
    }

    proptest! {
        /// Rising entries give a horizon that never falls, changes only at
        /// multiples of the step, and visits every entry.
        #[test]
        fn rising_entries_never_fall(mut rounds in prop::collection::vec(1u32..50, 1..6), step in 1u32..20) {
            rounds.sort_unstable();
            let schedule = HorizonSchedule::scaling_inter_stepwise(rounds.clone(), step).unwrap();
            for iteration in 1..150 {
                let (now, next) = (schedule.rounds_max(iteration), schedule.rounds_max(iteration + 1));
                prop_assert!(now <= next);
                prop_assert!(now == next || iteration % step == 0);
            }
            for (first, horizon) in schedule.entries(u32::MAX) {
                prop_assert_eq!(schedule.rounds_max(first), horizon);
            }
        }
    }
}
