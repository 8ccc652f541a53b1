//! The options of a built-in address. They are read by the grammar of the environment's command line:
//! `?boxes=2&top_k=3` is `--boxes=2 --top-k=3`, so that ranges and defaults stand once.

use std::error::Error;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Args, Command};

use crate::server::ServerOptions;

/// Limits of a server.
#[derive(Args)]
pub struct Limits {
    /// Close sessions that are unused for this many seconds.
    #[arg(long, default_value_t = ServerOptions::default().session_ttl_s, value_parser = number::<u64>)]
    pub ttl_s: u64,
    /// Largest number of open sessions.
    #[arg(long, default_value_t = ServerOptions::default().sessions_max, value_parser = number::<usize>)]
    pub sessions_max: usize,
}

/// A form of address.
#[derive(Debug)]
pub struct Address {
    /// What follows `builtin`.
    pub suffix: &'static str,
    /// Its options and their names on the command line; empty: all, by the same names.
    pub options: &'static [(&'static str, &'static str)],
    /// The word that stands for the first option where it is missing.
    pub without: Option<&'static str>,
}

impl Address {
    /// An address with the options of the command line, by their names.
    pub const fn new(suffix: &'static str) -> Self {
        Self {
            suffix,
            options: &[],
            without: None,
        }
    }

    /// Reads the part of an address behind the question mark. `Err` names the option, what was found and
    /// what is accepted.
    pub fn read(
        &self,
        query: &str,
        arguments: fn(Command) -> Command,
    ) -> Result<ArgMatches, String> {
        let limits = Limits::augment_args(Command::new("builtin").no_binary_name(true));
        let mut names: Vec<(String, String)> = self
            .options
            .iter()
            .map(|(name, long)| ((*name).to_owned(), (*long).to_owned()))
            .collect();
        if names.is_empty() {
            names = longs(&arguments(Command::new("builtin")));
        }
        names.extend(longs(&limits));
        let mut words = Vec::new();
        let mut first_is_missing = true;
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let at = names.iter().position(|(known, _)| *known == name);
            let at = at.ok_or_else(|| {
                let known: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
                format!("unknown option {name:?}; known here: {}", known.join(", "))
            })?;
            first_is_missing &= at > 0;
            words.push(format!("--{}={value}", names[at].1));
        }
        let word = self.without.filter(|_| first_is_missing);
        words.extend(word.map(str::to_owned));
        let mut command = arguments(limits);
        command
            .try_get_matches_from_mut(words)
            .map_err(|error| problem(&error, &names, &command))
    }
}

fn longs(command: &Command) -> Vec<(String, String)> {
    let longs = command.get_arguments().filter_map(|arg| arg.get_long());
    longs
        .map(|long| (long.replace('-', "_"), long.to_owned()))
        .collect()
}

/// What clap says of a command line, in words of the address.
fn problem(error: &clap::Error, names: &[(String, String)], command: &Command) -> String {
    let told = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    // As in `--size <SIZE>`.
    let shown = told(ContextKind::InvalidArg).join(" ");
    let long = shown.split(' ').next().unwrap_or_default();
    let long = long.trim_start_matches("--");
    let name = names.iter().find(|(_, own)| own == long);
    let name = name.map_or(long, |(name, _)| name);
    let found = told(ContextKind::InvalidValue).join(" ");
    match error.kind() {
        ErrorKind::InvalidValue | ErrorKind::ValueValidation if !found.is_empty() => {
            let allowed = told(ContextKind::ValidValue).join(" or ");
            let expected = error.source().map(ToString::to_string);
            let expected = expected.unwrap_or_else(|| format!("expected {allowed}"));
            format!("option {name:?} is {found:?}; {expected}")
        }
        ErrorKind::InvalidValue | ErrorKind::MissingRequiredArgument => {
            let arg = command
                .get_arguments()
                .find(|arg| arg.get_long() == Some(long));
            let help = arg.and_then(|arg| arg.get_help()).map(ToString::to_string);
            format!("option {name:?} is needed: {}", help.unwrap_or_default())
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.trim_start_matches("error: ").to_owned()
        }
    }
}

/// For options that are numbers.
pub fn number<T: FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "expected a number")
}

/// For options that are numbers of a range.
pub fn within(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| match (range.start(), range.end()) {
            (low, &u64::MAX) => format!("expected a number of at least {low}"),
            (low, high) => format!("expected {low} to {high}"),
        })
    }
}

/// For options such as `2` or `1-3`.
pub fn range(text: &str) -> Result<RangeInclusive<u32>, &'static str> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let both = low.trim().parse().ok().zip(high.trim().parse().ok());
    both.map(|(low, high)| low..=high)
        .ok_or("expected a number or a range such as 1-3")
}
