//! A command line as words: which command a bare config file means, help in groups, completions.

use super::{Cli, Command};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};
use std::ffi::OsString;

/// Commands by what they are for, as `--help` lists them.
pub(super) const GROUPS: [(&str, &[&str]); 5] = [
    ("Run", &["run", "eval", "resume", "fork", "plan"]),
    (
        "Watch and steer",
        &["status", "watch", "why", "workers", "cancel", "retry"],
    ),
    (
        "Look inside",
        &[
            "view", "inspect", "episodes", "compare", "credit", "metrics", "ledger",
        ],
    ),
    (
        "Use, keep and check",
        &[
            "serve",
            "export",
            "import",
            "check-model",
            "pull",
            "push",
            "digest",
            "verify",
        ],
    ),
    ("Help", &["keys", "completions", "man", "help"]),
];

/// The grammar, with its commands in groups.
pub fn grammar() -> clap::Command {
    let grammar = Cli::command();
    let mut list = String::new();
    for (title, names) in GROUPS {
        list += &format!("{title}:\n");
        for name in names {
            let about = grammar
                .find_subcommand(name)
                .and_then(clap::Command::get_about);
            // clap makes `help` itself.
            let about = about.map_or_else(|| "Help for a command".to_owned(), ToString::to_string);
            list += &format!(
                "  {name:<12} {}\n",
                about.lines().next().unwrap_or_default()
            );
        }
        list.push('\n');
    }
    grammar.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}\n{{after-help}}"
    ))
}

/// Parses a command line.
///
/// # Errors
/// What clap says of it; asking for help is one too.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut grammar = grammar();
    let matches = grammar.try_get_matches_from_mut(with_run(args))?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut grammar))?;
    let given = matches.value_source("dtype") == Some(ValueSource::CommandLine);
    let save_dtype = given.then_some(cli.global.dtype);
    match &mut cli.command {
        Command::Export(args) => args.save_dtype = save_dtype,
        Command::Import(args) => args.save_dtype = save_dtype.unwrap_or_default(),
        _ => {}
    }
    Ok(cli)
}

/// The script with which a shell completes this program's commands.
pub(crate) fn completions(shell: clap_complete::Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut grammar(), "agentgym-submit", &mut script);
    script
}

/// Inserts `run` if the first word is a config file and not a command.
pub fn with_run(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let mut grammar = Cli::command();
    grammar.build();
    let takes_value = |word: &str| {
        let long = word.strip_prefix("--");
        long.is_some() && grammar.get_opts().any(|option| option.get_long() == long)
    };
    let mut at = 1;
    while let Some(word) = args.get(at).and_then(|a| a.to_str()) {
        match word {
            _ if takes_value(word) => at += 2,
            _ if word.starts_with('-') => at += 1,
            _ => break,
        }
    }
    let is_config = args.get(at).is_some_and(|word| {
        let path = std::path::Path::new(word);
        let named_like_one = path
            .extension()
            .is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        // A word with a slash is a path even if nothing is there: the error about a missing file is
        // then the helpful one.
        let is_path = word.to_string_lossy().contains('/') || path.exists();
        grammar.find_subcommand(word).is_none() && (named_like_one || is_path)
    });
    if is_config {
        args.insert(at, "run".into());
    }
    args
}
