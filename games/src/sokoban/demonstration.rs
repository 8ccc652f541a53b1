//! Solved rooms, as conversations.

use super::game::{SEPARATOR, Sokoban};
use super::room::Direction;
use super::ways::Ways;
use agentgym_envs::demonstration::{Demonstration, Talk};
use agentgym_envs::server::games::TextGame;
use agentgym_envs::spec::first_message;

/// Solves a game with the fewest actions, `turn_actions` of them per turn, as a conversation.
pub(super) fn demonstration(
    mut game: Sokoban,
    turn_actions: usize,
    item_id: i64,
    instruction: &str,
) -> Option<Demonstration> {
    let mut talk = Talk::new(first_message(instruction, &game.last().observation));
    let ways = Ways::of(game.room(), game.actions_left());
    let solution = ways.solution(game.room(), game.state())?;
    for turn in solution.chunks(turn_actions) {
        let names: Vec<&str> = turn.iter().copied().map(Direction::name).collect();
        let text = names.join(&format!(" {SEPARATOR} "));
        let reply = game.play(&text).observation.clone();
        talk.say(format!("Action: {text}"), true, reply);
    }
    Some(talk.told(format!("sokoban_{item_id}")))
}
