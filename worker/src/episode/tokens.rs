//! Appends ids to a sequence, with everything that is known of each of them.

use super::player::Rules;
use agentgym_jobs::episode::Sequence;
use agentgym_jobs::journal::RecordedMessage;

/// Ids that the policy did not sample in this sequence.
pub(super) fn append_context(sequence: &mut Sequence, ids: &[u32]) {
    sequence.token_ids.extend_from_slice(ids);
    let len = sequence.token_ids.len();
    sequence.loss_mask.resize(len, false);
    sequence.sampled_log_probs.resize(len, 0.0);
    let streams = [&mut sequence.log_kept_mass, &mut sequence.entropies];
    for stream in streams.into_iter().flatten() {
        stream.resize(len, 0.0);
    }
}

/// A message that the policy sampled, with its entropies where they are recorded.
pub(super) fn append_sampled(
    sequence: &mut Sequence,
    message: &RecordedMessage,
    (entropies, rules): (Option<&[f32]>, &Rules),
) {
    let start = sequence.token_ids.len();
    sequence.token_ids.extend_from_slice(&message.token_ids);
    let end = sequence.token_ids.len();
    sequence.loss_mask.resize(end, true);
    (sequence.sampled_log_probs).extend_from_slice(&message.log_probs);
    let masses = message.log_kept_masses.as_deref();
    let streams = [
        (
            &mut sequence.log_kept_mass,
            masses.filter(|_| rules.records_cuts),
        ),
        (&mut sequence.entropies, entropies),
    ];
    for (stream, own) in streams {
        if stream.is_some() || own.is_some() {
            let all = stream.get_or_insert_default();
            all.resize(start, 0.0);
            all.extend_from_slice(own.unwrap_or_default());
            all.resize(end, 0.0);
        }
    }
}
