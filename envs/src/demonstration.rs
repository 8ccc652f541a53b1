//! Conversations that solve tasks of the built-in environments, in the format of AgentGym's
//! trajectory files: the data for supervised warm starts.
//!
//! A conversation has the same shape as an episode of the trainer: the instruction and the first
//! observation are one human message, then model and environment alternate. It is played in a real
//! game, so the environment's messages are genuine.

mod talk;

pub(crate) use talk::Talk;
pub use talk::{Demonstration, DemonstrationMessage};

/// Solves the tasks of one source.
pub trait Solver: std::fmt::Debug + Send + Sync {
    /// Solves a task and returns the conversation; `None` if the solver cannot solve it.
    fn demonstrate(&self, item_id: i64, instruction: &str) -> Option<Demonstration>;
}

#[cfg(test)]
mod tests {
    use crate::builtin::parse;

    #[test]
    fn each_environment_with_a_solver_has_one_and_says_how_it_is_told() {
        let solver = |address: &str, style: &str| {
            let source = parse(address).expect("valid").source;
            source.solver(style)
        };
        for (address, item) in [
            ("builtin:worlds", "textcraft_7"),
            ("builtin:babyai", "babyai_7"),
            ("builtin:searchqa", "searchqa_7"),
        ] {
            let shown = solver(address, "").expect(address).demonstrate(7, "Do it.");
            let shown = shown.expect(address);
            assert_eq!(shown.item_id, item);
            let first = &shown.conversations[0];
            assert!(first.value.starts_with("Do it.\n\n") && first.from == "human");
            assert_eq!(shown.conversations.last().expect("some").from, "gpt");
        }
        for (address, style, words) in [
            ("builtin:babyai", "thought", "babyai knows wander=PERCENT"),
            ("builtin:searchqa", "goals=2", "told in one way"),
            ("builtin", "loud", "unknown style"),
            ("builtin:maze", "", "has no solver"),
        ] {
            let message = solver(address, style).expect_err(address).to_string();
            assert!(message.contains(words), "{message}");
        }
    }
}
