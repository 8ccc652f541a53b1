//! Episodes with the streams that `log_probs` recomputed for them.

use crate::{Error, Result};
use agentgym_jobs::episode::Episode;
use agentgym_jobs::records::EpisodeLogProbs;

/// An episode with its recomputed streams.
pub(super) struct Scored {
    pub(super) episode: Episode,
    pub(super) streams: EpisodeLogProbs,
    /// The critic's values by sequence and token, if there is a critic.
    pub(super) values: Option<Vec<Vec<f32>>>,
}

/// Pairs episodes with their streams; both must have the same tokens.
pub(super) fn join(
    part: u32,
    episodes: Vec<Episode>,
    streams: Vec<EpisodeLogProbs>,
    values: Option<Vec<Vec<Vec<f32>>>>,
) -> Result<Vec<Scored>> {
    let mismatch = |what: String| {
        Error::stage(format!(
            "rollout part {part} and its log-probs do not belong together ({what}); \
             delete the commit of log_probs part {part} so that it is made again"
        ))
    };
    let counts = [
        streams.len(),
        values.as_ref().map_or(streams.len(), Vec::len),
    ];
    if counts.iter().any(|count| *count != episodes.len()) {
        return Err(mismatch(format!(
            "{} episodes, {} entries",
            episodes.len(),
            counts[0].min(counts[1])
        )));
    }
    let values: Vec<Option<Vec<Vec<f32>>>> = match values {
        Some(values) => values.into_iter().map(Some).collect(),
        None => vec![None; episodes.len()],
    };
    let rows = episodes.into_iter().zip(streams).zip(values);
    rows.map(|((episode, streams), values)| {
        let lengths: Vec<usize> = episode
            .sequences
            .iter()
            .map(|s| s.token_ids.len())
            .collect();
        let fits = |rows: &[Vec<f32>]| rows.iter().map(Vec::len).eq(lengths.iter().copied());
        let all_fit = fits(&streams.old)
            && fits(&streams.entropies)
            && streams.reference.as_ref().is_none_or(|rows| fits(rows))
            && values.as_ref().is_none_or(|rows| fits(rows));
        if all_fit {
            Ok(Scored {
                episode,
                streams,
                values,
            })
        } else {
            Err(mismatch(format!("task {}", episode.task)))
        }
    })
    .collect()
}
