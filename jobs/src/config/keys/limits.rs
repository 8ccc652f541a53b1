//! What each number of a config may be, in one place. A limit is far beyond any real run and
//! well below what would make a plan take long to compute, overflow a sum or train on
//! infinities; the reason beside it says why it is enough.

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
    pub(super) least: f64,
    pub(super) most: f64,
    /// `least` itself is outside.
    above: bool,
    /// `most` itself is outside.
    below: bool,
    unit: &'static str,
    /// Checked in stored plans too: a number outside would hang or exhaust their reader.
    pub(crate) stored: bool,
    /// Why no run needs more.
    pub why: &'static str,
}

pub(super) const fn whole(least: u64, most: u64, why: &'static str) -> Limit {
    Limit {
        stored: true,
        ..real(least as f64, most as f64, why)
    }
}

pub(super) const fn seconds(least: f64) -> Limit {
    const WHY: &str = "thirty years; more cannot be added to a clock";
    real(least, 1e9, WHY).unit(" seconds").of_stored_plans()
}

/// A number of the arithmetic. Runs that had one outside can be read and carried on.
pub(super) const fn real(least: f64, most: f64, why: &'static str) -> Limit {
    Limit {
        least,
        most,
        above: false,
        below: false,
        unit: "",
        stored: false,
        why,
    }
}

/// As [`real`], without the least number itself.
pub(super) const fn above(least: f64, most: f64, why: &'static str) -> Limit {
    Limit {
        above: true,
        ..real(least, most, why)
    }
}

/// As [`real`], without the largest number itself.
pub(super) const fn below(least: f64, most: f64, why: &'static str) -> Limit {
    Limit {
        below: true,
        ..real(least, most, why)
    }
}

impl Limit {
    pub(super) const fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    pub(super) const fn of_stored_plans(self) -> Self {
        Self {
            stored: true,
            ..self
        }
    }

    pub(super) fn holds(&self, value: f64) -> bool {
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
