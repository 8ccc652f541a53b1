//! Scoring and training of a policy and of its critic.

pub(crate) mod critic;
pub(crate) mod learner;
pub(crate) mod optimizer_state;
pub(crate) mod score;
pub(crate) mod trainer;
