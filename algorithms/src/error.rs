//! Errors in the arguments of a pure function: lengths that do not match, a
//! number that is not finite, a parameter outside its range, an unknown name.
//! Each message says what was found and what is expected.

/// Why a function of this crate refused its arguments.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two slices that must be aligned have different lengths.
    #[error(
        "{what} has {found} entries where {expected} are needed: every slice of a call must be equally long"
    )]
    Length {
        /// The slice that differs from the first one of the call.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length of the first slice.
        expected: usize,
    },

    /// A number that takes part in the result is NaN or infinite.
    #[error(
        "{what} is {value} at index {index}: it must be finite; look at the stage that produced it \
         (an overflow in the model, or a reward that the environment did not give as a number)"
    )]
    NotFinite {
        /// Which stream the number belongs to.
        what: &'static str,
        /// Its position in that stream.
        index: usize,
        /// The number itself.
        value: f64,
    },

    /// A parameter is outside the range in which the formula is defined.
    #[error("{name} is {found}: it must be {expected}")]
    Parameter {
        /// The parameter's configuration name.
        name: &'static str,
        /// What it was.
        found: String,
        /// What it may be.
        expected: &'static str,
    },

    /// An estimator needs a stream that was not given.
    #[error("{estimator} needs {what} for every episode, and episode {index} has none")]
    Missing {
        /// The estimator.
        estimator: &'static str,
        /// The stream that it needs.
        what: &'static str,
        /// Index of the first episode without it.
        index: usize,
    },

    /// A KL loss was requested without a reference policy's log-probs.
    #[error(
        "a KL loss needs the reference policy's log-probs, and the sequence has none: \
         run the log_probs stage with the reference policy, or set actor.use_kl_loss to false"
    )]
    NoReference,

    /// A configured name is not one of the known ones.
    #[error("unknown {what} `{found}`; known are: {known}")]
    UnknownName {
        /// What kind of thing was named.
        what: &'static str,
        /// The name as written.
        found: String,
        /// Every accepted name, comma-separated.
        known: String,
    },
}

/// Requires that `found` equals `expected`, the length of the call's first slice.
pub(crate) fn same_length(what: &'static str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected {
        Ok(())
    } else {
        Err(Error::Length {
            what,
            found,
            expected,
        })
    }
}

/// Requires that every entry of `values` is finite.
pub(crate) fn all_finite(what: &'static str, values: &[f64]) -> Result<(), Error> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(Error::NotFinite {
            what,
            index,
            value: values[index],
        }),
    }
}

/// Requires that the entries of `values` inside `mask` are finite. Entries
/// outside the mask are not read.
pub(crate) fn finite_where(what: &'static str, values: &[f64], mask: &[bool]) -> Result<(), Error> {
    match values
        .iter()
        .zip(mask)
        .position(|(value, &kept)| kept && !value.is_finite())
    {
        None => Ok(()),
        Some(index) => Err(Error::NotFinite {
            what,
            index,
            value: values[index],
        }),
    }
}

/// Requires that a parameter satisfies its range.
pub(crate) fn parameter(
    name: &'static str,
    found: f64,
    is_allowed: bool,
    expected: &'static str,
) -> Result<(), Error> {
    if is_allowed {
        Ok(())
    } else {
        Err(Error::Parameter {
            name,
            found: found.to_string(),
            expected,
        })
    }
}
