//! A recorded batch against the computed one, bit for bit.

use agentgym_jobs::records::{Batch, CriticTargets};
use serde::Serialize;

/// A number of the recorded batch that is not the computed one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Slot of the batch.
    pub slot: usize,
    /// Which number of the slot.
    pub what: String,
    /// As computed.
    pub computed: String,
    /// As recorded.
    pub recorded: String,
}

/// Where the recorded batch, and the critic's targets, are not the computed ones; at most `limit`.
pub(super) fn differences(
    computed: (&Batch, Option<&CriticTargets>),
    recorded: (&Batch, Option<&CriticTargets>),
    limit: usize,
) -> Vec<Difference> {
    let (Batch::V1(ours), Batch::V1(theirs)) = (computed.0, recorded.0);
    let mut found = Found {
        all: Vec::new(),
        limit,
    };
    found.bits(0, "number of slots", &[ours.len()], &[theirs.len()]);
    for (slot, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let filled = [usize::from(ours.is_some())];
        found.bits(slot, "episodes", &filled, &[usize::from(theirs.is_some())]);
        let (Some(ours), Some(theirs)) = (ours, theirs) else {
            continue;
        };
        let whole = |e: &agentgym_jobs::records::BatchEpisode| {
            [u64::from(e.group), u64::from(e.sample), e.reward.to_bits()]
        };
        found.bits(slot, "group, sample, reward", &whole(ours), &whole(theirs));
        found.floats(slot, "advantage", &[ours.advantage], &[theirs.advantage]);
        let lengths = [ours.sequences.len()];
        found.bits(slot, "sequences", &lengths, &[theirs.sequences.len()]);
        for (at, (a, b)) in ours.sequences.iter().zip(&theirs.sequences).enumerate() {
            let of = |what: &str| format!("{what} of sequence {at}");
            found.floats(slot, &of("advantage"), &a.advantages, &b.advantages);
            let (x, y) = (&a.sequence, &b.sequence);
            found.bits(slot, &of("token id"), &x.token_ids, &y.token_ids);
            found.bits(slot, &of("loss mask"), &x.loss_mask, &y.loss_mask);
            let (x, y) = (&x.sampled_log_probs, &y.sampled_log_probs);
            found.narrow(slot, &of("sampled log-prob"), x, y);
            let (x, y) = (&a.old_log_probs, &b.old_log_probs);
            found.narrow(slot, &of("old log-prob"), x, y);
            let (x, y) = (a.ref_log_probs.as_deref(), b.ref_log_probs.as_deref());
            let (x, y) = (x.unwrap_or_default(), y.unwrap_or_default());
            found.narrow(slot, &of("reference log-prob"), x, y);
        }
    }
    if let (Some(CriticTargets::V1(ours)), Some(CriticTargets::V1(theirs))) =
        (computed.1, recorded.1)
    {
        for (slot, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            let (ours, theirs) = (ours.iter().flatten(), theirs.iter().flatten());
            for (at, (a, b)) in ours.zip(theirs).enumerate() {
                let of = |what: &str| format!("{what} of sequence {at}");
                found.floats(slot, &of("return"), &a.returns, &b.returns);
                found.narrow(slot, &of("value"), &a.values, &b.values);
            }
        }
    }
    found.all
}

/// Differences found so far.
struct Found {
    all: Vec<Difference>,
    limit: usize,
}

impl Found {
    fn floats(&mut self, slot: usize, what: &str, ours: &[f64], theirs: &[f64]) {
        let same = |a: &f64, b: &f64| a.to_bits() == b.to_bits();
        self.rows(slot, what, ours, theirs, same);
    }

    fn narrow(&mut self, slot: usize, what: &str, ours: &[f32], theirs: &[f32]) {
        let same = |a: &f32, b: &f32| a.to_bits() == b.to_bits();
        self.rows(slot, what, ours, theirs, same);
    }

    fn bits<T: PartialEq + std::fmt::Debug>(
        &mut self,
        slot: usize,
        what: &str,
        ours: &[T],
        theirs: &[T],
    ) {
        self.rows(slot, what, ours, theirs, T::eq);
    }

    fn rows<T: std::fmt::Debug>(
        &mut self,
        slot: usize,
        what: &str,
        ours: &[T],
        theirs: &[T],
        same: impl Fn(&T, &T) -> bool,
    ) {
        let mut say = |what: String, computed: String, recorded: String| {
            if self.all.len() < self.limit {
                self.all.push(Difference {
                    slot,
                    what,
                    computed,
                    recorded,
                });
            }
        };
        if ours.len() != theirs.len() {
            let lengths = (ours.len().to_string(), theirs.len().to_string());
            say(format!("length of {what}"), lengths.0, lengths.1);
        }
        for (at, (a, b)) in ours.iter().zip(theirs).enumerate() {
            if !same(a, b) {
                say(
                    format!("{what}, entry {at}"),
                    format!("{a:?}"),
                    format!("{b:?}"),
                );
            }
        }
    }
}
