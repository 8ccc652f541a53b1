//! The options of a built-in address.

use std::ops::RangeInclusive;

use crate::error::EnvError;

/// Which rules the built-in games are played by. A game that is in both the same knows of none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RulesVersion {
    /// Those of plans that name none: BabyAI in worlds of our own, easier than the original, and a
    /// maze whose items are in an order of our own.
    One,
    /// The original servers', world by world.
    #[default]
    Two,
}

impl RulesVersion {
    /// The rules with this number. `Err` says which there are.
    pub fn of(number: u32) -> Result<Self, String> {
        match number {
            1 => Ok(Self::One),
            2 => Ok(Self::Two),
            _ => Err(format!(
                "this program knows no rules {number} of the built-in games: give 1 or 2, or use \
                 the program that made the plan"
            )),
        }
    }
}

impl std::str::FromStr for RulesVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse();
        Self::of(number.map_err(|_| format!("rules {text:?} are not a number: give 1 or 2"))?)
    }
}

/// For subcommands whose game has two sets of rules.
#[derive(clap::Args)]
pub(crate) struct RulesArgument {
    /// The rules: 2, the original server's, or 1, those of before.
    #[arg(long, default_value = "2", value_name = "VERSION")]
    pub(crate) rules: RulesVersion,
}

/// Name and value pairs after the question mark, consumed one by one.
pub(crate) struct AddressOptions<'a> {
    address: &'a str,
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
    rules: RulesVersion,
}

impl<'a> AddressOptions<'a> {
    pub(crate) fn new(address: &'a str, query: &str, rules: RulesVersion) -> Self {
        let pairs = url::form_urlencoded::parse(query.as_bytes());
        Self {
            address,
            pairs: pairs.into_owned().collect(),
            known: Vec::new(),
            rules,
        }
    }

    /// The rules that are played by.
    pub(crate) fn rules(&self) -> RulesVersion {
        self.rules
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

    /// Like [`Self::read`], for an option without a default.
    fn read_if_set<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, EnvError> {
        let text = self.take(name);
        text.map(|text| self.understood(name, &text, expected, read))
            .transpose()
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

    pub(crate) fn number_if_set(&mut self, name: &'static str) -> Result<Option<u64>, EnvError> {
        self.read_if_set(name, "a number", |text| text.parse().ok())
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

    /// Like [`Self::choice`], without a default.
    pub(crate) fn choice_if_set<T: Copy>(
        &mut self,
        name: &'static str,
        words: [(&'static str, T); 2],
    ) -> Result<Option<T>, EnvError> {
        let expected = words.map(|(word, _)| word).join(" or ");
        self.read_if_set(name, &expected, |text| {
            let found = words.iter().find(|(word, _)| *word == text);
            found.map(|(_, value)| *value)
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
