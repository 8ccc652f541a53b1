//! Steps on pairs: order, gradient units, and that preferences are learned.

use super::*;
use crate::demonstrations::Line;
use crate::stages::testing::{plan, policy};

fn dpo(overrides: &[&str]) -> Plan {
    let mut all = vec![
        "run.pipeline=dpo",
        "dpo.expert_file=a",
        "dpo.experience_file=b",
        "dpo.steps=10",
        "dpo.batch_size=2",
    ];
    all.extend(overrides);
    plan(&all)
}

fn pair(prompt: &str, chosen: &str, rejected: &str) -> Pair {
    let line = |from: &str, value: &str| Line {
        from: from.into(),
        loss: None,
        value: value.into(),
    };
    Pair {
        item_id: "t_1".into(),
        prompt: vec![line("human", prompt)],
        chosen: vec![line("gpt", chosen)],
        rejected: vec![
            line("gpt", rejected),
            line("human", "no"),
            line("gpt", "still"),
        ],
        chosen_reward: 1.0,
        rejected_reward: 0.0,
        tools: None,
        rows: Default::default(),
    }
}

fn options(threads: usize) -> ComputeOptions<'static> {
    ComputeOptions {
        threads,
        pack_tokens: 4096,
        beat: &|| {},
        ..Default::default()
    }
}

#[test]
fn each_pass_takes_every_pair_once_and_parts_may_be_cut_anywhere() {
    let plan = dpo(&[]);
    let first: Vec<usize> = (0..3).flat_map(|step| picks(&plan, 6, step)).collect();
    let second: Vec<usize> = (3..6).flat_map(|step| picks(&plan, 6, step)).collect();
    for pass in [&first, &second] {
        let mut sorted = pass.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4, 5]);
    }
    assert_ne!(first, second);
    assert_eq!(picks(&plan, 6, 4), second[2..4]);
    // A batch may be larger than the number of pairs.
    assert_eq!(picks(&plan, 1, 7), [0, 0]);
}

fn rule(share_prefixes: bool) -> UnitRule {
    UnitRule {
        unit_tokens: 16,
        share_prefixes,
    }
}

#[test]
fn preferences_are_learnt_with_every_loss_on_any_number_of_threads() {
    let policy = policy();
    for name in ["sigmoid", "hinge", "ipo"] {
        let plan = dpo(&[
            &format!("dpo.loss_type={name}"),
            "dpo.lr=2e-3",
            "dpo.beta=0.5",
        ]);
        let loss = plan.config.dpo.loss().unwrap();
        let examples: Vec<Example> = [pair("a b", "yes", "nope"), pair("c", "good", "bad")]
            .iter()
            .map(|pair| example(&plan, pair, &policy, &options(1)).unwrap())
            .collect();
        let batch: Vec<&Example> = examples.iter().collect();
        assert!(batch[0].answers[1].loss_tokens() > batch[0].answers[0].loss_tokens());
        let weights = [(1, false), (2, false), (1, true), (2, true)].map(|(threads, share)| {
            let mut trainer = resume(&policy, AdamW::default(), None).unwrap();
            let mut results = Vec::new();
            for _ in 0..8 {
                let step = (2e-3, rule(share));
                let found = train(&mut trainer, &batch, loss, step, &options(threads));
                results.push(found.unwrap());
            }
            let start = match name {
                "sigmoid" => 2f64.ln(),
                "hinge" => 1.0,
                _ => 1.0,
            };
            assert!(
                (results[0].sums.loss - start).abs() < 1e-4,
                "{name}: the policy is its own reference"
            );
            assert!(
                results[7].sums.loss < 0.8 * start,
                "{name}: {}",
                results[7].sums.loss
            );
            assert_eq!(results[7].sums.accuracy(), 1.0, "{name}");
            trainer.into_model().unwrap().weights().clone()
        });
        assert!(weights[0] == weights[1], "{name}");
        assert!(weights[2] == weights[3], "{name}");
        assert!(weights[0] != weights[2], "{name}: nothing is shared");
    }
}

#[test]
fn a_long_answer_names_its_key() {
    let plan = dpo(&["dpo.max_length=4"]);
    let found = example(&plan, &pair("a", "b", "c"), &policy(), &options(1));
    let message = found.err().unwrap().to_string();
    assert!(message.contains("dpo.max_length = 4"), "{message}");
}

#[test]
fn a_step_that_is_not_finite_is_counted_and_is_in_no_mean() {
    let policy = policy();
    let plan = dpo(&["dpo.beta=0.5"]);
    let example = example(&plan, &pair("a b", "yes", "nope"), &policy, &options(1)).unwrap();
    // Coefficients beyond the f32 range overflow in the backward pass; the loss itself is ln 2.
    let mut loss = plan.config.dpo.loss().unwrap();
    let adamw = AdamW {
        weight_decay: 0.0,
        ..AdamW::default()
    };
    let mut trainer = resume(&policy, adamw, None).unwrap();
    let mut step = |loss| {
        train(
            &mut trainer,
            &[&example],
            loss,
            (1e-3, rule(true)),
            &options(1),
        )
        .unwrap()
    };
    let own = loss;
    loss.beta = 1e300;
    let spoiled = step(loss);
    let sound = step(own);
    assert!(spoiled.non_finite && !sound.non_finite);
    let norm = sound.grad_norm;
    let metrics = summarise(0, &[spoiled, sound], rule(true));
    assert_eq!(
        (metrics.grad_norm, metrics.non_finite_steps),
        (norm, Some(1))
    );
    assert!(metrics.loss.is_finite() && metrics.curve[0].loss == 0.0);
}
