//! Selects the rooms: from an address or the options of the subcommand.

use std::ops::RangeInclusive;
use std::sync::Arc;

use clap::Args;

use super::demonstration::demonstration;
use super::game::Sokoban;
use super::generator::{Kind, SIZES};
use super::room::BOXES_MAX;
use super::server::SokobanServer;
use agentgym_envs::EnvError;
use agentgym_envs::builtin::options::{Address, number, within};
use agentgym_envs::builtin::registered::{
    ArgumentError, BuiltIn, GameTasks, OpenSolver, ReadProgress,
};
use agentgym_envs::demonstration::{Demonstration, Solver};
use agentgym_envs::replica::Replica;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::App;
use agentgym_envs::spec::EnvSpec;
use agentgym_envs::spec::games::sokoban::SPEC;

/// Allowed actions per game: with fewer there are hardly any rooms with three boxes.
const ACTIONS: RangeInclusive<u64> = 10..=100;

/// Actions per turn of a demonstration: solutions of up to 10 actions fit the spec's 5 rounds.
const TURN_ACTIONS: usize = 2;

/// Every room is a function of its id and these values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    kind: Kind,
    seed: u64,
}

impl GameTasks for Source {
    fn app(&self, options: &ServerOptions, _: ReadProgress<'_>) -> Result<Arc<dyn App>, EnvError> {
        Ok(Arc::new(SokobanServer::new(self.kind, self.seed, options)))
    }

    fn solver(&self, style: &str) -> Result<OpenSolver<'_>, String> {
        let turn_actions = match style.split_once('=') {
            None if style.is_empty() => TURN_ACTIONS,
            Some(("actions", count)) => {
                let count = count.parse().ok().filter(|count| (1..=5).contains(count));
                count.ok_or_else(|| format!("style {style:?}: a turn is from 1 to 5 actions"))?
            }
            _ => return Err(format!("unknown style {style:?}; sokoban knows actions=N")),
        };
        let source = *self;
        Ok(Box::new(move || {
            Ok(Arc::new(Shortest {
                source,
                turn_actions,
            }))
        }))
    }

    fn corpus_style(&self) -> Option<&'static str> {
        Some("")
    }

    fn replica(&self, item_id: i64) -> Result<Box<dyn Replica>, String> {
        let item = item_id.to_string();
        Ok(Box::new(Sokoban::start(self.kind, self.seed, &item)))
    }
}

/// Solves rooms with the fewest actions.
#[derive(Debug)]
struct Shortest {
    source: Source,
    turn_actions: usize,
}

impl Solver for Shortest {
    fn demonstrate(&self, item_id: i64, instruction: &str) -> Option<Demonstration> {
        let Source { kind, seed } = self.source;
        let game = Sokoban::start(kind, seed, &item_id.to_string());
        demonstration(game, self.turn_actions, item_id, instruction)
    }
}

#[derive(Args)]
pub(crate) struct Arguments {
    /// Rows and columns of a room with its walls, 6 to 12 each, such as 6 or 6x8.
    #[arg(long, default_value = "6", value_parser = |text: &str| size(text).ok_or("expected 6 to 12, or two such numbers as in 6x8"))]
    size: (usize, usize),
    /// Boxes of a room.
    #[arg(long, default_value_t = 1, value_parser = within(1..=BOXES_MAX as u64))]
    boxes: u64,
    /// Actions per game; every room can be solved in this many.
    #[arg(long, default_value_t = 10, value_parser = within(ACTIONS))]
    actions: u64,
    /// Mixed into every room.
    #[arg(long, default_value_t = 0, value_parser = number::<u64>)]
    seed: u64,
}

/// `6` or `6x8`: rows and columns.
fn size(text: &str) -> Option<(usize, usize)> {
    let (rows, columns) = text.split_once('x').unwrap_or((text, text));
    let side = |text: &str| text.parse().ok().filter(|side| SIZES.contains(side));
    Some((side(rows)?, side(columns)?))
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve Sokoban: boxes that are pushed onto targets";
    const PORT: u16 = 36008;
    const ADDRESSES: &'static [Address] = &[Address::new(":sokoban")];
    type Arguments = Arguments;

    fn from_arguments(arguments: Arguments) -> Result<Self, ArgumentError> {
        let (boxes, actions) = (arguments.boxes as usize, arguments.actions as usize);
        Ok(Self::new(arguments.size, boxes, actions, arguments.seed))
    }
}

impl Source {
    fn new((rows, columns): (usize, usize), boxes: usize, actions: usize, seed: u64) -> Self {
        let kind = Kind {
            rows,
            columns,
            boxes,
            actions,
        };
        Self { kind, seed }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use agentgym_envs::server::games::TextGame;

    #[test]
    fn every_room_is_solved_within_its_actions_and_rooms_differ() {
        for (size, boxes, actions) in [(6, 1, 10), (6, 3, 10), (8, 2, 20), (12, 3, 100)] {
            let source = Source::new((size, size), boxes, actions, 5);
            let solver = Shortest {
                source,
                turn_actions: 1,
            };
            let mut lengths = BTreeSet::new();
            let mut rooms = BTreeSet::new();
            let items = if size == 12 { 10 } else { 100 };
            for item in 0..items {
                let told = solver.demonstrate(item, "Push.").expect("solved");
                let answers = told.conversations.len() / 2;
                assert!(answers <= actions, "{answers}");
                lengths.insert(answers);
                rooms.insert(told.conversations[0].value.clone());
                let mut game = Sokoban::start(source.kind, 5, &item.to_string());
                let (last, others) = told.conversations.split_last().expect("some");
                for message in others.iter().filter(|message| message.from == "gpt") {
                    let action = message.value.strip_prefix("Action: ").expect("an action");
                    assert!(game.play(action).reward < 2.0 && !game.last().done);
                }
                let action = last.value.strip_prefix("Action: ").expect("an action");
                assert!(game.play(action).reward > 10.0 && game.last().done);
            }
            assert!(lengths.len() >= 5, "{size}, {boxes}: {lengths:?}");
            assert!(
                rooms.len() as i64 * 10 > items * 9,
                "{size}, {boxes}: {}",
                rooms.len()
            );
        }
    }

    #[test]
    fn a_room_is_a_function_of_its_seeds() {
        let start = |seed: u64, item: &str| {
            let source = Source::new((6, 6), 1, 10, seed);
            let game = Sokoban::start(source.kind, seed, item);
            game.last().observation.clone()
        };
        assert_eq!(start(0, "7"), start(0, "7"));
        assert_ne!(start(0, "7"), start(1, "7"));
        assert_ne!(start(0, "7"), start(0, "8"));
    }

    #[test]
    fn wrong_options_are_named() {
        for (address, words) in [
            (
                "builtin:sokoban?size=5",
                "option \"size\" is \"5\"; expected 6 to 12",
            ),
            ("builtin:sokoban?size=6x13", "expected 6 to 12"),
            ("builtin:sokoban?boxes=4", "expected 1 to 3"),
            ("builtin:sokoban?actions=9", "expected 10 to 100"),
        ] {
            let message = crate::parse(address).expect_err(address).to_string();
            assert!(message.contains(words), "{message}");
        }
        let source = Source::new((6, 8), 1, 10, 0);
        for style in ["actions=0", "actions=6", "loud", "actions"] {
            assert!(source.solver(style).is_err(), "{style}");
        }
    }
}
