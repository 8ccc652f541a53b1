//! The credit of an iteration's episodes: which of them teach, with which advantage on which token, and
//! why. The stage `advantage` commits it; screens compute it again and compare.

mod assign;
mod differences;
mod explained;
mod standing;
mod summary;
mod words;

pub use assign::{Credit, behaviour, scramble_key};
pub use differences::Difference;
pub use explained::{
    EpisodeCredit, EpisodeLine, Importance, KlShare, Member, MinibatchPlace, PlayedIteration,
};
pub use standing::{Standing, importance_weights, standings};
pub use summary::summarise;

#[cfg(test)]
mod tests;
