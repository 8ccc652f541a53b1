//! Figures of a set of episodes. `docs/metrics.md` explains every name.

use crate::Turns;
use crate::metrics::EpisodeSummary;
use agentgym_jobs::episode::{Episode, Finish, Outcome, Parse};
use std::collections::BTreeMap;

/// Outcomes that stand in metrics even where no episode ended so. Others stand there where one did.
const LISTED: [Outcome; 6] = [
    Outcome::Solved,
    Outcome::Failed,
    Outcome::Horizon,
    Outcome::Length,
    Outcome::EnvFault,
    Outcome::Cancelled,
];

/// The mean; 0 for no values, since JSON has no NaN and a count is stored beside it.
pub fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0u64);
    for value in values {
        sum += value;
        count += 1;
    }
    if count == 0 { 0.0 } else { sum / count as f64 }
}

/// Statistics of a set of episodes.
pub fn summary(episodes: &[&Episode]) -> EpisodeSummary {
    let usable: Vec<&Episode> = episodes.iter().copied().filter(|e| e.usable()).collect();
    let average = |value: fn(&Episode) -> f64| mean(usable.iter().map(|e| value(e)));
    let mut outcomes: BTreeMap<String, usize> = LISTED.map(|o| (o.name().to_owned(), 0)).into();
    for episode in episodes {
        *outcomes
            .entry(episode.outcome.name().to_owned())
            .or_default() += 1;
    }
    let env_faults = episodes
        .iter()
        .filter(|e| e.outcome == Outcome::EnvFault)
        .count();
    EpisodeSummary {
        env_faults,
        env_fault_rate: env_faults as f64 / episodes.len().max(1) as f64,
        episodes: episodes.len(),
        success: average(|e| f64::from(u8::from(e.success))),
        reward: average(|e| e.reward),
        rounds_mean: average(|e| e.turns.len() as f64),
        response_length_mean: average(|e| (tokens(e) - prompt_tokens(e)) as f64),
        prompt_length_mean: average(|e| prompt_tokens(e) as f64),
        loss_tokens: usable
            .iter()
            .flat_map(|e| &e.sequences)
            .map(|s| s.loss_tokens())
            .sum(),
        outcomes,
    }
}

/// What the watchdog counts in episodes beside their metrics, whose bytes it must not change.
pub fn turns(episodes: &[&Episode]) -> Turns {
    let (mut turns, mut unparsed, mut cut) = (0u64, 0u64, 0u64);
    let mut groups: BTreeMap<u32, Vec<Vec<u32>>> = BTreeMap::new();
    for episode in episodes.iter().filter(|e| e.usable()) {
        for turn in &episode.turns {
            turns += 1;
            unparsed += u64::from(turn.parse == Parse::Invalid);
            cut += u64::from(turn.finish == Finish::Length);
        }
        let tokens = (episode.sequences.iter()).flat_map(|s| s.token_ids.iter().zip(&s.loss_mask));
        let sampled = tokens.filter(|(_, is_sampled)| **is_sampled);
        let text = sampled.map(|(token, _)| *token).collect();
        groups.entry(episode.group).or_default().push(text);
    }
    groups.retain(|_, texts| texts.len() > 1);
    let identical = |texts: &&Vec<Vec<u32>>| texts.iter().all(|text| *text == texts[0]);
    Turns {
        turns,
        turns_unparsed: unparsed,
        turns_cut: cut,
        groups_compared: groups.len() as u64,
        groups_identical: groups.values().filter(identical).count() as u64,
    }
}

/// Share of solved episodes per environment.
pub fn success_by_env(episodes: &[&Episode]) -> BTreeMap<String, f64> {
    let mut by_env: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for episode in episodes.iter().filter(|e| e.usable()) {
        by_env
            .entry(episode.task.env.clone())
            .or_default()
            .push(f64::from(u8::from(episode.success)));
    }
    by_env
        .into_iter()
        .map(|(env, values)| (env, mean(values)))
        .collect()
}

fn tokens(episode: &Episode) -> usize {
    episode.sequences.iter().map(|s| s.token_ids.len()).sum()
}

fn prompt_tokens(episode: &Episode) -> usize {
    episode
        .turns
        .first()
        .map_or(0, |turn| turn.context.1 as usize)
}
