//! The options of a built-in address.

use std::ops::RangeInclusive;

use crate::error::EnvError;

/// Name and value pairs after the question mark, consumed one by one.
pub(crate) struct AddressOptions<'a> {
    address: &'a str,
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl<'a> AddressOptions<'a> {
    pub(crate) fn new(address: &'a str, query: &str) -> Self {
        let pairs = url::form_urlencoded::parse(query.as_bytes());
        Self {
            address,
            pairs: pairs.into_owned().collect(),
            known: Vec::new(),
        }
    }

    /// The error that the address has this problem.
    pub(crate) fn bad(&self, problem: impl Into<String>) -> EnvError {
        EnvError::Address {
            address: self.address.to_owned(),
            problem: problem.into(),
        }
    }

    pub(crate) fn take(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        let at = self.pairs.iter().position(|(key, _)| key == name)?;
        Some(self.pairs.remove(at).1)
    }

    /// Parses an option with `read`, or `default` if the option is missing.
    pub(crate) fn read<T>(
        &mut self,
        name: &'static str,
        default: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, EnvError> {
        let text = self.take(name).unwrap_or_else(|| default.to_owned());
        self.understood(name, &text, expected, read)
    }

    fn understood<T>(
        &self,
        name: &str,
        text: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, EnvError> {
        read(text)
            .ok_or_else(|| self.bad(format!("option {name:?} is {text:?}; expected {expected}")))
    }

    pub(crate) fn number(&mut self, name: &'static str, default: u64) -> Result<u64, EnvError> {
        self.read(name, &default.to_string(), "a number", |text| {
            text.parse().ok()
        })
    }

    pub(crate) fn range(
        &mut self,
        name: &'static str,
        default: &str,
    ) -> Result<RangeInclusive<u32>, EnvError> {
        self.read(name, default, "a number or a range such as 1-3", range)
    }

    /// One of two words; the first is the default.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        words: [(&'static str, T); 2],
    ) -> Result<T, EnvError> {
        let expected = words.map(|(word, _)| word).join(" or ");
        self.read(name, words[0].0, &expected, |text| {
            words
                .iter()
                .find(|(word, _)| *word == text)
                .map(|(_, value)| *value)
        })
    }

    /// Fails if an option is left that was not consumed.
    pub(crate) fn none_left(&self) -> Result<(), EnvError> {
        let known = || self.known.join(", ");
        self.pairs.first().map_or(Ok(()), |(unknown, _)| {
            Err(self.bad(format!(
                "unknown option {unknown:?}; known here: {}",
                known()
            )))
        })
    }
}

/// `2` or `1-3`.
pub(crate) fn range(text: &str) -> Option<RangeInclusive<u32>> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    Some(low.trim().parse().ok()?..=high.trim().parse().ok()?)
}
