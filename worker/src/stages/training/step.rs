//! Shared by all optimizer steps, whatever the loss: a loss that many threads evaluate unit by unit,
//! that can fail, and that returns sums.

use crate::Result;
use agentgym_model::{StepReport, UnitCoefficients, UnitStreams};
use std::sync::{Mutex, PoisonError};

/// Streams of a unit, and the coefficients to use if its loss cannot be computed: the unit then
/// contributes nothing, and the step ends with the error.
pub(crate) trait Streams {
    /// Derivatives by the streams.
    type Coefficients;
    /// The coefficients of a loss that is 0 everywhere.
    fn zeros(&self) -> Self::Coefficients;
}

impl Streams for UnitStreams {
    type Coefficients = UnitCoefficients;

    fn zeros(&self) -> UnitCoefficients {
        of_log_probs(self.log_probs.zeros())
    }
}

/// The critic's values.
impl Streams for Vec<Vec<f32>> {
    type Coefficients = Vec<Vec<f64>>;

    fn zeros(&self) -> Vec<Vec<f64>> {
        self.iter().map(|row| vec![0.0; row.len()]).collect()
    }
}

/// The coefficients of a loss that does not depend on entropies.
pub(crate) fn of_log_probs(log_probs: Vec<Vec<f64>>) -> UnitCoefficients {
    let entropies = log_probs.iter().map(|row| vec![0.0; row.len()]).collect();
    UnitCoefficients {
        log_probs,
        entropies,
    }
}

/// The result of `compute`, and the sums that `loss` returned for each of `units`, in unit order
/// and not in the order in which threads evaluated them.
///
/// # Errors
/// The error of `compute`, or the loss error of the first unit that has one.
pub(crate) fn with_sums<In: Streams, S: Default + Send, T>(
    units: usize,
    loss: impl Fn(usize, &In) -> Result<(In::Coefficients, S)> + Sync,
    compute: impl FnOnce(&(dyn Fn(usize, &In) -> In::Coefficients + Sync)) -> agentgym_model::Result<T>,
) -> Result<(T, Vec<S>)> {
    let mut empty = Vec::new();
    empty.resize_with(units, || Ok(S::default()));
    let sums: Mutex<Vec<Result<S>>> = Mutex::new(empty);
    let computed = compute(&|unit, streams| {
        let (coefficients, found) = match loss(unit, streams) {
            Ok((coefficients, found)) => (coefficients, Ok(found)),
            Err(error) => (streams.zeros(), Err(error)),
        };
        sums.lock().unwrap_or_else(PoisonError::into_inner)[unit] = found;
        coefficients
    })?;
    let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((computed, sums.into_iter().collect::<Result<_>>()?))
}

/// Logs that a step of `what` was skipped and changed nothing.
pub(crate) fn say_if_skipped(report: &StepReport, what: &str) {
    if report.skipped_non_finite {
        tracing::warn!("the gradient of {what} is not finite; this optimizer step changes nothing");
    }
}
