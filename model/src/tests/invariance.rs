//! Invariant I7: the results of a sequence depend on nothing but the sequence. All
//! comparisons are of bytes.

use std::collections::BTreeMap;

use super::{Random, SHAPES, random_adapter, random_policy, requests, sequences, tiny_policy};
use crate::batch::Batch;
use crate::cpu::network::Cache;
use crate::{
    ALL_LINEAR, ComputeOptions, Device, Engine, EngineOptions, FinishReason, Generation,
    GenerationRequest, LoraOptions, Policy, Sampling, ScoreRequest, Scores, TrainSequence,
    likeliest, score,
};

const LENGTHS: [usize; 12] = [1, 2, 17, 40, 63, 64, 65, 90, 128, 129, 200, 33];

fn policies() -> Vec<Policy> {
    let mut policies: Vec<Policy> = SHAPES
        .into_iter()
        .map(|shape| random_policy(shape, 77))
        .collect();
    policies.push(tiny_policy());
    // With an adapter: sampled and scored from the same merged weights.
    for shape in [SHAPES[1], SHAPES[4]] {
        let base = random_policy(shape, 78);
        let options = LoraOptions::new(3, 6.0, [ALL_LINEAR]).unwrap();
        let adapter = random_adapter(&base, options, 79);
        policies.push(base.with_adapter(adapter).unwrap());
    }
    // In bf16, by the processor's instructions or without: tied and not, odd widths, an adapter.
    let vectors = Device::cpu_bf16();
    for number in [0, 1, 4, policies.len() - 1] {
        policies.push(policies[number].on(&vectors).unwrap());
    }
    policies
}

fn scores(
    policy: &Policy,
    sequences: &[TrainSequence],
    threads: usize,
    pack_tokens: usize,
) -> Vec<Scores> {
    let options = ComputeOptions {
        threads,
        pack_tokens,
        ..ComputeOptions::default()
    };
    score(policy, &requests(sequences), 0.9, &options).unwrap()
}

#[test]
fn scores_do_not_depend_on_packing_order_or_threads() {
    for policy in policies() {
        let sequences = sequences(policy.config().vocab_size, &LENGTHS, 1);
        let alone = scores(&policy, &sequences, 1, 1);
        for size in [1, 2, 3, 5, 8, 12] {
            for threads in [1, 2] {
                let together: Vec<Scores> = sequences
                    .chunks(size)
                    .flat_map(|chunk| scores(&policy, chunk, threads, usize::MAX))
                    .collect();
                assert_eq!(together, alone, "batches of {size}, {threads} threads");
            }
        }
        let mut reversed = sequences.clone();
        reversed.reverse();
        let mut backwards = scores(&policy, &reversed, 2, 300);
        backwards.reverse();
        assert_eq!(backwards, alone);
    }
}

/// Hidden states of every token of `ids`, run in pieces of at most `piece` tokens
/// beside another sequence.
fn in_pieces(policy: &Policy, ids: &[u32], piece: usize, neighbour: &[u32]) -> Vec<f32> {
    let network = &policy.network().host;
    let (mut cache, mut other): (Cache, Cache) = (network.cache(), network.cache());
    let mut states = Vec::new();
    for part in ids.chunks(piece) {
        let past = cache.length();
        let beside = other.length();
        let theirs = &neighbour[beside..neighbour.len().min(beside + 3)];
        let batch = Batch::new([(beside, theirs), (past, part)]);
        let rows: Vec<u32> = (theirs.len()..theirs.len() + part.len())
            .map(|row| row as u32)
            .collect();
        states.extend(network.hidden(&batch, &rows, Some(&mut [&mut other, &mut cache]), None));
    }
    states
}

#[test]
fn prefilled_whole_in_pieces_or_decoded_gives_the_same_bits() {
    for policy in policies() {
        for sequence in sequences(policy.config().vocab_size, &[130, 65], 2) {
            let ids = &sequence.token_ids;
            let batch = Batch::new([(0, ids.as_slice())]);
            let rows: Vec<u32> = (0..ids.len() as u32).collect();
            let whole = policy.network().host.hidden(&batch, &rows, None, None);
            for piece in [1, 2, 3, 7, 64, 100, 130] {
                for neighbour in [&[][..], &ids[10..40]] {
                    let pieces = in_pieces(&policy, ids, piece, neighbour);
                    assert!(pieces == whole, "pieces of {piece}");
                }
            }
        }
    }
}

const SAMPLINGS: [Sampling; 3] = [
    Sampling {
        temperature: 0.9,
        top_k: 0,
        top_p: 1.0,
        greedy: false,
    },
    Sampling {
        temperature: 0.9,
        top_k: 20,
        top_p: 0.8,
        greedy: false,
    },
    Sampling {
        temperature: 0.9,
        top_k: 0,
        top_p: 1.0,
        greedy: true,
    },
];

/// Plays every prompt for three turns with fixed observations in between; the
/// result is in order of sequence and turn.
fn play(
    policy: &Policy,
    prompts: &[Vec<u32>],
    order: &[usize],
    options: EngineOptions,
) -> BTreeMap<(u64, u32), Generation> {
    let mut engine = Engine::new(policy.clone(), options);
    let turn = |sequence: usize, turn: u32, append: Vec<u32>| GenerationRequest {
        sequence: sequence as u64,
        append,
        stream: [sequence as u8; 32],
        turn,
        sampling: SAMPLINGS[sequence % SAMPLINGS.len()],
        tokens_max: 12,
        stop_ids: vec![2, 7, 11],
    };
    for &sequence in order {
        engine
            .submit(turn(sequence, 0, prompts[sequence].clone()))
            .unwrap();
    }
    let mut turns = BTreeMap::new();
    let mut next: Vec<u32> = vec![1; prompts.len()];
    while !engine.is_idle() {
        for done in engine.step().unwrap() {
            let sequence = done.sequence as usize;
            let number = next[sequence];
            turns.insert((done.sequence, number - 1), done);
            if number < 3 {
                let observation = prompts[sequence].iter().rev().take(9).copied().collect();
                engine.submit(turn(sequence, number, observation)).unwrap();
                next[sequence] += 1;
            } else {
                engine.release(sequence as u64);
            }
        }
    }
    assert_eq!(engine.stats().cache_tokens, 0);
    turns
}

#[test]
fn sampling_does_not_depend_on_batching_chunks_order_eviction_or_threads() {
    for policy in policies() {
        let prompts: Vec<Vec<u32>> = sequences(policy.config().vocab_size, &LENGTHS, 3)
            .into_iter()
            .map(|sequence| sequence.token_ids)
            .collect();
        let straight: Vec<usize> = (0..prompts.len()).collect();
        let mut mixed = straight.clone();
        let mut random = Random(4);
        for i in (1..mixed.len()).rev() {
            mixed.swap(i, random.below(i + 1));
        }
        let options = EngineOptions {
            rows_max: 1,
            cache_tokens_max: 100_000,
            prefill_chunk: 1000,
            threads: 1,
        };
        let alone = play(&policy, &prompts, &straight, options);
        assert_eq!(alone.len(), 3 * prompts.len());
        for (rows_max, cache_tokens_max, prefill_chunk, threads) in [
            (2, 100_000, 64, 1),
            (3, 100_000, 1, 2),
            (5, 300, 50, 1),
            (8, 1, 200, 3),
            (12, 100_000, 7, 1),
            (12, 700, 1000, 2),
        ] {
            let options = EngineOptions {
                rows_max,
                cache_tokens_max,
                prefill_chunk,
                threads,
            };
            let together = play(&policy, &prompts, &mixed, options);
            assert!(together == alone, "{options:?}");
        }
        recorded_log_probs_are_scored(&policy, &prompts, &alone);
    }
}

/// Prompts of which some are equal, some share a prefix, and some share nothing.
fn related_prompts(vocabulary: usize) -> Vec<Vec<u32>> {
    let pieces: Vec<Vec<u32>> = sequences(vocabulary, &[70, 45, 130, 31, 5, 64], 6)
        .into_iter()
        .map(|sequence| sequence.token_ids)
        .collect();
    let system = &pieces[0];
    let mut prompts = Vec::new();
    for task in [&pieces[1], &pieces[2]] {
        for _ in 0..4 {
            prompts.push([system.as_slice(), task].concat());
        }
    }
    prompts.push([system.as_slice(), &pieces[4]].concat());
    prompts.push(system.clone());
    // A common prefix that is too short to wait for, and none at all.
    prompts.push([&pieces[3][..], &pieces[5]].concat());
    prompts.push([&pieces[3][..], &pieces[4]].concat());
    prompts.push(pieces[5].clone());
    prompts
}

#[test]
fn a_prompt_that_was_run_for_another_sequence_gives_the_same_bits() {
    for policy in policies() {
        let prompts = related_prompts(policy.config().vocab_size);
        let options = |rows_max, cache_tokens_max, prefill_chunk| EngineOptions {
            rows_max,
            cache_tokens_max,
            prefill_chunk,
            threads: rows_max.min(2),
        };
        // Each in an engine of its own: there is no other sequence to share with.
        let mut alone = BTreeMap::new();
        for sequence in 0..prompts.len() {
            alone.extend(play(
                &policy,
                &prompts,
                &[sequence],
                options(1, 100_000, 1000),
            ));
        }
        assert_eq!(alone.len(), 3 * prompts.len());
        let straight: Vec<usize> = (0..prompts.len()).collect();
        let backwards: Vec<usize> = straight.iter().rev().copied().collect();
        for (rows_max, cache_tokens_max, prefill_chunk) in [
            (13, 100_000, 1000),
            (13, 100_000, 33),
            (4, 100_000, 90),
            (2, 100_000, 1),
            (8, 900, 64),
            (5, 1, 50),
        ] {
            let options = options(rows_max, cache_tokens_max, prefill_chunk);
            for order in [&straight, &backwards] {
                assert!(
                    play(&policy, &prompts, order, options) == alone,
                    "{options:?}"
                );
            }
        }
    }
}

#[test]
fn the_samples_of_a_task_run_its_prompt_once() {
    let policy = tiny_policy();
    let prompt = sequences(policy.config().vocab_size, &[150], 8)
        .remove(0)
        .token_ids;
    let options = EngineOptions {
        prefill_chunk: 64,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(policy, options);
    for sequence in 0..8 {
        let turn = GenerationRequest {
            sequence,
            append: prompt.clone(),
            stream: [sequence as u8; 32],
            turn: 0,
            sampling: SAMPLINGS[0],
            tokens_max: 5,
            stop_ids: Vec::new(),
        };
        engine.submit(turn).unwrap();
    }
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    let stats = engine.stats();
    assert_eq!(stats.tokens_shared, 7 * 149);
    // The prompt, the last token of the seven others, and all sampled tokens but the last ones.
    assert_eq!(stats.tokens_run, 150 + 7 + 8 * 4);
}

/// Every recorded log-probability equals the teacher-forced one, bit for bit.
fn recorded_log_probs_are_scored(
    policy: &Policy,
    prompts: &[Vec<u32>],
    turns: &BTreeMap<(u64, u32), Generation>,
) {
    for (sequence, prompt) in prompts.iter().enumerate() {
        let (mut ids, mut mask, mut recorded) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..3 {
            let append = match number {
                0 => prompt.clone(),
                _ => prompt.iter().rev().take(9).copied().collect(),
            };
            let done = &turns[&(sequence as u64, number)];
            assert_eq!(
                done.finish == FinishReason::Length,
                done.token_ids.len() == 12 && ![2, 7, 11].contains(&done.token_ids[11])
            );
            for (append, own) in [(&append, false), (&done.token_ids, true)] {
                ids.extend_from_slice(append);
                mask.extend(append.iter().map(|_| own));
            }
            recorded.extend_from_slice(&done.log_probs);
        }
        let request = ScoreRequest {
            token_ids: &ids,
            loss_mask: &mask,
        };
        let scores = score(policy, &[request], 0.9, &ComputeOptions::default()).unwrap();
        let scored: Vec<f32> = scores[0]
            .log_probs
            .iter()
            .zip(&mask)
            .filter_map(|(&log_prob, &own)| own.then_some(log_prob))
            .collect();
        assert_eq!(scored, recorded, "sequence {sequence}");
    }
}

/// The same ids, and the same bits of their log-probs; across chunks too.
#[test]
fn the_likeliest_ids_are_those_that_greedy_generation_takes() {
    for policy in policies() {
        let ids = &sequences(policy.config().vocab_size, &[300], 9)[0].token_ids;
        for temperature in [1.0, 0.7] {
            let found = likeliest(&policy, ids, temperature).unwrap();
            assert_eq!(found.len(), 299);
            let mut engine = Engine::new(policy.clone(), EngineOptions::default());
            let lengths = [1, 2, 64, 200, 255, 256, 257, 299];
            for length in lengths {
                let turn = GenerationRequest {
                    sequence: length as u64,
                    append: ids[..length].to_vec(),
                    stream: [0; 32],
                    turn: 0,
                    sampling: Sampling {
                        temperature,
                        greedy: true,
                        ..Sampling::default()
                    },
                    tokens_max: 2,
                    stop_ids: Vec::new(),
                };
                engine.submit(turn).unwrap();
            }
            let mut drawn = BTreeMap::new();
            while !engine.is_idle() {
                for done in engine.step().unwrap() {
                    drawn.insert(done.sequence, (done.token_ids[0], done.log_probs[0]));
                }
                // An open turn shows what it has drawn.
                for length in lengths.map(|length| length as u64) {
                    if let Some(first) = engine.drawn(length, 0).next() {
                        assert_eq!(first, found[length as usize - 1]);
                    }
                    assert_eq!(engine.drawn(length, 1).count(), 0);
                }
            }
            for length in lengths {
                assert_eq!(drawn[&(length as u64)], found[length - 1], "{length}");
            }
        }
    }
    let policy = tiny_policy();
    assert!(likeliest(&policy, &[], 1.0).unwrap().is_empty());
    assert!(likeliest(&policy, &[1], 1.0).unwrap().is_empty());
    assert!(likeliest(&policy, &[1, u32::MAX], 1.0).is_err());
    assert!(likeliest(&policy, &[1, 2], 0.0).is_err());
}

#[test]
fn an_engine_refuses_what_it_cannot_answer() {
    let policy = tiny_policy();
    let mut engine = Engine::new(policy.clone(), EngineOptions::default());
    let turn = |append: Vec<u32>, tokens_max: usize| GenerationRequest {
        sequence: 5,
        append,
        stream: [0; 32],
        turn: 0,
        sampling: Sampling::default(),
        tokens_max,
        stop_ids: Vec::new(),
    };
    let vocabulary = policy.config().vocab_size as u32;
    let positions = policy.config().max_position_embeddings;
    for (turn, word) in [
        (turn(vec![], 4), "at least one"),
        (turn(vec![1], 0), "tokens_max"),
        (turn(vec![vocabulary], 4), "vocabulary"),
        (turn(vec![1; positions], 4), "positions"),
    ] {
        let message = engine.submit(turn).unwrap_err().to_string();
        assert!(
            message.contains(word) && message.contains("sequence 5"),
            "{message}"
        );
    }
    assert!(engine.is_idle());
    // A message that runs into the last position ends there.
    engine
        .submit(turn(vec![1; positions - 3], usize::MAX))
        .unwrap();
    let again = engine.submit(turn(vec![1], 4)).unwrap_err().to_string();
    assert!(again.contains("not finished"), "{again}");
    let mut done = Vec::new();
    while !engine.is_idle() {
        done.extend(engine.step().unwrap());
    }
    assert_eq!(
        (done[0].token_ids.len(), done[0].finish),
        (3, FinishReason::Length)
    );
}
