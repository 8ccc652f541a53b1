use super::mixture::{Content, Source};
use super::*;
use crate::demonstrations::{Conversation, Line};
use crate::stages::testing::policy;
use agentgym_jobs::config::OverlongRows;
use std::collections::BTreeSet;

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
            ids: None,
            item_id: None,
            tools: None,
            reply_prefix: None,
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
        passes: None,
        validation: Vec::new(),
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

/// Iterations of an AgentEvol run draw and shuffle with their own keys.
#[test]
fn no_two_iterations_share_a_stream() {
    let picks = (0..5).flat_map(|n| (0..100).map(move |k| mixture::pick_key(7, n, k)));
    let orders = (0..5).flat_map(|n| (0..3).map(move |index| mixture::source_key(7, n, index)));
    let streams: std::collections::BTreeSet<_> = picks.chain(orders).map(|k| k.stream()).collect();
    assert_eq!(streams.len(), 515);
}

/// Kept trajectories get the given share, or a share by size; an empty source is never drawn from.
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
    for (threads, share) in [(1, false), (2, false), (1, true), (2, true)] {
        let adamw = AdamW {
            betas: (0.9, 0.95),
            weight_decay: 0.0,
            ..AdamW::default()
        };
        let mut trainer = resume(&policy, adamw, None).unwrap();
        let mut mixture = mixture();
        let options = ComputeOptions {
            threads,
            pack_tokens: 4096,
            beat: &|| {},
            ..Default::default()
        };
        let batch = mixture.batch(&policy, 1000).unwrap();
        let run: Vec<f64> = (0..8)
            .map(|_| {
                train(&mut trainer, &batch, 3e-3, rule(share), &options)
                    .unwrap()
                    .loss
            })
            .collect();
        assert!(run[7] < 0.8 * run[0], "{run:?}");
        losses.push(run);
    }
    assert_eq!(losses[0], losses[1]);
    assert_eq!(losses[2], losses[3]);
    let mut apart = losses[0].iter().zip(&losses[2]);
    assert!(apart.all(|(a, b)| (a / b - 1.0).abs() < 1e-4), "{losses:?}");
}

fn rule(share_prefixes: bool) -> UnitRule {
    UnitRule {
        unit_tokens: 64,
        share_prefixes,
    }
}

/// The two files in whole passes: 17 rows, so five steps of at most 4 rows per pass.
fn in_passes(count: u32) -> Mixture {
    let passes = mixture::Passes {
        count,
        seed: 11,
        step: 0,
        order: None,
    };
    Mixture {
        passes: Some(passes),
        ..mixture()
    }
}

#[test]
fn an_epoch_takes_every_row_once_wherever_its_parts_are_cut() {
    let mut whole = in_passes(3);
    assert_eq!(whole.steps(), Some(15));
    assert_eq!(whole.passes_before(10), Some(2.0));
    assert_eq!(mixture().steps(), None);
    let steps: Vec<Vec<(usize, usize)>> = (0..15).map(|_| whole.next_rows()).collect();
    let all: BTreeSet<(usize, usize)> = (0..10)
        .map(|row| (0, row))
        .chain((0..7).map(|row| (1, row)))
        .collect();
    let mut orders = BTreeSet::new();
    for pass in steps.chunks(5) {
        let sizes: Vec<usize> = pass.iter().map(Vec::len).collect();
        assert_eq!(sizes, [4, 4, 4, 4, 1]);
        let order = pass.concat();
        assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), all);
        orders.insert(order);
    }
    assert_eq!(orders.len(), 3, "each pass has its own order");
    for start in [1, 5, 14] {
        let mut part = in_passes(3);
        part.skip_to(start);
        assert_eq!(part.next_rows(), steps[start as usize]);
    }
}

/// Forty rows of thirty tasks: ten tasks have two.
fn of_tasks() -> Content {
    let mut rows = rows(40);
    for (number, row) in rows.iter_mut().enumerate() {
        row.item_id = Some(format!("maze_{}", number % 30));
    }
    Content::File(rows)
}

fn values(content: &Content) -> BTreeSet<String> {
    let Content::File(rows) = content else {
        panic!("a file");
    };
    let words = rows.iter().map(|r| r.conversations[0].value.clone());
    words.collect()
}

#[test]
fn what_is_held_out_shares_no_row_and_no_task_with_what_is_trained_on() {
    let split = |seed, share| {
        let (kept, apart) = mixture::split(seed, 0, "key", of_tasks(), share).unwrap();
        (values(&kept), values(&apart.unwrap()))
    };
    for share in [0.05, 0.2, 0.5] {
        let (kept, apart) = split(7, share);
        assert!(kept.is_disjoint(&apart));
        assert_eq!(kept.len() + apart.len(), 40);
        let wanted = (share * 40.0) as usize;
        assert!(
            (wanted..=wanted + 1).contains(&apart.len()),
            "{share}: {}",
            apart.len()
        );
        let task =
            |value: &String| value.strip_prefix("say ").unwrap().parse::<u32>().unwrap() % 30;
        let tasks = |values: &BTreeSet<String>| values.iter().map(task).collect::<BTreeSet<_>>();
        assert!(tasks(&kept).is_disjoint(&tasks(&apart)), "{share}");
        assert_eq!(split(7, share), (kept, apart));
        assert_ne!(split(8, share), split(7, share));
    }
    let (kept, apart) = mixture::split(7, 0, "key", of_tasks(), 0.0).unwrap();
    assert!(apart.is_none() && values(&kept).len() == 40);
    // The rows of a single task cannot be split.
    let mut same = rows(5);
    for row in &mut same {
        row.item_id = Some("maze_1".into());
    }
    let Err(error) = mixture::split(7, 0, "key", Content::File(same), 0.2) else {
        panic!("nothing is left to train on");
    };
    assert!(error.to_string().contains("all 5 rows of key"), "{error}");
}

/// The loss of a step with learning rate 0 equals the validation loss on the same rows.
#[test]
fn the_validation_loss_is_that_of_a_step_on_all_its_rows() {
    let policy = policy();
    let held_out: Vec<Encoded> = rows(9)
        .iter()
        .map(|row| row.encode(&policy, "row", 100).unwrap())
        .collect();
    let adamw = AdamW {
        betas: (0.9, 0.95),
        weight_decay: 0.0,
        ..AdamW::default()
    };
    let mut trainer = resume(&policy, adamw, None).unwrap();
    let options = |threads| ComputeOptions {
        threads,
        pack_tokens: 64,
        beat: &|| {},
        ..Default::default()
    };
    let step = train(&mut trainer, &held_out, 0.0, rule(true), &options(1)).unwrap();
    let measured = held_out::loss(&policy, &held_out, &options(2)).unwrap();
    assert!(
        (measured - step.loss).abs() < 1e-9,
        "{measured} {}",
        step.loss
    );
    assert_eq!(
        measured,
        held_out::loss(&policy, &held_out, &options(1)).unwrap()
    );
}

#[test]
fn a_step_that_is_not_finite_is_counted_and_is_in_no_mean() {
    let step = |loss, grad_norm: f64| StepResult {
        lr: 1e-3,
        loss,
        grad_norm,
        non_finite: !grad_norm.is_finite(),
        size: Size {
            tokens: 4,
            nodes: 3,
        },
        loss_tokens: 2,
    };
    let spoiled = [step(1.0, 3.0), step(9.0, f64::NAN), step(2.0, 5.0)];
    let metrics = serde_json::to_value(summarise(6, &spoiled, rule(true), None)).unwrap();
    assert_eq!(metrics["non_finite_steps"], 1);
    assert_eq!(
        (&metrics["grad_norm"], &metrics["loss"]),
        (&4.0.into(), &1.5.into())
    );
    assert_eq!(metrics["curve"][1]["grad_norm"], 0.0, "a mean of nothing");
    assert_eq!(
        (&metrics["trained_tokens"], &metrics["shared_tokens"]),
        (&12.into(), &3.into())
    );
    // Runs without non-finite steps keep their metrics' bytes.
    let sound = serde_json::to_value(summarise(6, &spoiled[..1], rule(false), None)).unwrap();
    let names: Vec<&String> = sound.as_object().unwrap().keys().collect();
    let all = [
        "steps",
        "loss",
        "grad_norm",
        "trained_tokens",
        "loss_tokens",
        "curve",
    ];
    assert_eq!(names.len(), all.len());
    assert!(all.iter().all(|name| sound.get(name).is_some()));
}
