//! The doctor's report and its text format.

use std::fmt;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As the specification says.
    Good,
    /// It works, but has something that the user should know.
    Note,
    /// Training against this server will not work correctly.
    Bad,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Note => "note",
            Self::Bad => "FAIL",
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
}

/// Speed with a number of concurrent clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// Clients, each with its own session.
    pub clients: usize,
    /// Steps made.
    pub steps: usize,
    /// Total steps per second.
    pub steps_per_s: f64,
    /// Median and 99th percentile of a step's time, in milliseconds; `None` without a step.
    pub step_ms: Option<(f64, f64)>,
    /// Median time of opening a session (creation and reset), in milliseconds.
    pub open_ms: Option<f64>,
    /// Steps or openings that failed.
    pub failures: usize,
}

/// All results for one server.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Its base URL.
    pub url: String,
    /// The environment that it was examined as.
    pub task: &'static str,
    /// The checks, in the order in which they were made.
    pub checks: Vec<Check>,
    /// Empty if the checks failed so badly that measuring was skipped.
    pub speeds: Vec<Speed>,
}

/// The check that a server is the environment that it is examined as.
pub(super) const KIND: &str = "kind";

impl Report {
    /// True if the server is another environment.
    pub fn is_another(&self) -> bool {
        self.checks.iter().any(|check| check.name == KIND)
    }

    /// The worst verdict.
    pub fn verdict(&self) -> Verdict {
        let any = |verdict| self.checks.iter().any(|check| check.verdict == verdict);
        if any(Verdict::Bad) || self.speeds.iter().any(|speed| speed.steps == 0) {
            Verdict::Bad
        } else if any(Verdict::Note) {
            Verdict::Note
        } else {
            Verdict::Good
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} as {}", self.url, self.task)?;
        writeln!(f)?;
        for check in &self.checks {
            let word = check.verdict.word();
            writeln!(f, "  {word:<5} {:<14} {}", check.name, check.found)?;
        }
        if !self.speeds.is_empty() {
            writeln!(f)?;
            writeln!(
                f,
                "  {:>7} {:>10} {:>12} {:>12} {:>12} {:>8}",
                "clients", "steps/s", "step p50 ms", "step p99 ms", "open p50 ms", "failures"
            )?;
        }
        let ms = |figure: Option<f64>| figure.map_or("–".to_owned(), |ms| format!("{ms:.2}"));
        for speed in &self.speeds {
            writeln!(
                f,
                "  {:>7} {:>10.1} {:>12} {:>12} {:>12} {:>8}",
                speed.clients,
                speed.steps_per_s,
                ms(speed.step_ms.map(|(median, _)| median)),
                ms(speed.step_ms.map(|(_, late)| late)),
                ms(speed.open_ms),
                speed.failures
            )?;
        }
        writeln!(f)?;
        let bad = self
            .checks
            .iter()
            .filter(|check| check.verdict == Verdict::Bad);
        match (self.verdict(), bad.count()) {
            (Verdict::Bad, 0) => write!(f, "Not fit for training: no step was finished."),
            (Verdict::Bad, 1) => write!(f, "Not fit for training: a check failed."),
            (Verdict::Bad, count) => write!(f, "Not fit for training: {count} checks failed."),
            (Verdict::Note, _) => write!(f, "Fit for training; see the notes."),
            (Verdict::Good, _) => write!(f, "Fit for training."),
        }
    }
}
