//! A named choice that keeps its spelling: plans and exports show an alias as the user wrote it.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;
use std::str::FromStr;

/// A choice and how the config spells it.
#[derive(Debug, Clone, PartialEq)]
pub struct Spelled<T> {
    /// The choice.
    pub value: T,
    spelling: String,
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Spelled<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spelling = String::deserialize(deserializer)?;
        let value = spelling.parse().map_err(D::Error::custom)?;
        Ok(Self { value, spelling })
    }
}

impl<T> Serialize for Spelled<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.spelling)
    }
}

impl<T> fmt::Display for Spelled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spelling)
    }
}
