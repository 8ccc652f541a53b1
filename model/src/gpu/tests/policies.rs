//! Scoring, generation and training on the emulated GPU, with operands of either type: near the
//! CPU's numbers, and with the same guarantees (I7).

use super::{ORDERS, on_gpu};
use crate::gpu::emulator::Order;
use crate::tests::{
    SHAPES, Shape, random_adapter, random_policy, related, relative_error, requests, sequences,
    tiny_policy,
};
use crate::{
    ALL_LINEAR, AdamW, ComputeOptions, Critic, Device, Dtype, Engine, EngineOptions, Generation,
    GenerationRequest, Gradients, LoraOptions, PartialSum, Policy, Sampling, ScoreRequest, Scores,
    Trainer, Unit, UnitCoefficients, UnitStreams, partial_gradients, score, values,
};

pub(super) const TEMPERATURE: f64 = 0.8;

/// A type of operands, and its tolerances against the CPU's f32 numbers.
struct Operands {
    dtype: Dtype,
    /// Distance between found and expected numbers.
    distance: fn(&[f32], &[f32]) -> f64,
    scores: f64,
    gradients: f64,
}

/// Largest difference over the root mean square: both compute in f32, in different orders.
static F32: Operands = Operands {
    dtype: Dtype::F32,
    distance: relative_error,
    scores: 2e-5,
    gradients: 1e-4,
};

/// Norm of the difference over the norm. An operand is rounded by up to 2⁻⁹ of itself, several
/// times in each layer.
static BF16: Operands = Operands {
    dtype: Dtype::Bf16,
    distance: |found, expected| {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let pairs = found.iter().zip(expected);
        let apart: f64 = pairs.map(|(a, b)| square(a - b)).sum();
        (apart / expected.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
    },
    scores: 0.005,
    gradients: 0.04,
};

fn in_both_types(policies: Vec<Policy>) -> impl Iterator<Item = (&'static Operands, Policy)> {
    let of = |policy: Policy| [&F32, &BF16].map(|operands| (operands, policy.clone()));
    policies.into_iter().flat_map(of)
}

impl Operands {
    /// The result of `work`, which must be the same in both orders.
    fn in_both_orders<T: PartialEq>(&self, policy: &Policy, work: impl Fn(&Policy) -> T) -> T {
        let [one, other] = ORDERS.map(|order| work(&on_gpu(policy, order, self.dtype)));
        assert!(one == other, "{}: a barrier is missing", self.dtype);
        one
    }

    fn policy(&self, policy: &Policy) -> Policy {
        on_gpu(policy, Order::Ascending, self.dtype)
    }

    fn assert_gradients_near(&self, found: &Gradients, expected: &Gradients) {
        let names = |gradients: &Gradients| -> Vec<String> {
            gradients.iter().map(|(name, _)| name.to_owned()).collect()
        };
        assert_eq!(names(found), names(expected));
        for ((name, found), (_, expected)) in found.iter().zip(expected.iter()) {
            self.assert_near(name, found, expected, self.gradients);
        }
    }

    fn assert_near(&self, what: &str, found: &[f32], expected: &[f32], tolerance: f64) {
        let error = (self.distance)(found, expected);
        println!("{} {what}: {error:.1e}", self.dtype);
        assert!(error < tolerance, "{} {what}: {error}", self.dtype);
    }
}

/// Sequences across pages, and one with nothing to score.
const LENGTHS: [usize; 4] = [70, 1, 33, 130];

/// Tied and untied heads, groups of 1 to 4, three architectures, widths that are not multiples
/// of any block size.
fn policies() -> Vec<Policy> {
    let some = [SHAPES[1], SHAPES[2], SHAPES[4], SHAPES[9]];
    let mut policies: Vec<Policy> = some.map(|shape| random_policy(shape, 7)).into();
    policies.push(tiny_policy());
    policies
}

pub(super) fn scores(
    policy: &Policy,
    requests: &[ScoreRequest<'_>],
    pack_tokens: usize,
) -> Vec<Scores> {
    let options = ComputeOptions {
        pack_tokens,
        ..ComputeOptions::default()
    };
    score(policy, requests, TEMPERATURE, &options).unwrap()
}

pub(super) fn flat(scores: &[Scores]) -> [Vec<f32>; 2] {
    [
        scores.iter().flat_map(|s| s.log_probs.clone()).collect(),
        scores.iter().flat_map(|s| s.entropies.clone()).collect(),
    ]
}

#[test]
fn scores_are_the_processors_and_do_not_depend_on_packing() {
    for (operands, policy) in in_both_types(policies()) {
        let sequences = sequences(policy.config().vocab_size, &LENGTHS, 1);
        let requests = requests(&sequences);
        let expected = flat(&scores(&policy, &requests, 1024));
        let alone = operands.in_both_orders(&policy, |policy| scores(policy, &requests, 1));
        for (found, expected) in flat(&alone).iter().zip(&expected) {
            operands.assert_near("scores", found, expected, operands.scores);
        }
        let together = scores(&operands.policy(&policy), &requests, usize::MAX);
        assert!(together == alone, "{}: packing shows", operands.dtype);
    }
}

pub(super) fn turn(
    sequence: u64,
    append: &[u32],
    tokens_max: usize,
    sampling: Sampling,
) -> GenerationRequest {
    GenerationRequest {
        sequence,
        append: append.to_vec(),
        stream: [sequence as u8; 32],
        turn: 0,
        sampling,
        tokens_max,
        stop_ids: vec![2],
    }
}

pub(super) fn generate(
    policy: &Policy,
    turns: &[GenerationRequest],
    options: EngineOptions,
) -> Vec<Generation> {
    let mut engine = Engine::new(policy.clone(), options);
    for turn in turns {
        engine.submit(turn.clone()).unwrap();
    }
    let mut done = Vec::new();
    while !engine.is_idle() {
        done.extend(engine.step().unwrap());
    }
    done.sort_by_key(|turn| turn.sequence);
    done
}

/// Prompts with a common prefix, so that pages are shared, and all kinds of sampling.
pub(super) fn turns(vocabulary: usize) -> Vec<GenerationRequest> {
    let common = &sequences(vocabulary, &[100], 3)[0].token_ids;
    let kinds = [
        Sampling::default(),
        Sampling {
            temperature: 0.7,
            ..Sampling::default()
        },
        Sampling {
            greedy: true,
            ..Sampling::default()
        },
        Sampling {
            top_k: 5,
            top_p: 0.9,
            ..Sampling::default()
        },
    ];
    let prompt = |number: usize| {
        let mut ids = common[..60 + 10 * number].to_vec();
        ids.push(number as u32 + 3);
        ids
    };
    let turn = |(number, &kind)| turn(number as u64, &prompt(number), 12, kind);
    kinds.iter().enumerate().map(turn).collect()
}

#[test]
fn generation_draws_the_processors_ids_whatever_runs_beside() {
    for (operands, policy) in in_both_types(policies()) {
        let turns = turns(policy.config().vocab_size);
        let generate = |policy: &Policy, options| generate(policy, &turns, options);
        let found =
            operands.in_both_orders(&policy, |policy| generate(policy, EngineOptions::default()));
        // In bf16 a draw near a boundary may give a different id.
        if operands.dtype == Dtype::F32 {
            let expected = generate(&policy, EngineOptions::default());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.token_ids, expected.token_ids);
                let (found, expected) = (&found.log_probs, &expected.log_probs);
                operands.assert_near("log-probabilities", found, expected, operands.scores);
            }
        }
        // One row at a time, in small chunks, with caches evicted.
        let narrow = EngineOptions {
            rows_max: 1,
            cache_tokens_max: 1,
            prefill_chunk: 7,
            threads: 1,
        };
        let alone = generate(&operands.policy(&policy), narrow);
        assert!(alone == found, "{}: batching shows", operands.dtype);
    }
}

#[test]
fn sampled_log_probs_and_entropies_are_scored_again_bit_for_bit() {
    for (operands, policy) in in_both_types(policies()) {
        let policy = operands.policy(&policy);
        let sampling = Sampling {
            temperature: TEMPERATURE,
            ..Sampling::default()
        };
        let prompt = &sequences(policy.config().vocab_size, &[61], 9)[0].token_ids;
        let turns = [turn(5, prompt, 8, sampling)];
        let done = generate(&policy, &turns, EngineOptions::default());
        let ids = [prompt.as_slice(), &done[0].token_ids].concat();
        let mask: Vec<bool> = (0..ids.len()).map(|t| t >= prompt.len()).collect();
        let request = ScoreRequest {
            token_ids: &ids,
            loss_mask: &mask,
        };
        let scored = &scores(&policy, &[request], 1024)[0];
        assert_eq!(scored.log_probs[prompt.len()..], done[0].log_probs);
        assert_eq!(scored.entropies[prompt.len()..], done[0].entropies);
    }
}

pub(super) fn units(policy: &Policy) -> Vec<Unit> {
    let sequences = sequences(policy.config().vocab_size, &[20, 70, 5, 2, 66], 4);
    sequences
        .chunks(2)
        .map(|sequences| Unit {
            sequences: sequences.to_vec(),
            skip: false,
            share_prefixes: false,
        })
        .collect()
}

/// Units of one sequence each.
pub(super) fn many_units(policy: &Policy, count: usize) -> Vec<Unit> {
    let lengths: Vec<usize> = (0..count).map(|number| 10 + number % 7).collect();
    let sequences = sequences(policy.config().vocab_size, &lengths, 4);
    sequences
        .chunks(1)
        .map(|sequences| Unit {
            sequences: sequences.to_vec(),
            skip: false,
            share_prefixes: false,
        })
        .collect()
}

/// Different for every token; unit 1 contributes nothing.
pub(super) fn coefficients(unit: usize, streams: &UnitStreams) -> UnitCoefficients {
    let fill = |streams: &[Vec<f32>], factor: f64| {
        let factor = if unit == 1 { 0.0 } else { factor };
        let own = |s: &Vec<f32>| (0..s.len()).map(|t| factor * (1 + t % 3) as f64).collect();
        streams.iter().map(own).collect()
    };
    UnitCoefficients {
        log_probs: fill(&streams.log_probs, -0.02),
        entropies: fill(&streams.entropies, 0.01),
    }
}

fn gradients(policy: &Policy, checkpointed: bool) -> Gradients {
    let options = ComputeOptions {
        checkpointed,
        ..ComputeOptions::default()
    };
    let trainer = Trainer::new(policy.clone(), AdamW::default());
    let units = units(policy);
    (trainer
        .gradients(&units, TEMPERATURE, &coefficients, &options)
        .unwrap())
    .0
}

/// Many units are added up in runs; shards of a minibatch give the same bits, on any number of
/// workers.
#[test]
fn runs_of_units_are_the_processors_sums_however_they_are_dealt() {
    let some = trained().into_iter().step_by(5).collect();
    for (operands, policy) in in_both_types(some) {
        let units = many_units(&policy, 19);
        let options = ComputeOptions::default();
        let gradients = |policy: &Policy| {
            let trainer = Trainer::new(policy.clone(), AdamW::default());
            let found = trainer.gradients(&units, TEMPERATURE, &coefficients, &options);
            found.unwrap().0
        };
        let on_gpu = operands.policy(&policy);
        let found = gradients(&on_gpu);
        operands.assert_gradients_near(&found, &gradients(&policy));
        for shards in [2, 3, 12] {
            let shares = (0..shards).map(|shard| {
                let own = crate::shard_of_units(units.len(), shard, shards);
                let share =
                    partial_gradients(&on_gpu, &units, own, TEMPERATURE, &coefficients, &options);
                share.unwrap().0
            });
            assert!(PartialSum::whole(shares).unwrap() == found, "{shards}");
        }
        let torn = partial_gradients(&on_gpu, &units, 1..4, TEMPERATURE, &coefficients, &options);
        assert!(torn.unwrap_err().to_string().contains("no whole runs"));
    }
}

/// Policies of which all parameters are trained, or only an adapter's factors.
pub(super) fn trained() -> Vec<Policy> {
    let adapted = |shape: Shape, modules: &[&str]| {
        let base = random_policy(shape, 8);
        let options = LoraOptions::new(3, 6.0, modules.iter().copied()).unwrap();
        let adapter = random_adapter(&base, options, 9);
        base.with_adapter(adapter).unwrap()
    };
    let mut trained = policies();
    trained.push(adapted(SHAPES[4], &[ALL_LINEAR]));
    // Only some of the layers that share one product.
    trained.push(adapted(SHAPES[2], &["q_proj", "v_proj", "up_proj"]));
    trained
}

#[test]
fn gradients_are_the_processors_also_with_layers_computed_twice() {
    for (operands, policy) in in_both_types(trained()) {
        let found = operands.in_both_orders(&policy, |policy| gradients(policy, false));
        operands.assert_gradients_near(&found, &gradients(&policy, false));
        let twice = gradients(&operands.policy(&policy), true);
        assert!(twice == found, "{}: checkpoints show", operands.dtype);
    }
}

/// Two steps, the second after a resume from files: weights, norms and moments.
#[test]
fn optimizer_steps_are_the_processors_also_across_a_resume() {
    let options = ComputeOptions::default();
    let adamw = AdamW {
        // Far above a gradient's error, which division by a root of that size would amplify.
        eps: 1e-3,
        weight_decay: 0.1,
        decay_excludes_norms_and_biases: true,
        ..AdamW::default()
    };
    let in_bf16 = trained().swap_remove(0).rounded(&options).unwrap();
    for policy in trained().into_iter().chain([in_bf16]) {
        let step = |trainer: &mut Trainer| {
            let units = units(&policy);
            trainer
                .step(&units, TEMPERATURE, 1e-2, &coefficients, &options)
                .unwrap()
        };
        let run = |policy: Policy| {
            let folder = tempfile::tempdir().unwrap();
            let mut trainer = Trainer::new(policy, adamw);
            let first = step(&mut trainer);
            trainer.save_optimizer(folder.path()).unwrap();
            let mut resumed =
                Trainer::resume(trainer.model().unwrap(), adamw, Some(folder.path())).unwrap();
            let second = step(&mut resumed);
            assert_eq!(step(&mut trainer), second, "the resume shows");
            let weights = trainer.model().unwrap().weights().clone();
            assert!(weights == *resumed.model().unwrap().weights());
            if weights.dtype() == Dtype::Bf16 {
                assert!(weights.clone().rounded(&options).unwrap() == weights);
            }
            assert_eq!(resumed.optimizer_steps(), 2);
            ([first, second], resumed.into_model().unwrap())
        };
        let (expected, on_processor) = run(policy.clone());
        let [(found, on_gpu), other] = ORDERS.map(|order| run(on_gpu(&policy, order, Dtype::F32)));
        let weights = [&on_gpu, &other.1].map(Policy::trained_weights);
        assert!(
            found == other.0 && weights[0] == weights[1],
            "a barrier is missing"
        );
        if policy.weights().dtype() == Dtype::Bf16 {
            // A number between two of bf16 may go to either.
            continue;
        }
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.tokens, expected.tokens);
            assert!((found.grad_norm / expected.grad_norm - 1.0).abs() < F32.gradients);
        }
        let (found, expected) = (on_gpu.trained_weights(), on_processor.trained_weights());
        for ((name, found), (_, expected)) in found.iter().zip(expected.iter()) {
            let before = policy.trained_weights().get(name).unwrap().numbers();
            let moved = |after: &[f32]| -> Vec<f32> {
                after
                    .iter()
                    .zip(before)
                    .map(|(after, before)| after - before)
                    .collect()
            };
            let error = relative_error(&moved(found.numbers()), &moved(expected.numbers()));
            assert!(error < 1e-2, "{name}: {error}");
        }
    }
}

/// A tree's scores are those of its sequences apart, to the bit; its gradient is the processor's.
#[test]
fn what_sequences_have_in_common_is_computed_once() {
    // A dense policy, one with wide heads in a group of seven, and an adapter.
    // Each in one of the types, which alternate.
    let some = trained().into_iter().step_by(4);
    for (policy, operands) in some.zip([&F32, &BF16].into_iter().cycle()) {
        let sequences = related(policy.config().vocab_size, 3);
        let requests = requests(&sequences);
        let found = operands.in_both_orders(&policy, |policy| {
            let apart: Vec<Scores> = (requests.iter())
                .map(|request| scores(policy, &[*request], 1024).remove(0))
                .collect();
            let together = scores(policy, &requests, 100_000);
            assert!(together == apart, "{}: the tree shows", operands.dtype);
            let units = [true, false].map(|share_prefixes| Unit {
                sequences: sequences.clone(),
                skip: false,
                share_prefixes,
            });
            let trainer = Trainer::new(policy.clone(), AdamW::default());
            let options = ComputeOptions::default();
            units.map(|unit| {
                let found = trainer.gradients(&[unit], TEMPERATURE, &coefficients, &options);
                found.unwrap()
            })
        });
        let [(shared, nodes), (apart, tokens)] = &found;
        assert!(nodes * 10 < tokens * 7, "{nodes} of {tokens}");
        operands.assert_gradients_near(shared, apart);
        let unit = Unit {
            sequences,
            skip: false,
            share_prefixes: true,
        };
        let trainer = Trainer::new(policy, AdamW::default());
        let options = ComputeOptions::default();
        let expected = trainer.gradients(&[unit], TEMPERATURE, &coefficients, &options);
        operands.assert_gradients_near(shared, &expected.unwrap().0);
    }
}

#[test]
fn gradients_that_are_not_finite_change_nothing_on_a_gpu() {
    let policy = on_gpu(&tiny_policy(), Order::Ascending, Dtype::F32);
    let mut trainer = Trainer::new(policy.clone(), AdamW::default());
    let infinite = |_: usize, streams: &UnitStreams| {
        let fill = |streams: &[Vec<f32>]| streams.iter().map(|s| vec![1e300; s.len()]).collect();
        UnitCoefficients {
            log_probs: fill(&streams.log_probs),
            entropies: fill(&streams.entropies),
        }
    };
    let options = ComputeOptions::default();
    let report = trainer
        .step(&units(&policy), 1.0, 1e-2, &infinite, &options)
        .unwrap();
    assert!(report.skipped_non_finite);
    assert!(trainer.model().unwrap().weights() == policy.weights());
    assert_eq!(trainer.optimizer_steps(), 0);
}

#[test]
fn a_critic_values_and_learns_as_on_the_processor() {
    let policy = tiny_policy();
    let folder = tempfile::tempdir().unwrap();
    let fresh = Critic::new(&policy).unwrap();
    // A fresh head is zero, so that no gradient would pass through it.
    let mut weights = fresh.weights().clone();
    weights.replace("score.weight", |old| {
        (0..old.len()).map(|i| (i % 7) as f32 * 0.1 - 0.3).collect()
    });
    fresh
        .with_weights(weights)
        .unwrap()
        .save(folder.path())
        .unwrap();
    let device = Device::of(super::gpu(Order::Ascending, Dtype::F32));
    let critics = [Device::cpu(), device];
    let [expected, found] = critics.map(|device| {
        let critic = Critic::load(folder.path(), &device).unwrap();
        let sequences = sequences(policy.config().vocab_size, &LENGTHS, 5);
        let options = ComputeOptions::default();
        let values = values(&critic, &requests(&sequences), &options).unwrap();
        let trainer = Trainer::new(critic, AdamW::default());
        let by_value = |_: usize, values: &Vec<Vec<f32>>| {
            let own = |v: &Vec<f32>| v.iter().map(|&v| f64::from(v) - 0.5).collect();
            values.iter().map(own).collect()
        };
        let gradients = trainer
            .gradients(&units(&policy), (), &by_value, &options)
            .unwrap()
            .0;
        (values.concat(), gradients)
    });
    F32.assert_near("values", &found.0, &expected.0, F32.scores);
    F32.assert_gradients_near(&found.1, &expected.1);
}

/// Three steps of a critic, the second after a resume from files.
#[test]
fn a_critics_optimizer_steps_are_the_processors_also_across_a_resume() {
    let policy = tiny_policy();
    let adamw = AdamW {
        eps: 1e-3,
        weight_decay: 0.1,
        ..AdamW::default()
    };
    let by_value = |_: usize, values: &Vec<Vec<f32>>| {
        let own = |v: &Vec<f32>| v.iter().map(|&v| f64::from(v) - 0.5).collect();
        values.iter().map(own).collect()
    };
    let device = Device::of(super::gpu(Order::Ascending, Dtype::F32));
    let [expected, found] = [Device::cpu(), device].map(|device| {
        let critic = Critic::new(&policy.on(&device).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let step = |trainer: &mut Trainer<Critic>| {
            let options = ComputeOptions::default();
            let report = trainer.step(&units(&policy), (), 1e-2, &by_value, &options);
            report.unwrap()
        };
        let mut trainer = Trainer::new(critic, adamw);
        step(&mut trainer);
        trainer.save_optimizer(folder.path()).unwrap();
        let critic = trainer.model().unwrap();
        let mut resumed = Trainer::resume(critic, adamw, Some(folder.path())).unwrap();
        step(&mut trainer);
        step(&mut resumed);
        // Nothing has fetched the head that the step before made.
        let reports = [step(&mut trainer), step(&mut resumed)];
        assert_eq!(reports[0], reports[1], "the resume shows");
        assert!(trainer.model().unwrap().weights() == resumed.model().unwrap().weights());
        (reports[0], resumed.into_model().unwrap())
    });
    assert!((found.0.grad_norm / expected.0.grad_norm - 1.0).abs() < F32.gradients);
    for name in [
        "score.weight",
        "score.bias",
        "model.layers.0.mlp.up_proj.weight",
    ] {
        let moved = |critic: &Critic| -> Vec<f32> {
            let after = critic.weights().get(name).unwrap().numbers();
            let before = policy.weights().get(name).map(|p| p.numbers().to_vec());
            let before = before.unwrap_or_else(|| vec![0.0; after.len()]);
            after.iter().zip(before).map(|(a, b)| a - b).collect()
        };
        let error = relative_error(&moved(&found.1), &moved(&expected.1));
        assert!(error < 1e-2, "{name}: {error}");
    }
}
