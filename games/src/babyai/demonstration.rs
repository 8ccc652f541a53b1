//! Solved BabyAI tasks, as conversations.
//!
//! If the target is in view, the solver picks the offered action for it, as a player would who
//! reads the text. If it is out of view, the moves come from the planner, which knows the way: a
//! model can only guess these moves, and learns how often each one helps.

use super::game::BabyaiGame;
use super::grid::{Kind, Lock};
use super::mission::{Desc, Task};
use super::planner::Planner;
use super::text::CHECK;
use crate::draws::Draws;
use agentgym_envs::demonstration::{Demonstration, Talk};
use agentgym_envs::spec::first_message;

/// Most answers in a demonstration.
const TEXTS_MAX: usize = 600;

/// How a demonstration is played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Play {
    /// Chance, in percent, that a randomly chosen offered action replaces the useful one. It is
    /// trained on like the others: a model that imitates such a player has seen every action and
    /// its effect, and only has to learn from rewards which one helps.
    pub wander_percent: u32,
}

impl std::str::FromStr for Play {
    type Err = String;

    /// Parses `wander=PERCENT` or an empty text.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut play = Self::default();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let percent = word
                .strip_prefix("wander=")
                .ok_or_else(|| format!("unknown style {word:?}; babyai knows wander=PERCENT"))?;
            play.wander_percent = match percent.parse() {
                Ok(percent @ 0..=90) => percent,
                _ => return Err(format!("style {word:?}: wander is from 0 to 90 percent")),
            };
        }
        Ok(play)
    }
}

/// Solves an item and returns the conversation; `None` if the planner gets stuck, or if random
/// actions have made the task impossible.
pub(crate) fn demonstration(item_id: i64, play: Play, instruction: &str) -> Option<Demonstration> {
    let game = BabyaiGame::new(u64::try_from(item_id).ok()?);
    // Acting by sight can go in circles (if the target first has to be moved out of the way), so
    // the planner is then tried alone.
    [true, false].into_iter().find_map(|by_sight| {
        let key = [item_id.to_le_bytes(), [0; 8]].concat();
        let mut draws = Draws::new("babyai demonstration", &[&key]);
        let talk = told(game.clone(), by_sight, play, &mut draws, instruction)?;
        Some(talk.told(format!("babyai_{item_id}")))
    })
}

fn told(
    mut game: BabyaiGame,
    sees: bool,
    play: Play,
    draws: &mut Draws,
    instruction: &str,
) -> Option<Talk> {
    let mut planner = Planner::default();
    let mut talk = Talk::new(first_message(instruction, &game.last().observation));
    for _ in 0..TEXTS_MAX {
        let text = if draws.percent(play.wander_percent as usize) {
            // The planner has to plan again from the new state.
            planner = Planner::default();
            let mut offered = game.actions();
            offered.retain(|text| text != CHECK);
            offered.swap_remove(draws.below(offered.len()))
        } else {
            match by_sight(&game).filter(|_| sees) {
                Some(text) => text,
                None => planner.text(&game)?,
            }
        };
        if text != "move forward" && !game.actions().contains(&text) {
            // Boxes cannot be opened; the planner would try for ever.
            return None;
        }
        let reply = game.step(&text).observation.clone();
        talk.say(format!("Action: {text}"), true, reply);
        if game.is_decided() {
            return (game.last().score > 0.0).then_some(talk);
        }
    }
    None
}

/// The offered action for the target in view; `None` if there is none, or if it would change
/// nothing.
fn by_sight(game: &BabyaiGame) -> Option<String> {
    let grid = game.grid();
    let seen = game.things_in_view();
    // The nearest reachable thing, with its name and whether it is already in front.
    let nearest = |is_wanted: &dyn Fn(usize) -> bool| {
        seen.iter()
            .filter(|named| is_wanted(named.thing))
            .find_map(|named| {
                let way = game.way_to(named.thing)?;
                Some((named.thing, named.name.as_str(), way.is_empty()))
            })
    };
    let of = |desc: &Desc| nearest(&|thing| desc.set.contains(&thing));
    let take = |found: Option<(usize, &str, bool)>| {
        let (_, name, _) = found.filter(|_| grid.carrying.is_none())?;
        Some(format!("pickup {name}"))
    };
    let tasks = game.level.goal.open_tasks();
    match *tasks.first()? {
        Task::GoTo(desc) => {
            let (_, name, _) = of(desc).filter(|(_, _, in_front)| !in_front)?;
            Some(format!("go to {name}"))
        }
        Task::Pickup(desc, _) => take(of(desc)),
        Task::PutNext(moved, _) => take(of(moved)),
        Task::Open(desc, _) => {
            let (door, name, in_front) = of(desc)?;
            let lock = grid.things[door].lock;
            if lock == Lock::Locked && !grid.opens(door) {
                let colour = grid.things[door].colour;
                let is_key = |thing: usize| {
                    let thing = &grid.things[thing];
                    (thing.kind, thing.colour) == (Kind::Key, colour)
                };
                return take(nearest(&is_key));
            }
            // The step into the doorway would overwrite the reward.
            let text = match in_front {
                true => "toggle".to_owned(),
                false => format!("go to {name}"),
            };
            (lock != Lock::Open).then_some(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nearly every world is solved, by actions that are offered (except `move forward`).
    #[test]
    fn nearly_all_worlds_have_a_demonstration() {
        let mut rest = Vec::new();
        for item in 0..400 {
            let Some(shown) = demonstration(item, Play::default(), "") else {
                rest.push(item);
                continue;
            };
            for pair in shown.conversations.chunks(2) {
                let action = pair[1].value.strip_prefix("Action: ").expect("an action");
                let offered = pair[0].value.contains(&format!("\"{action}\""));
                assert!(offered || action == "move forward", "{item}: {action}");
            }
        }
        eprintln!("without a demonstration: {rest:?}");
        assert!(rest.len() <= 20, "{rest:?}");
    }

    #[test]
    fn a_wanderer_arrives_later_and_tries_everything() {
        let told = |wander_percent| -> Vec<Demonstration> {
            let play = Play { wander_percent };
            let shown = |n: i64| demonstration(3 + 40 * n, play, "");
            (0..100).filter_map(shown).collect()
        };
        let messages =
            |told: &[Demonstration]| -> usize { told.iter().map(|d| d.conversations.len()).sum() };
        let (straight, wandering) = (told(0), told(50));
        assert_eq!(wandering, told(50));
        assert_eq!(
            wandering.len(),
            100,
            "a wanderer cannot spoil going to an object"
        );
        assert!(messages(&wandering) > messages(&straight) * 4 / 3);
        for needless in ["Action: pickup ", "Action: turn left"] {
            let says = |d: &Demonstration| {
                let mut own = d.conversations.iter().filter(|m| m.from == "gpt");
                own.any(|m| m.value.starts_with(needless) && m.loss == Some(true))
            };
            assert!(wandering.iter().any(says), "{needless}");
        }
        for (style, words) in [
            ("wander=91", "0 to 90"),
            ("wander=x", "0 to 90"),
            ("thought", "wander=PERCENT"),
        ] {
            let message = style.parse::<Play>().expect_err(style);
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn what_is_in_view_takes_one_action() {
        // GoToObjS6: one thing in a small room.
        let shown = |item| demonstration(item, Play::default(), "").expect("solvable");
        let lengths: Vec<usize> = (0..40)
            .map(|n| shown(3 + 40 * n).conversations.len())
            .collect();
        assert!(lengths.iter().all(|messages| *messages <= 8), "{lengths:?}");
        assert!(lengths.contains(&2), "{lengths:?}");
    }
}
