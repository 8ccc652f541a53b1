//! What an environment looked like at each turn of a recorded episode.
//!
//! A game that is written in Rust is played again with the recorded actions; there are pictures
//! only if its answers are the recorded ones, every one of them. A web page is drawn from the
//! recorded text alone.

mod page;
mod played;

use agentgym_envs::builtin;
use agentgym_envs::spec::{EnvSpec, spec};
pub use played::{PlayedTask, Scenes};

/// The pictures of an episode that was played on an environment of this kind, at this address. Reads the files that the address names, and may take a while.
///
/// # Errors
/// Why there are none, as half a sentence.
pub fn scenes(kind: &str, address: &str, played: &PlayedTask<'_>) -> Result<Scenes, String> {
    let spec = spec(kind).map_err(|e| e.to_string())?;
    if spec.name == "webarena" {
        return Ok(page::scenes(played));
    }
    let row = crate::ALL.iter().find(|row| row.spec.name == spec.name);
    let row = row.ok_or_else(|| format!("{} is not a game of this program", spec.name))?;
    // Another server of the same kind may have the same tasks; the observations will tell.
    let own = format!("builtin{}", row.addresses[0].suffix);
    let address = match builtin::is_builtin(address) {
        true => address,
        false => &own,
    };
    let tasks = crate::parse(address);
    let tasks = tasks.map_err(|e| format!("{} is not played again: {e}", spec.name))?;
    let mut game = tasks.source.replica(played.item_id)?;
    if !begins(spec, played.prompt, &game.first()) {
        return Err("the game that is played again begins otherwise than was recorded".to_owned());
    }
    let start = Some(game.picture());
    let mut turns = Vec::with_capacity(played.turns.len());
    for (index, (action, observation)) in played.turns.iter().enumerate() {
        // What the client answered by itself changed nothing in the game.
        if let Some(action) = action
            && !spec.replay.accepts(observation, &game.step(action))
        {
            return Err(format!(
                "the game that is played again answers turn {} otherwise than was recorded",
                index + 1
            ));
        }
        turns.push(game.picture());
    }
    Ok(Scenes { start, turns })
}

/// Whether a first message shows this first observation: after an instruction or alone, with a
/// list of actions behind it where the client adds one.
fn begins(spec: &EnvSpec, prompt: &str, first: &str) -> bool {
    let Some(at) = prompt.rfind(first) else {
        return false;
    };
    let (before, after) = (&prompt[..at], &prompt[at + first.len()..]);
    let listed = |label: &str| {
        after
            .strip_prefix('\n')
            .is_some_and(|t| t.starts_with(label))
    };
    (before.is_empty() || before.ends_with("\n\n"))
        && (after.is_empty() || spec.first_lists_actions.is_some_and(listed))
}

#[cfg(test)]
mod tests;
