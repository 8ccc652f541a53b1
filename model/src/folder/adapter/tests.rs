use super::*;
use crate::tests::{SHAPES, Shape, random_adapter, random_policy, requests, sequences};
use crate::{
    AdamW, ComputeOptions, Critic, Device, Policy, TrainSequence, Trainer, Unit, UnitCoefficients,
    UnitStreams, score,
};

/// A Qwen2 with an untied output head and a Qwen3 whose heads are wider than its residual stream.
const BASES: [Shape; 2] = [SHAPES[1], SHAPES[4]];
const SOME: [&str; 3] = ["q_proj", "o_proj", "down_proj"];

fn options(rank: i64, modules: &[&'static str]) -> LoraOptions {
    LoraOptions::new(rank, 6.0, modules.iter().copied()).unwrap()
}

fn ask(_: usize, streams: &UnitStreams) -> UnitCoefficients {
    let spread = |scale: f64| {
        let row = |s: &Vec<f32>| (0..s.len()).map(move |t| scale * ((t % 4) as f64 - 1.2));
        streams.log_probs.iter().map(|s| row(s).collect()).collect()
    };
    UnitCoefficients {
        log_probs: spread(0.3),
        entropies: spread(-0.1),
    }
}

/// The loss whose derivatives [`ask`] gives.
fn loss(policy: &Policy, sequences: &[TrainSequence]) -> f64 {
    let all = score(
        policy,
        &requests(sequences),
        0.8,
        &ComputeOptions::default(),
    )
    .unwrap();
    let mut sum = 0.0;
    for (sequence, scores) in sequences.iter().zip(&all) {
        for (t, _) in (sequence.loss_mask.iter().enumerate()).filter(|(_, wanted)| **wanted) {
            let weight = (t % 4) as f64 - 1.2;
            sum += weight * 0.3 * f64::from(scores.log_probs[t]);
            sum -= weight * 0.1 * f64::from(scores.entropies[t]);
        }
    }
    sum
}

fn units(sequences: &[TrainSequence]) -> Vec<Unit> {
    let unit = |sequences: &[TrainSequence]| Unit {
        sequences: sequences.to_vec(),
        skip: false,
        share_prefixes: false,
    };
    sequences.chunks(2).map(unit).collect()
}

#[test]
fn a_new_adapter_changes_nothing_and_is_a_function_of_the_seed() {
    for shape in BASES {
        let base = random_policy(shape, 1);
        let new = |seed| Adapter::new(base.config(), options(3, &[ALL_LINEAR]), "base", seed);
        let adapted = base.with_adapter(new(5)).unwrap();
        assert!(adapted.weights() == base.weights());
        assert!(new(5) == new(5) && new(5) != new(6));
        let module = "model.layers.0.self_attn.q_proj";
        let adapter = new(5);
        let [a, b] = adapter.factors(module).unwrap();
        let bound = 1.0 / (base.config().hidden_size as f32).sqrt();
        assert!(a.numbers().iter().all(|x| x.abs() <= bound && *x != 0.0));
        assert!(a.numbers().iter().any(|x| x.abs() > 0.8 * bound));
        assert!(b.numbers().iter().all(|x| *x == 0.0));
    }
}

/// Compared with the definition in f64; weights that are not adapted are shared.
#[test]
fn the_product_is_in_the_dense_weights() {
    let base = random_policy(SHAPES[4], 2);
    let adapter = random_adapter(&base, options(3, &SOME), 3);
    let adapted = base.with_adapter(adapter.clone()).unwrap();
    let scale = 6.0 / 3.0;
    for (name, before) in base.weights().iter() {
        let after = adapted.weights().get(name).unwrap();
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let Some([a, b]) = adapter.factors(module) else {
            assert!(
                std::sync::Arc::ptr_eq(&before.shared(), &after.shared()),
                "{name}"
            );
            continue;
        };
        let (rank, width) = (a.shape()[1], b.shape()[1]);
        for (at, (x, y)) in before.numbers().iter().zip(after.numbers()).enumerate() {
            let (row, column) = (at / width, at % width);
            let product: f64 = (0..rank)
                .map(|r| {
                    let (a, b) = (a.numbers()[row * rank + r], b.numbers()[r * width + column]);
                    f64::from(a) * f64::from(b)
                })
                .sum();
            let expected = f64::from(*x) + scale * product;
            assert!(
                (f64::from(*y) - expected).abs() < 1e-5 * (1.0 + expected.abs()),
                "{name}"
            );
        }
        assert_ne!(before, after, "{name}");
    }
    // A second adapter is applied to the base, not to the first.
    let again = adapted
        .with_adapter(random_adapter(&base, options(3, &SOME), 4))
        .unwrap();
    assert!(again.with_adapter(adapter).unwrap().weights() == adapted.weights());
}

/// s·dW·Bᵀ and s·Aᵀ·dW of the dense weight's own gradient, for every number.
#[test]
fn gradients_follow_from_those_of_the_dense_weights() {
    for shape in BASES {
        let base = random_policy(shape, 5);
        let adapter = random_adapter(&base, options(4, &[ALL_LINEAR]), 6);
        let adapted = base.with_adapter(adapter.clone()).unwrap();
        let merged = base.with_weights(adapted.weights().clone()).unwrap();
        let sequences = sequences(base.config().vocab_size, &[40, 9, 65], 7);
        let gradients = |policy: &Policy| {
            let trainer = Trainer::new(policy.clone(), AdamW::default());
            let options = ComputeOptions::default();
            let units = units(&sequences);
            trainer.gradients(&units, 0.8, &ask, &options).unwrap().0
        };
        let (low, dense) = (gradients(&adapted), gradients(&merged));
        let trained: Vec<&str> = low.iter().map(|(name, _)| name).collect();
        let expected: Vec<&str> = adapter.weights().iter().map(|(name, _)| name).collect();
        assert_eq!(trained, expected, "the adapter alone");
        for module in (base.weights().iter()).filter_map(|(name, _)| name.strip_suffix(".weight")) {
            let Some([a, b]) = adapter.factors(module) else {
                continue;
            };
            let whole = dense.get(&format!("{module}.weight")).unwrap();
            let (inner, rank, width) = (a.shape()[0], a.shape()[1], b.shape()[1]);
            let scale = adapter.options().scale();
            let mut by = [vec![0.0f32; inner * rank], vec![0.0f32; rank * width]];
            for row in 0..inner {
                for r in 0..rank {
                    for column in 0..width {
                        let g = whole[row * width + column] * scale;
                        by[0][row * rank + r] += g * b.numbers()[r * width + column];
                        by[1][r * width + column] += g * a.numbers()[row * rank + r];
                    }
                }
            }
            for (name, expected) in factor_names(module).iter().zip(&by) {
                let error = crate::tests::relative_error(low.get(name).unwrap(), expected);
                assert!(error < 1e-3, "{name} is off by {error}");
            }
        }
    }
}

#[test]
fn gradients_of_the_factors_agree_with_finite_differences() {
    const STEP: f32 = 4e-3;
    for shape in BASES {
        let base = random_policy(shape, 8);
        let adapted = base
            .with_adapter(random_adapter(&base, options(2, &[ALL_LINEAR]), 9))
            .unwrap();
        let sequences = sequences(base.config().vocab_size, &[30, 64, 11], 10);
        let trainer = Trainer::new(adapted.clone(), AdamW::default());
        let options = ComputeOptions::default();
        let (found, _) = trainer
            .gradients(&units(&sequences), 0.8, &ask, &options)
            .unwrap();
        for module in LORA_MODULES {
            for name in [FACTOR_A, FACTOR_B].map(|factor| format!("{module}{factor}")) {
                let (name, gradient) = found.iter().find(|(n, _)| n.ends_with(&name)).unwrap();
                let moved = |at: usize, by: f32| {
                    let mut weights = adapted.trained_weights().clone();
                    weights.replace(name, |old| {
                        let mut new = old.to_vec();
                        new[at] += by;
                        new
                    });
                    loss(&adapted.with_trained(weights).unwrap(), &sequences)
                };
                let some: Vec<usize> = (0..gradient.len()).step_by(gradient.len() / 6).collect();
                let difference =
                    |at: usize| (moved(at, STEP) - moved(at, -STEP)) / f64::from(2.0 * STEP);
                let expected: Vec<f32> = some.iter().map(|&at| difference(at) as f32).collect();
                let own: Vec<f32> = some.iter().map(|&at| gradient[at]).collect();
                let error = crate::tests::relative_error(&own, &expected);
                assert!(
                    error < 3e-2,
                    "{name} is off by {error}: {own:?} {expected:?}"
                );
            }
        }
    }
}

/// Likelier replies after some steps, the base untouched, and a resumed training
/// equal to an uninterrupted one on any number of threads.
#[test]
fn training_an_adapter_learns_and_resumes_and_leaves_the_base_alone() {
    let base = random_policy(SHAPES[4], 11);
    let adapter = Adapter::new(base.config(), options(4, &[ALL_LINEAR]), "base", 1);
    let start = base.with_adapter(adapter).unwrap();
    let sequences = sequences(base.config().vocab_size, &[20, 33, 9, 40], 12);
    let units = units(&sequences);
    let likelier = |_: usize, streams: &UnitStreams| UnitCoefficients {
        log_probs: streams
            .log_probs
            .iter()
            .map(|s| vec![-0.02; s.len()])
            .collect(),
        entropies: streams
            .log_probs
            .iter()
            .map(|s| vec![0.0; s.len()])
            .collect(),
    };
    let mean = |policy: &Policy| {
        let all = score(
            policy,
            &requests(&sequences),
            1.0,
            &ComputeOptions::default(),
        )
        .unwrap();
        let sum: f32 = all.iter().flat_map(|s| &s.log_probs).sum();
        let tokens = sequences
            .iter()
            .flat_map(|s| &s.loss_mask)
            .filter(|m| **m)
            .count();
        f64::from(sum) / tokens as f64
    };
    let adamw = AdamW {
        weight_decay: 0.0,
        ..AdamW::default()
    };
    let step = |trainer: &mut Trainer, threads: usize| {
        let options = ComputeOptions {
            threads,
            ..ComputeOptions::default()
        };
        trainer
            .step(&units, 1.0, 2e-2, &likelier, &options)
            .unwrap();
    };
    let mut whole = Trainer::new(start.clone(), adamw);
    (0..10).for_each(|_| step(&mut whole, 1));

    let dir = tempfile::tempdir().unwrap();
    let half = whole.model().unwrap();
    half.adapter().unwrap().save(dir.path()).unwrap();
    whole.save_optimizer(&dir.path().join("optimizer")).unwrap();
    let read = Adapter::load(dir.path(), base.config()).unwrap();
    assert!(&read == half.adapter().unwrap());
    let resumed = base.with_adapter(read).unwrap();
    let mut resumed = Trainer::resume(resumed, adamw, Some(&dir.path().join("optimizer"))).unwrap();
    for _ in 0..20 {
        step(&mut whole, 1);
        step(&mut resumed, 3);
    }
    let (trained, again) = (whole.into_model().unwrap(), resumed.into_model().unwrap());
    assert!(trained.adapter() == again.adapter());
    assert!(trained.weights() == again.weights());
    let (before, after) = (mean(&base), mean(&trained));
    assert!(after > before + 1.0, "{before} became {after}");
    let without = trained
        .with_adapter(Adapter::new(base.config(), options(1, &["q_proj"]), "", 1))
        .unwrap();
    assert!(without.weights() == base.weights());
}

#[test]
fn a_saved_policy_is_merged_and_gives_the_same_bits() {
    let base = random_policy(SHAPES[1], 13);
    let adapted = base
        .with_adapter(random_adapter(&base, options(2, &SOME), 14))
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    adapted.save(dir.path()).unwrap();
    let read = Policy::load(dir.path(), &Device::cpu()).unwrap();
    assert!(read.adapter().is_none() && read.weights() == adapted.weights());
    let sequences = sequences(base.config().vocab_size, &[50, 64], 15);
    let scored = |policy: &Policy| {
        let options = ComputeOptions::default();
        score(policy, &requests(&sequences), 0.9, &options).unwrap()
    };
    assert!(scored(&read) == scored(&adapted) && scored(&read) != scored(&base));
    // A critic on it has the merged trunk and all of it is trained.
    let critic = Critic::new(&adapted).unwrap();
    let name = "model.layers.0.self_attn.q_proj.weight";
    assert!(critic.weights().get(name) == adapted.weights().get(name));
}

#[test]
fn folders_are_as_peft_writes_them() {
    let base = random_policy(SHAPES[4], 16);
    let config = base.config();
    let adapter = random_adapter(&base, options(3, &SOME), 17);
    let dir = tempfile::tempdir().unwrap();
    adapter.save(dir.path()).unwrap();
    let text = std::fs::read_to_string(dir.path().join("adapter_config.json")).unwrap();
    let raw: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (
            &raw["peft_type"],
            &raw["task_type"],
            &raw["r"],
            &raw["lora_alpha"]
        ),
        (&json!("LORA"), &json!("CAUSAL_LM"), &json!(3), &json!(6))
    );
    assert_eq!(
        raw["target_modules"],
        json!(["down_proj", "o_proj", "q_proj"])
    );
    let bytes = std::fs::read(dir.path().join("adapter_model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let shape = |name: &str| file.tensor(name).unwrap().shape().to_vec();
    let layer = "base_model.model.model.layers.1.";
    let queries = config.query_width();
    assert_eq!(
        shape(&format!("{layer}self_attn.q_proj.lora_A.weight")),
        [3, config.hidden_size]
    );
    assert_eq!(
        shape(&format!("{layer}self_attn.q_proj.lora_B.weight")),
        [queries, 3]
    );
    assert_eq!(
        shape(&format!("{layer}self_attn.o_proj.lora_A.weight")),
        [3, queries]
    );
    assert_eq!(file.len(), 2 * 3 * config.num_hidden_layers);
    let again = tempfile::tempdir().unwrap();
    Adapter::load(dir.path(), config)
        .unwrap()
        .save(again.path())
        .unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        let read = |dir: &Path| std::fs::read(dir.join(name)).unwrap();
        assert!(read(dir.path()) == read(again.path()), "{name}");
    }
    // The policy loader's message says what is missing.
    let message = Policy::load(dir.path(), &Device::cpu())
        .unwrap_err()
        .to_string();
    assert!(message.contains("lora_adapter_path"), "{message}");
}

#[test]
fn options_that_mean_nothing_are_refused() {
    for (rank, alpha, module, word) in [
        (0, 1.0, "q_proj", "at least 1"),
        (-2, 1.0, "q_proj", "at least 1"),
        (2, 0.0, "q_proj", "alpha"),
        (2, f64::NAN, "q_proj", "alpha"),
        (2, 1.0, "lm_head", "gate_proj"),
    ] {
        let message = LoraOptions::new(rank, alpha, [module]).unwrap_err();
        assert!(message.contains(word), "{message}");
    }
    assert!(LoraOptions::new(2, 1.0, []).is_err());
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let base = random_policy(SHAPES[4], 18);
    let dir = tempfile::tempdir().unwrap();
    let save = || {
        random_adapter(&base, options(3, &SOME), 19)
            .save(dir.path())
            .unwrap()
    };
    let message = |config: &ModelConfig| Adapter::load(dir.path(), config).unwrap_err().to_string();
    save();
    // Another width; more layers; fewer layers.
    let wider = message(random_policy(SHAPES[1], 1).config());
    assert!(
        wider.contains("lora_") && wider.contains("shape"),
        "{wider}"
    );
    let with_layers = |layers: usize| {
        let shape = Shape {
            layers,
            ..SHAPES[4]
        };
        message(random_policy(shape, 1).config())
    };
    let (more, fewer) = (with_layers(3), with_layers(1));
    assert!(
        more.contains("layers.2.") && more.contains("missing"),
        "{more}"
    );
    assert!(
        fewer.contains("layers.1.") && fewer.contains("not a parameter"),
        "{fewer}"
    );

    let config = dir.path().join("adapter_config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    for (from, to, word) in [
        ("\"r\": 3", "\"r\": 0", "at least 1"),
        ("\"r\": 3", "\"r\": 2.5", "whole number"),
        ("\"r\": 3", "\"r\": 4", "shape"),
        ("\"q_proj\"", "\"c_attn\"", "`c_attn`"),
        ("\"use_dora\": false", "\"use_dora\": true", "use_dora"),
        ("\"bias\": \"none\"", "\"bias\": \"all\"", "bias"),
        (
            "\"init_lora_weights\": true",
            "\"init_lora_weights\": \"pissa\"",
            "pissa",
        ),
        ("\"LORA\"", "\"IA3\"", "IA3"),
    ] {
        std::fs::write(&config, text.replace(from, to)).unwrap();
        let found = message(base.config());
        assert!(
            found.contains(word) && found.contains("adapter_"),
            "{found}"
        );
    }
    save();
    let weights = dir.path().join("adapter_model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&weights, bytes).unwrap();
    let found = message(base.config());
    assert!(
        found.contains("not finite") && found.contains("adapter_model.safetensors"),
        "{found}"
    );
    assert!(found.contains("lora_B"), "{found}");
}
