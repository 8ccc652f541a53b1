//! Numbers as JSON holds them.

use serde::{Deserialize, Deserializer};

/// A number that is not finite stands as null in JSON, and is read as NaN.
pub(crate) fn number<'de, D: Deserializer<'de>>(value: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(f64::NAN))
}

pub(crate) fn is_zero(count: &usize) -> bool {
    *count == 0
}
