//! What a template is given beside the conversation: the date that it asks for and variables of the
//! caller. Both decide ids, so a policy's folder keeps them in a file of their own.

use chrono::NaiveDate;
use minijinja::ErrorKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fmt::Write as _;

/// The date of every run that gives none: never today's, so that a run finds itself again. It is the
/// one that Llama 3's templates fall back to.
pub const TEMPLATE_DATE: &str = "2024-07-26";

/// The function that gives the date in any form, and the variable that has it as `26 Jul 2024`.
const FUNCTION: &str = "strftime_now";
pub(super) const VARIABLE: &str = "date_string";

/// Names that every rendering gives itself.
const OWN: [&str; 5] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    FUNCTION,
];

/// Largest size of all variables, as JSON.
const VARIABLES_MAX: usize = 1 << 16;

/// What a template is given beside the conversation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TemplateSettings {
    /// The date, as `2024-07-26`; none: [`TEMPLATE_DATE`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// Variables by name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub variables: Map<String, Value>,
}

impl TemplateSettings {
    /// These, and what they leave open as `below` has it.
    pub(super) fn over(&self, below: &Self) -> Self {
        let mut variables = below.variables.clone();
        variables.extend(self.variables.clone());
        Self {
            date: self.date.clone().or_else(|| below.date.clone()),
            variables,
        }
    }

    /// The date in use.
    pub fn date(&self) -> &str {
        self.date.as_deref().unwrap_or(TEMPLATE_DATE)
    }

    pub(super) fn parsed_date(&self) -> Result<Date, String> {
        let date = self.date();
        let parsed = NaiveDate::parse_from_str(date, "%Y-%m-%d").ok();
        let canonical = parsed.filter(|parsed| parsed.to_string() == date);
        canonical.map(Date).ok_or_else(|| {
            format!("template_date is {date:?}, which is no day; write it as {TEMPLATE_DATE}")
        })
    }

    /// Why a template that reads these names has no use for them.
    pub(super) fn check(&self, reads: &HashSet<String>) -> Result<(), String> {
        if self.date.is_some() && !asks_for_date(reads) {
            return Err(
                "template_date is given, and the chat template asks for no date; leave the key out"
                    .to_owned(),
            );
        }
        let bytes = serde_json::to_string(&self.variables).map_or(0, |text| text.len());
        if bytes > VARIABLES_MAX {
            return Err(format!(
                "template_variables has {bytes} bytes as JSON, at most {VARIABLES_MAX} are taken"
            ));
        }
        for name in self.variables.keys() {
            let why = match name.as_str() {
                VARIABLE => "it is given by template_date".to_owned(),
                name if OWN.contains(&name) => "every rendering gives it itself".to_owned(),
                name if reads.contains(name) => continue,
                _ => {
                    let given = |name: &&str| !OWN.contains(name) && *name != VARIABLE;
                    let mut names: Vec<&str> =
                        reads.iter().map(String::as_str).filter(given).collect();
                    names.sort_unstable();
                    format!(
                        "the chat template never reads it; it reads {}",
                        names.join(", ")
                    )
                }
            };
            return Err(format!(
                "template_variables.{name} cannot be given: {why}; leave it out"
            ));
        }
        Ok(())
    }
}

/// Whether a template that reads these names asks for a date.
pub(super) fn asks_for_date(reads: &HashSet<String>) -> bool {
    [FUNCTION, VARIABLE]
        .iter()
        .any(|name| reads.contains(*name))
}

/// A day.
#[derive(Debug, Clone, Copy)]
pub(super) struct Date(NaiveDate);

impl Date {
    /// The day at midnight, as Python's `strftime` writes it.
    pub(super) fn strftime(self, format: &str) -> Result<String, minijinja::Error> {
        let mut text = String::new();
        let midnight = self.0.and_time(chrono::NaiveTime::MIN);
        match write!(text, "{}", midnight.format(format)) {
            Ok(()) => Ok(text),
            Err(_) => Err(minijinja::Error::new(
                ErrorKind::InvalidOperation,
                format!("{FUNCTION} knows no format {format:?}"),
            )),
        }
    }

    /// As [`VARIABLE`] has it.
    pub(super) fn in_words(self) -> String {
        self.0.format("%d %b %Y").to_string()
    }
}
