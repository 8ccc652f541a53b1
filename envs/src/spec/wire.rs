//! The forms of a spec's fields in a file and in a plan. What is read lives as long as the program,
//! like the specs in its source, so that there is one type for both.

use serde::de::Error;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A list of texts.
pub(super) fn words<'de: 'static, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<&'static [&'static str], D::Error> {
    Vec::<&'static str>::deserialize(deserializer).map(|words| &*words.leak())
}

/// A list of anything.
pub(super) fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<&'static [T], D::Error> {
    Vec::<T>::deserialize(deserializer).map(|all| &*all.leak())
}

/// `0..812`.
pub(super) mod range {
    use super::{Deserialize, Deserializer, Error, Serializer};
    use std::ops::Range;

    pub(crate) fn serialize<S: Serializer>(range: &Range<i64>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{}..{}", range.start, range.end))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Range<i64>, D::Error> {
        let text = String::deserialize(from)?;
        let ends = text.split_once("..");
        let ends = ends.and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
        match ends {
            Some((low, high)) if low < high => Ok(low..high),
            _ => Err(D::Error::custom(format!(
                "`{text}` is no range of items; write the first and the one after the last, such as 0..812"
            ))),
        }
    }
}

/// Names and fixed values.
pub(super) mod fields {
    use super::{Deserialize, Deserializer, Map, Serialize, SerializeMap, Serializer, Value};

    pub(crate) fn serialize<S: Serializer, T: Serialize>(
        fields: &&'static [(&'static str, T)],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(fields.len()))?;
        for (name, value) in *fields {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }

    pub(crate) fn deserialize<'de: 'static, D: Deserializer<'de>, T: Deserialize<'static>>(
        from: D,
    ) -> Result<&'static [(&'static str, T)], D::Error> {
        let map = Map::<String, Value>::deserialize(from)?;
        let fields = map.into_iter().map(|(name, value)| {
            let value: &'static Value = Box::leak(Box::new(value));
            let value = T::deserialize(value).map_err(serde::de::Error::custom)?;
            Ok((&*name.leak(), value))
        });
        Ok(fields.collect::<Result<Vec<_>, D::Error>>()?.leak())
    }
}
