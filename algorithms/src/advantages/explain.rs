//! Why an episode has the advantages that it has: the estimator's formula with its numbers. An
//! estimator writes its own in its own file; terminal and page print what they are given.

use super::tokens::Whitening;
use serde::Serialize;

/// A number of a formula, or one per token, by its name there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Labelled<T> {
    /// Its name in the formula.
    pub label: &'static str,
    /// What it is.
    pub value: T,
}

/// What an estimator says of one episode.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Reasons {
    /// The formula in words and numbers, one step a line.
    pub formula: Vec<String>,
    /// The numbers in it.
    pub numbers: Vec<Labelled<f64>>,
    /// What it reads or makes per token; 0 outside the loss mask.
    pub streams: Vec<Labelled<Vec<f64>>>,
}

impl Reasons {
    /// A step of the formula.
    pub(super) fn say(&mut self, line: String) {
        self.formula.push(line);
    }

    /// Numbers of the formula.
    pub(super) fn number<const N: usize>(&mut self, numbers: [(&'static str, f64); N]) {
        let labelled = numbers.map(|(label, value)| Labelled { label, value });
        self.numbers.extend(labelled);
    }

    /// A number per token.
    pub(super) fn stream(&mut self, label: &'static str, value: Vec<f64>) {
        self.streams.push(Labelled { label, value });
    }

    /// The last step of estimators that whiten.
    pub(super) fn whitened(&mut self, over: &Whitening) {
        self.say(format!(
            "whitened over {} policy tokens: (x − {}) / √({} + {})",
            over.tokens, over.mean, over.variance, over.epsilon
        ));
        self.number([("mean", over.mean), ("scale", over.scale)]);
    }
}
