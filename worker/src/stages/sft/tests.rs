use super::mixture::{Content, Source};
use super::*;
use crate::demonstrations::{Conversation, Line};
use crate::stages::testing::policy;
use agentgym_jobs::config::OverlongRows;

fn rows(count: usize) -> Vec<Conversation> {
    let line = |from: &str, value: String| Line {
        from: from.into(),
        loss: None,
        value,
    };
    (0..count)
        .map(|i| Conversation {
            conversations: vec![
                line("human", format!("say {i}")),
                line("gpt", format!("{i}")),
            ],
            item_id: None,
        })
        .collect()
}

/// Two files: three quarters of all picks from the first.
fn mixture() -> Mixture {
    let source = |what: &str, count: usize, share_end: f64| Source {
        what: what.into(),
        content: Content::File(rows(count)),
        len: count,
        share_end,
        seed: count as u64,
        picks: 0,
        order: None,
    };
    Mixture {
        sources: vec![source("a", 10, 0.75), source("b", 7, 1.0)],
        seed: 5,
        iteration: 0,
        batch_size: 4,
        overlong: OverlongRows::Refuse,
        picks: 0,
    }
}

#[test]
fn a_step_is_the_same_wherever_its_part_begins() {
    let policy = policy();
    let mut whole = mixture();
    let all: Vec<Vec<Encoded>> = (0..12)
        .map(|_| whole.batch(&policy, 100).unwrap())
        .collect();
    for start in [1, 5, 11] {
        let mut part = mixture();
        part.skip_to(start);
        assert_eq!(part.batch(&policy, 100).unwrap(), all[start as usize]);
    }
    assert_ne!(all[0], all[1]);
}

#[test]
fn every_row_once_per_pass_and_shares_hold() {
    let mut mixture = mixture();
    let mut counts = [0usize; 2];
    let mut seen = Vec::new();
    for _ in 0..4000 {
        let (source, position) = mixture.pick();
        counts[source] += 1;
        if source == 0 && position < 10 {
            seen.push(mixture.sources[0].row(position));
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
    let share = counts[0] as f64 / 4000.0;
    assert!((share - 0.75).abs() < 0.03, "{share}");
}

/// Iterations of an AgentEvol run draw and shuffle with keys of their own.
#[test]
fn no_two_iterations_share_a_stream() {
    let picks = (0..5).flat_map(|n| (0..100).map(move |k| mixture::pick_key(7, n, k)));
    let orders = (0..5).flat_map(|n| (0..3).map(move |index| mixture::source_key(7, n, index)));
    let streams: std::collections::BTreeSet<_> = picks.chain(orders).map(|k| k.stream()).collect();
    assert_eq!(streams.len(), 515);
}

/// What was kept takes its share, or its share by size; of nothing nothing is drawn.
#[test]
fn kept_trajectories_join_the_demonstrations() {
    let kept = |count: usize| {
        let row = Encoded {
            token_ids: vec![1, 2],
            loss_mask: vec![false, true],
        };
        Source::new(
            "kept".into(),
            Content::Sampled(vec![row; count]),
            1.0,
            mixture::source_key(1, 1, 2),
        )
    };
    let ends = |count: usize, share: Option<f64>| -> Vec<f64> {
        let mut sources = mixture().sources;
        mixture::add_kept(&mut sources, kept(count), share);
        sources.iter().map(|s| s.share_end).collect()
    };
    assert_eq!(ends(51, None), [0.75 * 0.25, 0.25, 1.0]);
    assert_eq!(ends(51, Some(0.5)), [0.375, 0.5, 1.0]);
    assert_eq!(ends(0, Some(0.5)), [0.75, 1.0]);
    let mut alone = Vec::new();
    mixture::add_kept(&mut alone, kept(3), Some(0.5));
    assert_eq!(alone[0].share_end, 1.0);
}

#[test]
fn steps_lower_the_loss_and_threads_do_not_show() {
    let policy = policy();
    let mut losses = Vec::new();
    for threads in [1, 2] {
        let adamw = AdamW {
            betas: (0.9, 0.95),
            eps: ADAM_EPS,
            weight_decay: 0.0,
            grad_clip: 1.0,
            decay_excludes_norms_and_biases: false,
        };
        let mut trainer = resume(&policy, adamw, None).unwrap();
        let mut mixture = mixture();
        let options = ComputeOptions {
            threads,
            pack_tokens: 4096,
            checkpointed: false,
            beat: &|| {},
        };
        let batch = mixture.batch(&policy, 1000).unwrap();
        let run: Vec<f64> = (0..8)
            .map(|_| {
                train(&mut trainer, &batch, 3e-3, 64, &options)
                    .unwrap()
                    .loss
            })
            .collect();
        assert!(run[7] < 0.8 * run[0], "{run:?}");
        losses.push(run);
    }
    assert_eq!(losses[0], losses[1]);
}
