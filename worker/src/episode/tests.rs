//! Episodes against the built-in server over loopback HTTP, with the fixtures'
//! random policy.

use super::*;
use crate::Beat;
use crate::decoder::{Decoder, DecoderOptions};
use crate::environments::Environments;
use crate::stages::testing::{plan, policy};
use crate::turn_engine::TurnEngine;
use agentgym_jobs::config::{Opening, OpeningTurn, PromptText, Speaker};
use agentgym_jobs::episode::{Finish, Sequence, Task};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::trajectory::Trajectory;
use agentgym_model::{
    ComputeOptions, Message, Policy, PolicyText, Role, Sampling, ScoreRequest, score,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

mod calls;

fn beat() -> Beat {
    let part = PartId {
        iteration: 1,
        stage: Stage::Rollout,
        part: 0,
    };
    Beat::new(part, tokio::sync::broadcast::channel(16).0)
}

async fn player(plan: &Plan, threads: usize, change: impl FnOnce(&mut Rules)) -> Player {
    let environments = Environments::default();
    let environment = environments.open(plan, "textcraft").await.unwrap();
    // The server lives as long as the test process.
    std::mem::forget(environments);
    let options = DecoderOptions {
        threads,
        rows: 8,
        cache_tokens: 100_000,
    };
    Player {
        engine: TurnEngine::Own(Decoder::start(&policy(), options, &beat()).unwrap()),
        environments: BTreeMap::from([("textcraft".to_owned(), environment)]),
        ..player_of(plan, change)
    }
}

/// A player of the fixtures' policy that has no environment yet.
fn player_of(plan: &Plan, change: impl FnOnce(&mut Rules)) -> Player {
    let policy = policy();
    let mut rules = Rules {
        rounds_max: 3,
        prompt_tokens_max: 4000,
        response_tokens_max: 2000,
        context_tokens_max: 8000,
        turn_tokens_max: 12,
        deadline: Duration::from_secs(60),
        fault_retries: 1,
        leaves_out: false,
        journals_first: false,
        gym: plan.config.actor_rollout_ref.agentgym.clone(),
        records_cuts: true,
        records_entropies: true,
    };
    change(&mut rules);
    Player {
        engine: alone(&policy),
        text: policy.text().clone(),
        calling: BTreeMap::new(),
        policy_iteration: 4,
        environments: BTreeMap::new(),
        rules,
        beat: beat(),
        env_us: AtomicU64::new(0),
        gateway: Default::default(),
        meters: Default::default(),
        taken_up: AtomicU64::new(0),
        resumed: AtomicU64::new(0),
        cancel: CancellationToken::new(),
    }
}

impl Player {
    /// Plays an episode without recorded events.
    async fn begin(&self, request: &Request) -> Result<Episode> {
        self.play(request, &mut Tape::holding(&[])).await
    }
}

fn request(item_id: i64, sample: u32) -> Request {
    Request {
        task: Task {
            env: "textcraft".into(),
            item_id,
        },
        group: 0,
        sample,
        stream: [sample as u8; 32],
        sampling: Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            greedy: false,
        },
    }
}

/// One policy ends its turns, the other one samples until the token limit.
#[tokio::test(flavor = "multi_thread")]
async fn mask_and_spans_say_who_produced_what() {
    let player = player(&plan(&[]), 1, |_| {}).await;
    let mut ends = Vec::new();
    for player in [player, able_player(|_| {}).await] {
        for sample in 0..4 {
            let episode = player.begin(&request(3, sample)).await.unwrap();
            episode.check().unwrap();
            assert_ne!(episode.outcome, Outcome::EnvFault);
            let sequence = &episode.sequences[0];
            let mut expected = vec![false; sequence.token_ids.len()];
            let mut end = 0;
            for turn in &episode.turns {
                assert_eq!(turn.context.0 as usize, end, "turns follow each other");
                assert_eq!(turn.context.1, turn.policy.0);
                end = turn.policy.1 as usize;
                expected[turn.policy.0 as usize..end].fill(true);
                let ids = &sequence.token_ids[turn.policy.0 as usize..end];
                let ended = turn.finish == Finish::Eos;
                ends.push(ended);
                assert_eq!(player.text.eos_ids().contains(ids.last().unwrap()), ended);
                let text = player
                    .text
                    .tokenizer()
                    .decode(&ids[..ids.len() - usize::from(ended)], true);
                assert_eq!(text, turn.text);
                assert!(ids.len() <= player.rules.turn_tokens_max);
                assert_eq!(turn.policy_iteration, 4);
            }
            assert_eq!(
                end,
                sequence.token_ids.len(),
                "nothing follows the last reply"
            );
            assert_eq!(sequence.loss_mask, expected);
        }
    }
    assert!(ends.contains(&true) && ends.contains(&false), "{ends:?}");
}

/// Scoring a sequence gives the log-probs and entropies of its sampling, bit for bit.
fn assert_scored_as_sampled(sequence: &Sequence) {
    let requests = [ScoreRequest {
        token_ids: &sequence.token_ids,
        loss_mask: &sequence.loss_mask,
    }];
    let options = ComputeOptions {
        threads: 1,
        pack_tokens: 4096,
        beat: &|| {},
        ..Default::default()
    };
    let scores = score(&policy(), &requests, 1.0, &options).unwrap();
    assert_eq!(scores[0].log_probs, sequence.sampled_log_probs);
    assert_eq!(Some(&scores[0].entropies), sequence.entropies.as_ref());
}

#[tokio::test(flavor = "multi_thread")]
async fn scoring_gives_the_sampled_log_probs_and_entropies_bit_for_bit() {
    let player = player(&plan(&[]), 2, |_| {}).await;
    let episode = player.begin(&request(7, 1)).await.unwrap();
    let sequence = &episode.sequences[0];
    assert_scored_as_sampled(sequence);
}

/// Log-probs are those of the full distribution; the probability mass that a cut kept is recorded
/// beside them.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_cut_left_is_recorded_where_the_plan_knows_of_it() {
    let two = plan(&["actor_rollout_ref.agentgym.context_turns=1"]);
    let (now, before) = (
        player(&two, 2, |_| {}).await,
        player(&two, 2, |rules| rules.records_cuts = false).await,
    );
    let mut request = request(7, 1);
    let plain = now.begin(&request).await.unwrap();
    assert!(plain.sequences.iter().all(|s| s.log_kept_mass.is_none()));
    request.sampling.top_k = 20;
    let mut cut = now.begin(&request).await.unwrap();
    cut.check().unwrap();
    assert!(cut.sequences.len() > 1);
    for sequence in &mut cut.sequences {
        assert_scored_as_sampled(sequence);
        let masses = sequence.log_kept_mass.take().unwrap();
        for (mass, sampled) in masses.iter().zip(&sequence.loss_mask) {
            // Of the hundreds of ids of a random model, 20 hold only a part of the mass.
            let fits = if *sampled {
                (-4.0..-0.1).contains(mass)
            } else {
                *mass == 0.0
            };
            assert!(fits, "{mass} {sampled}");
        }
    }
    assert_eq!(before.begin(&request).await.unwrap(), cut);
}

#[tokio::test(flavor = "multi_thread")]
async fn company_and_threads_do_not_show() {
    let alone = player(&plan(&[]), 1, |_| {}).await;
    let crowd = Arc::new(player(&plan(&[]), 2, |_| {}).await);
    let mut playing = tokio::task::JoinSet::new();
    for sample in 0..6 {
        let crowd = Arc::clone(&crowd);
        playing.spawn(async move {
            crowd
                .begin(&request(i64::from(sample), sample))
                .await
                .unwrap()
        });
    }
    let mut together = playing.join_all().await;
    together.sort_by_key(|e| e.sample);
    for episode in together {
        let again = alone
            .begin(&request(i64::from(episode.sample), episode.sample))
            .await
            .unwrap();
        assert_eq!(again, episode);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_end_an_episode_before_they_are_exceeded() {
    for response_tokens_max in [1, 5, 40, 90] {
        let player = player(&plan(&[]), 1, |rules| {
            rules.response_tokens_max = response_tokens_max;
            rules.rounds_max = 50;
        })
        .await;
        let episode = player.begin(&request(3, 0)).await.unwrap();
        episode.check().unwrap();
        assert_eq!(episode.outcome, Outcome::Length);
        let response = episode.sequences[0].token_ids.len() - episode.turns[0].context.1 as usize;
        assert!(
            response <= response_tokens_max,
            "{response} of {response_tokens_max}"
        );
        assert!(
            *episode.sequences[0].loss_mask.last().unwrap(),
            "no observation without room for a reply"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_does_not_fit_names_key_task_and_sizes() {
    for (context, part) in [
        (
            4000,
            "data.max_prompt_length = 10 and data.max_response_length = 20",
        ),
        // Too long even to be encoded in full.
        (25, "more than 25 tokens"),
    ] {
        let player = player(&plan(&[]), 1, |rules| {
            (rules.prompt_tokens_max, rules.response_tokens_max) = (10, 20);
            rules.context_tokens_max = context;
        })
        .await;
        let message = player.begin(&request(3, 0)).await.unwrap_err().to_string();
        for part in ["textcraft_3", part, "tokens"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_first_prompt_takes_its_room_from_the_response() {
    let play = async |change: &(dyn Fn(&mut Rules) + Sync)| {
        let player = player(&plan(&[]), 1, |rules| {
            rules.rounds_max = 50;
            change(rules);
        })
        .await;
        player.begin(&request(3, 0)).await.unwrap()
    };
    let prompt = play(&|rules| rules.rounds_max = 1).await.turns[0].context.1 as usize;
    let episode = play(&|rules| {
        (rules.prompt_tokens_max, rules.response_tokens_max) = (10, prompt + 50);
    })
    .await;
    assert_eq!(episode.outcome, Outcome::Length);
    let tokens = episode.sequences[0].token_ids.len();
    assert!(
        tokens > prompt && tokens <= 10 + prompt + 50,
        "{tokens}, {prompt} of them the prompt"
    );
    assert_eq!(episode.turns[0].context.1 as usize, prompt);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_that_is_not_there_is_no_fault_of_the_episode() {
    let plan = plan(&[
        "actor_rollout_ref.agentgym.env_addr=http://127.0.0.1:9",
        "actor_rollout_ref.agentgym.max_retries=1",
    ]);
    let player = player(&plan, 1, |_| {}).await;
    let error = player.begin(&request(3, 0)).await.unwrap_err();
    assert!(matches!(error, Error::Environment(_)), "{error}");
    assert!(error.to_string().contains("http://127.0.0.1:9"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_errors_faults_the_episode() {
    // A socket that answers every request with the environment's error form.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = socket.read(&mut request).await;
                let body = r#"{"error": "out of order"}"#;
                let head =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
                let reply = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                let _ = socket.write_all(reply.as_bytes()).await;
            });
        }
    });
    let plan = plan(&[&format!("actor_rollout_ref.agentgym.env_addr={url}")]);
    let player = player(&plan, 1, |_| {}).await;
    let episode = player.begin(&request(3, 0)).await.unwrap();
    assert_eq!(
        (episode.outcome, episode.usable()),
        (Outcome::EnvFault, false)
    );
    let fault = episode.fault.unwrap();
    assert!(
        fault.contains("out of order") && fault.contains(&url),
        "{fault}"
    );
}

/// An environment's own limits apply to its episodes if they are lower.
#[tokio::test(flavor = "multi_thread")]
async fn an_environment_may_have_nearer_limits() {
    for (limits, rounds, tokens) in [((2, 5), 2, 5), ((9, 900), 3, 12)] {
        let mut player = player(&plan(&[]), 2, |_| {}).await;
        let environment = player.environments.get_mut("textcraft").unwrap();
        (environment.rounds_max, environment.turn_tokens_max) = limits;
        let episode = player.begin(&request(3, 1)).await.unwrap();
        assert_eq!(
            (episode.outcome, episode.turns.len()),
            (Outcome::Horizon, rounds)
        );
        let sampled = episode.turns.iter().map(|t| t.policy.1 - t.policy.0);
        assert_eq!(sampled.max(), Some(tokens));
    }
}

/// The policy sees the prompt and the last turns, assembled from existing ids; each id is trained
/// on once, and scoring agrees.
#[tokio::test(flavor = "multi_thread")]
async fn a_limited_context_has_a_sequence_for_every_turn_beyond_it() {
    for limit in [1, 2] {
        let player = player(&plan(&[]), 2, |rules| {
            rules.gym.context_turns = Some(limit);
            rules.rounds_max = 5;
        })
        .await;
        let episode = player.begin(&request(3, 1)).await.unwrap();
        episode.check().unwrap();
        assert_eq!(
            (episode.outcome, episode.turns.len()),
            (Outcome::Horizon, 5)
        );
        assert_eq!(episode.sequences.len(), 5 - limit);
        let ids = |turn: &Turn, (from, to): (u32, u32)| {
            episode.sequences[turn.sequence as usize].token_ids[from as usize..to as usize].to_vec()
        };
        let first = &episode.turns[0];
        let prompt = ids(first, first.context);
        let chat = player.text.chat();
        let mut told = Vec::new();
        for (index, turn) in episode.turns.iter().enumerate() {
            assert_eq!(turn.sequence as usize, index.saturating_sub(limit));
            let own = ids(turn, (0, turn.policy.0));
            let before = told[index.saturating_sub(limit)..].concat();
            assert_eq!(own, [prompt.clone(), before].concat(), "turn {index}");
            let ended = turn.finish == Finish::Eos;
            let tokenizer = player.text.tokenizer();
            let bridge = chat.observation_ids(tokenizer, ended, &turn.observation);
            told.push([ids(turn, turn.policy), bridge.unwrap()].concat());
        }
        let loss: usize = episode.sequences.iter().map(Sequence::loss_tokens).sum();
        let sampled: u32 = episode.turns.iter().map(|t| t.policy.1 - t.policy.0).sum();
        assert_eq!(loss, sampled as usize, "every sampled id counts once");
        for sequence in &episode.sequences {
            assert_scored_as_sampled(sequence);
        }
    }
    // A window that is never exceeded changes nothing.
    let play = async |limit| {
        let player = player(&plan(&[]), 1, |rules| rules.gym.context_turns = limit).await;
        player.begin(&request(3, 2)).await.unwrap()
    };
    assert_eq!(play(Some(3)).await, play(None).await);
}

/// Every reply begins with the prefix: the environment and later turns have it, and it is not trained
/// on. A demonstration with the same replies has the same ids and mask.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_prefix_is_said_for_the_policy() {
    const PREFIX: &str = "Action:";
    for limit in [None, Some(1)] {
        let player = able_player(|rules| {
            rules.gym.reply_prefix = Some(PREFIX.to_owned());
            rules.gym.context_turns = limit;
        })
        .await;
        let tokenizer = player.text.tokenizer();
        let prefix = tokenizer.encode_ordinary(PREFIX).unwrap();
        let mut request = request(2, 1);
        request.sampling.greedy = true;
        let episode = player.begin(&request).await.unwrap();
        episode.check().unwrap();
        assert!(episode.turns.len() > 1);
        for (index, turn) in episode.turns.iter().enumerate() {
            let sequence = &episode.sequences[turn.sequence as usize];
            let (start, end) = (turn.policy.0 as usize, turn.policy.1 as usize);
            let before = &sequence.token_ids[..start];
            assert!(before.ends_with(&prefix), "turn {index}");
            assert!(sequence.loss_mask[start - prefix.len()..start] == *vec![false; prefix.len()]);
            assert!(
                sequence.loss_mask[start..end]
                    .iter()
                    .all(|sampled| *sampled)
            );
            assert!(turn.text.starts_with(PREFIX), "{:?}", turn.text);
            // Earlier replies are context as they were said: prefix and sampled ids.
            for earlier in
                &episode.turns[limit.map_or(0, |limit| index.saturating_sub(limit))..index]
            {
                let of = &episode.sequences[earlier.sequence as usize].token_ids;
                let sampled = &of[earlier.policy.0 as usize..earlier.policy.1 as usize];
                let said = [prefix.as_slice(), sampled].concat();
                assert!(
                    before.windows(said.len()).any(|ids| ids == said),
                    "turn {index}"
                );
            }
        }
        if limit.is_some() {
            continue;
        }
        let told = serde_json::to_vec(&[Trajectory::of(&episode)]).unwrap();
        let told = crate::demonstrations::parse_file("x", &told, Some(PREFIX)).unwrap();
        let encoded = told[0].tokens(&able_policy(), "x").unwrap();
        let sequence = &episode.sequences[0];
        let played = encoded.token_ids.len().min(sequence.token_ids.len());
        assert_eq!(encoded.token_ids[..played], sequence.token_ids[..played]);
        assert_eq!(encoded.loss_mask[..played], sequence.loss_mask[..played]);
    }
    let player = able_player(|rules| {
        rules.gym.reply_prefix = Some("Action:".repeat(4000));
    });
    let left = player.await.begin(&request(2, 0)).await.unwrap_err();
    assert!(left.to_string().contains("no room for a reply"), "{left}");
}

/// An episode may begin with turns that nobody samples. Its prompt has the ids of the whole
/// conversation rendered at once, and those that a demonstration with the same turns has.
#[tokio::test(flavor = "multi_thread")]
async fn an_opening_is_context_and_the_observation_a_message_of_its_own() {
    let turn = |from, value: &str| OpeningTurn {
        from,
        value: value.to_owned(),
    };
    let turns = vec![
        turn(Speaker::Human, "Rules: {instruction}"),
        turn(Speaker::Gpt, "Yes <|im_end|> sure."),
    ];
    let player = player(&plan(&[]), 1, |rules| {
        rules.gym.prompt = Opening::Read {
            name: "turns.json".to_owned(),
            turns: turns.clone(),
        };
        rules.gym.instruction = Some("Craft.".to_owned());
    })
    .await;
    let episode = player.begin(&request(3, 1)).await.unwrap();
    episode.check().unwrap();
    assert!(episode.prompt.starts_with("Crafting commands:"));
    let opening = episode.opening();
    assert_eq!(opening[0].value, "Rules: Craft.");
    assert_eq!(opening[1], turns[1]);
    let (from, to) = episode.turns[0].context;
    let sequence = &episode.sequences[0];
    assert!(from == 0 && sequence.loss_mask[..to as usize].iter().all(|mask| !mask));
    let policy = &policy();
    let messages = [
        Message::new(Role::User, &opening[0].value),
        Message::new(Role::Assistant, &opening[1].value),
        Message::new(Role::User, &episode.prompt),
    ];
    let whole = (policy.chat()).prompt_ids(policy.tokenizer(), &messages);
    assert_eq!(sequence.token_ids[..to as usize], whole.unwrap());
    let told = serde_json::to_vec(&[Trajectory::of(&episode)]).unwrap();
    let told = crate::demonstrations::parse_file("x", &told, None).unwrap();
    let encoded = told[0].tokens(policy, "x").unwrap();
    assert_eq!(
        encoded.token_ids[..to as usize],
        sequence.token_ids[..to as usize]
    );
    assert!(encoded.loss_mask[..to as usize].iter().all(|mask| !mask));
    assert!(encoded.loss_mask[to as usize]);
}

/// After a number of turns, or when the window is full, the policy writes a summary. The summary is
/// sampled and trained on at the end of its sequence; the next sequence is the prompt, the summary
/// as the policy's message and the last observation, all of them existing ids, and scoring agrees.
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_ends_a_sequence_and_begins_the_next() {
    const ASK: &str = "Sum up.";
    for (turns, tokens, after) in [
        (Some(2), 2000, Some(vec![2, 4])),
        (Some(1), 2000, Some(vec![1, 2, 3, 4])),
        (None, 2000, Some(vec![])),
        // Room for a few replies of 12 tokens and the messages between them.
        (None, 130, None),
    ] {
        let player = player(&plan(&[]), 2, |rules| {
            rules.gym.context_turns = turns;
            rules.gym.summary = Some(PromptText::Read {
                name: "summary".to_owned(),
                text: ASK.to_owned(),
            });
            rules.response_tokens_max = tokens;
            rules.rounds_max = 5;
        })
        .await;
        let episode = player.begin(&request(3, 1)).await.unwrap();
        episode.check().unwrap();
        let summaries = episode.summaries();
        let found: Vec<u32> = summaries.iter().map(|s| s.turns).collect();
        match after {
            Some(expected) => {
                assert_eq!((found, episode.turns.len()), (expected, 5));
                assert_eq!(episode.outcome, Outcome::Horizon);
            }
            None => assert!(!found.is_empty(), "the window is full at last"),
        }
        let (chat, tokenizer) = (player.text.chat(), player.text.tokenizer());
        let ids = |sequence: u32, (from, to): (u32, u32)| {
            episode.sequences[sequence as usize].token_ids[from as usize..to as usize].to_vec()
        };
        let prompt = ids(0, episode.turns[0].context);
        let mut sampled: u32 = episode.turns.iter().map(|t| t.policy.1 - t.policy.0).sum();
        for (index, summary) in summaries.iter().enumerate() {
            assert_eq!(summary.sequence as usize, index);
            let last = &episode.turns[summary.turns as usize - 1];
            assert_eq!(last.sequence, summary.sequence);
            let asked = format!("{}\n\n{ASK}", last.observation);
            let ended = last.finish == Finish::Eos;
            let asked = chat.observation_ids(tokenizer, ended, &asked).unwrap();
            assert_eq!(
                ids(summary.sequence, (last.policy.1, summary.policy.0)),
                asked
            );
            let own = ids(summary.sequence, summary.policy);
            let whole = &episode.sequences[index];
            assert_eq!(whole.token_ids.len(), summary.policy.1 as usize);
            sampled += own.len() as u32;
            let ended = player.text.eos_ids().contains(own.last().unwrap());
            let text = tokenizer.decode(&own[..own.len() - usize::from(ended)], true);
            assert_eq!(summary.text, text);
            let Some(next) = episode.turns.get(summary.turns as usize) else {
                continue;
            };
            let seen = chat.observation_ids(tokenizer, ended, &last.observation);
            let expected = [prompt.clone(), own, seen.unwrap()].concat();
            assert_eq!(ids(next.sequence, (0, next.policy.0)), expected);
            assert_eq!(next.sequence, summary.sequence + 1);
        }
        let loss: usize = episode.sequences.iter().map(Sequence::loss_tokens).sum();
        assert_eq!(loss, sampled as usize, "every sampled id counts once");
        for sequence in &episode.sequences {
            assert!(sequence.token_ids.len() <= prompt.len() + tokens);
            assert_scored_as_sampled(sequence);
        }
        // Its random numbers are its own: the same episode again, on one thread.
        let again = Player {
            engine: alone(&policy()),
            ..player
        };
        assert_eq!(again.begin(&request(3, 1)).await.unwrap(), episode);
    }
}

/// The model that sometimes solves such tasks, so its actions change the world.
async fn able_player(change: impl FnOnce(&mut Rules)) -> Player {
    let plan = plan(&["actor_rollout_ref.agentgym.env_addr=builtin:worlds?depths=1-2&lines=4-8"]);
    let mut player = player(&plan, 1, |rules| {
        rules.rounds_max = 5;
        rules.turn_tokens_max = 24;
        change(rules);
    })
    .await;
    player.text = able_policy().text().clone();
    afresh(player)
}

fn able_policy() -> Policy {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/base");
    Policy::load(&folder, &agentgym_model::Device::cpu()).unwrap()
}

/// A folder may name ends of a message that its template does not write.
#[tokio::test(flavor = "multi_thread")]
async fn behind_an_end_that_is_not_the_templates_its_own_follows() {
    let mut player = able_player(|_| {}).await;
    let span = |turn: &Turn| turn.policy.0 as usize..turn.policy.1 as usize;
    let usual = player.begin(&request(2, 0)).await.unwrap();
    let other = usual.sequences[0].token_ids[span(&usual.turns[0])][1];
    let folder = tempfile::tempdir().unwrap();
    able_policy().save(folder.path()).unwrap();
    let said = format!("{{\"eos_token_id\": [{other}]}}");
    std::fs::write(folder.path().join("generation_config.json"), said).unwrap();
    player.text = PolicyText::load(folder.path()).unwrap();
    let episode = afresh(player).begin(&request(2, 0)).await.unwrap();
    let (text, sequence) = (
        PolicyText::load(folder.path()).unwrap(),
        &episode.sequences[0],
    );
    let end = text.chat().end_of_turn_id(text.tokenizer()).unwrap();
    assert!(text.eos_ids().contains(&end) && episode.turns.len() > 1);
    for turn in &episode.turns[..episode.turns.len() - 1] {
        let own = span(turn);
        assert_eq!(turn.finish, Finish::Eos);
        assert_eq!(sequence.token_ids[own.end - 1], other);
        let seen = text
            .chat()
            .observation_ids(text.tokenizer(), false, &turn.observation);
        let seen = seen.unwrap();
        assert_eq!(seen[0], end);
        assert!(sequence.token_ids[own.end..].starts_with(&seen));
        assert!(!sequence.loss_mask[own.end..own.end + seen.len()].contains(&true));
    }
    let mut player = able_player(|_| {}).await;
    player.text = text.of_older_plans();
    assert_eq!(player.text.eos_ids(), [other]);
    let older = player.begin(&request(2, 0)).await.unwrap();
    let own = span(&older.turns[0]);
    assert_eq!(
        older.sequences[0].token_ids[own.clone()],
        sequence.token_ids[own.clone()]
    );
    assert_ne!(
        older.sequences[0].token_ids[own.end], end,
        "plans from before play as they did"
    );
}

/// Engines on one thread that have sampled nothing yet.
fn alone(policy: &Policy) -> TurnEngine {
    let options = DecoderOptions {
        threads: 1,
        rows: 8,
        cache_tokens: 100_000,
    };
    let policy = Arc::new(policy.clone());
    TurnEngine::Own(Decoder::start(&policy, options, &beat()).unwrap())
}

/// The same player with engines that have sampled nothing yet.
fn afresh(player: Player) -> Player {
    Player {
        engine: alone(&able_policy()),
        taken_up: AtomicU64::new(0),
        resumed: AtomicU64::new(0),
        ..player
    }
}

fn tokens(events: &[Event]) -> u64 {
    events.iter().map(Event::sampled_tokens).sum()
}

/// Interrupted at any point, the episode ends with the same bytes: recorded events are not sampled
/// again, and later events are recorded as they would have been.
#[tokio::test(flavor = "multi_thread")]
async fn an_episode_goes_on_from_wherever_its_tape_ends() {
    let plain: fn(&mut Rules) = |_| {};
    let limited: fn(&mut Rules) = |rules| rules.gym.context_turns = Some(1);
    let noting: fn(&mut Rules) = |rules| rules.gym.record_actions = true;
    let summing: fn(&mut Rules) = |rules| {
        rules.gym.context_turns = Some(2);
        rules.gym.summary = Some(PromptText::Read {
            name: "summary".to_owned(),
            text: "Sum up.".to_owned(),
        });
    };
    let tight: fn(&mut Rules) = |rules| rules.response_tokens_max = 60;
    let begun: fn(&mut Rules) = |rules| {
        rules.gym.reply_prefix = Some("Action:".to_owned());
        rules.gym.context_turns = Some(2);
    };
    let mut rewards = Vec::new();
    for (what, change) in [
        ("plain", plain),
        ("limited", limited),
        ("noting", noting),
        ("summing", summing),
        ("tight", tight),
        ("begun", begun),
    ] {
        for sample in 0..3 {
            let mut player = afresh(able_player(change).await);
            let mut request = request(2, sample);
            request.sampling.top_k = if sample == 2 { 20 } else { 0 };
            let mut tape = Tape::holding(&[]);
            let whole = player.play(&request, &mut tape).await.unwrap();
            let (events, _) = tape.news();
            rewards.push(whole.reward);
            assert_eq!(player.engine.sampled_tokens(), tokens(&events), "{what}");
            for cut in 0..=events.len() {
                player = afresh(player);
                let mut tape = Tape::holding(&events[..cut]);
                let again = player.play(&request, &mut tape).await.unwrap();
                assert_eq!(again, whole, "{what}, cut before event {cut}");
                assert_eq!(tape.news(), (events[cut..].to_vec(), 0), "{what} {cut}");
                assert_eq!(player.engine.sampled_tokens(), tokens(&events[cut..]));
                // A session is opened only if a call is still needed.
                let resumed = player.resumed.load(Ordering::Relaxed);
                let asks = |e: &Event| matches!(e, Event::Step(_) | Event::Actions(_));
                let expected = cut > 0 && events[cut..].iter().any(asks);
                assert!(resumed <= 1 && (resumed == 1 || !expected), "{what} {cut}");
            }
        }
    }
    assert!(
        rewards.contains(&1.0) && rewards.contains(&0.0),
        "{rewards:?}"
    );
}

/// A wrong record costs work, never a byte of the result.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_record_is_played_over() {
    let mut player = able_player(|_| {}).await;
    let request = request(2, 1);
    let mut tape = Tape::holding(&[]);
    let whole = player.play(&request, &mut tape).await.unwrap();
    let (events, _) = tape.news();
    let at = |want: fn(&Event) -> bool| events.iter().position(want).unwrap();
    let sent = at(|e| matches!(e, Event::Step(step) if !step.local));
    let said = at(|e| matches!(e, Event::MessageWithEntropies(m, _) if m.number == 1));
    assert!(sent + 1 < events.len() && said + 1 < events.len());
    let with = |index: usize, change: &dyn Fn(&mut Event)| {
        let mut events = events[..events.len() - 2].to_vec();
        change(&mut events[index]);
        events
    };
    let step = |change: fn(&mut Step)| {
        with(sent, &|event| match event {
            Event::Step(step) => change(step),
            other => panic!("{other:?}"),
        })
    };
    let message = |change: fn(&mut agentgym_jobs::journal::RecordedMessage)| {
        with(said, &|event| match event {
            Event::MessageWithEntropies(message, _) => change(message),
            other => panic!("{other:?}"),
        })
    };
    let mut dropped = events[..events.len() - 2].to_vec();
    dropped.drain(said..said + 2);
    for (what, record, anew) in [
        ("a reward", step(|s| s.reward += 1.0), 1),
        ("an answer", step(|s| s.observation.push('!')), 1),
        (
            "a first text",
            with(0, &|e| *e = Event::Opened("?".into())),
            1,
        ),
        ("an id", message(|m| m.token_ids[0] = u32::MAX), 0),
        ("a log-prob less", message(|m| m.log_probs.truncate(0)), 0),
        (
            "an entropy less",
            with(said, &|event| match event {
                Event::MessageWithEntropies(_, entropies) => entropies.truncate(1),
                other => panic!("{other:?}"),
            }),
            0,
        ),
        (
            "no entropies",
            with(said, &|event| {
                if let Event::MessageWithEntropies(message, _) = event.clone() {
                    *event = Event::Message(message);
                }
            }),
            0,
        ),
        ("no ids", message(|m| m.token_ids.clear()), 0),
        ("a number", message(|m| m.number += 1), 0),
        ("an order", with(said, &|e| *e = Event::Over), 0),
        ("a turn less", dropped, 0),
    ] {
        player = afresh(player);
        let mut tape = Tape::holding(&record);
        let again = player.play(&request, &mut tape).await.unwrap();
        assert_eq!(again, whole, "{what}");
        assert_eq!(tape.news().1, anew, "{what}");
        assert!(player.engine.sampled_tokens() > 0, "{what}");
    }
}

/// If an environment declares that replays differ, an open episode starts over, and a complete one
/// is rebuilt from its record alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_environment_without_replay_plays_open_episodes_anew() {
    let mut player = able_player(|_| {}).await;
    let environment = player.environments.get_mut("textcraft").unwrap();
    environment.spec = Box::leak(Box::new(agentgym_envs::spec::EnvSpec {
        replay: agentgym_envs::spec::Replay::None,
        ..environment.spec.clone()
    }));
    let request = request(2, 0);
    let mut tape = Tape::holding(&[]);
    let whole = player.play(&request, &mut tape).await.unwrap();
    let (events, _) = tape.news();
    for (cut, anew) in [(events.len(), 0), (events.len() - 1, 0), (4, 1)] {
        player = afresh(player);
        let mut tape = Tape::holding(&events[..cut]);
        assert_eq!(player.play(&request, &mut tape).await.unwrap(), whole);
        let sampled = if anew == 1 { tokens(&events) } else { 0 };
        assert_eq!(
            (tape.news().1, player.engine.sampled_tokens()),
            (anew, sampled)
        );
    }
}

/// The policy's own time does not count for the environment: only calls do.
#[tokio::test]
async fn the_deadline_is_of_environment_calls_alone() {
    const S: Duration = Duration::from_secs(1);
    let player = player(&plan(&[]), 1, |rules| rules.deadline = 5 * S).await;
    tokio::time::pause();
    let mut clock = EnvironmentClock::new(&player, "worlds", "http://there");
    for _ in 0..2 {
        clock
            .call("take a step", tokio::time::sleep(2 * S))
            .await
            .ok()
            .unwrap();
        // The policy computes, or waits for its row.
        tokio::time::sleep(100 * S).await;
    }
    clock.is_at("http://elsewhere");
    let begun = tokio::time::Instant::now();
    let Err(Interruption::Fault(fault)) = clock
        .call("take a step", std::future::pending::<()>())
        .await
    else {
        panic!("it was waited for");
    };
    // Timers are accurate to a millisecond.
    assert_eq!(begun.elapsed().as_secs_f64().round(), 1.0);
    for part in [
        "`worlds` at http://elsewhere",
        "take a step",
        "after 1.0 s",
        "2 calls before it took 4.0 s",
    ] {
        assert!(fault.contains(part), "{fault}");
    }
}

/// A server that listens and never answers is cut off, and the error names it.
#[tokio::test(flavor = "multi_thread")]
async fn an_environment_that_hangs_is_cut_off_at_the_deadline() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let plan = plan(&[&format!("actor_rollout_ref.agentgym.env_addr={url}")]);
    let player = player(&plan, 1, |rules| {
        rules.deadline = Duration::from_millis(400)
    })
    .await;
    let fault = player.begin(&request(3, 0)).await.unwrap().fault.unwrap();
    for part in [
        "`textcraft`",
        &url,
        "open a session",
        "0.4 s",
        "rollout.episode_deadline_s",
    ] {
        assert!(fault.contains(part), "{fault}");
    }
}

/// Possible actions are recorded if the config asks for it, the environment lists them, and its
/// texts do not already contain them.
#[tokio::test(flavor = "multi_thread")]
async fn possible_actions_are_noted_on_demand() {
    for (env, asked, noted) in [
        ("maze", false, false),
        ("maze", true, true),
        ("textcraft", true, false),
    ] {
        let address = match env {
            "textcraft" => "builtin".to_owned(),
            other => format!("builtin:{other}"),
        };
        let key = "actor_rollout_ref.agentgym";
        let plan = plan(&[
            &format!("{key}.envs={{{env}: {{task_name: {env}, env_addr: \"{address}\"}}}}"),
            &format!("{key}.record_actions={asked}"),
        ]);
        let environments = Environments::default();
        let mut player = player(&plan, 1, |rules| rules.rounds_max = 1).await;
        let environment = environments.open(&plan, env).await.unwrap();
        player.environments.insert(env.to_owned(), environment);
        let mut request = request(4, 0);
        request.task.env = env.to_owned();
        let episode = player.begin(&request).await.unwrap();
        let listed = episode.available_actions();
        assert_eq!(
            listed.len(),
            if noted { episode.turns.len() } else { 0 },
            "{env}"
        );
        assert_eq!(
            episode.extra.is_empty(),
            !noted,
            "no byte where nobody asks"
        );
        if noted {
            let first = listed[0].as_ref().unwrap();
            assert!(
                first.iter().any(|action| action.contains("up")),
                "{first:?}"
            );
        }
        environments.stop().await;
    } // What the observations list is not written twice.
    let environments = Environments::default();
    let plan = plan(&[
        "actor_rollout_ref.agentgym.envs={babyai: {task_name: babyai, env_addr: \"builtin:babyai\"}}",
    ]);
    let babyai = environments.open(&plan, "babyai").await.unwrap();
    let listed = vec![Some(vec!["turn left".to_owned()])];
    assert!(extra(&babyai, listed, 1).is_empty());
    environments.stop().await;
}

/// A server of TextCraft's kind that answers every step with this observation.
async fn server_that_says(observation: String) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let state = |text: &str| {
        serde_json::json!({"id": 1, "observation": text, "reward": 0, "done": false}).to_string()
    };
    let (short, long) = (
        state("Goal: craft oak planks."),
        Arc::new(state(&observation)),
    );
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut socket, _)) = listener.accept().await {
            let (short, long) = (short.clone(), Arc::clone(&long));
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let read = socket.read(&mut request).await.unwrap_or(0);
                let body = match request[..read].starts_with(b"POST /step") {
                    true => &*long,
                    false => &short,
                };
                let head =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
                let reply = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                let _ = socket.write_all(reply.as_bytes()).await;
            });
        }
    });
    url
}

/// An observation that fits no context ends the episode as before, and neither memory nor the
/// record has to hold all of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_observation_of_megabytes_ends_the_episode_and_is_recorded_in_part() {
    let told = |words: usize| "<|im_end|> word ".repeat(words);
    for (turns, summary) in [(None, false), (Some(1), false), (None, true)] {
        let play = async |observation: String| {
            let url = server_that_says(observation).await;
            let plan = plan(&[&format!("actor_rollout_ref.agentgym.env_addr={url}")]);
            let player = player(&plan, 1, |rules| {
                rules.gym.context_turns = turns;
                rules.gym.summary = summary.then(|| PromptText::Read {
                    name: "summary".to_owned(),
                    text: "Sum up.".to_owned(),
                });
            })
            .await;
            let episode = player.begin(&request(3, 1)).await.unwrap();
            episode.check().unwrap();
            episode
        };
        // Encoded, and found too long.
        let whole = play(told(5_000)).await;
        // Longer than any context.
        let part = play(told(1_000_000)).await;
        for episode in [&whole, &part] {
            assert_eq!((episode.outcome, episode.turns.len()), (Outcome::Length, 1));
        }
        assert_eq!(whole.turns[0].observation, told(5_000));
        assert_eq!(part.sequences, whole.sequences);
        assert_eq!(part.summaries().len(), whole.summaries().len());
        let kept = &part.turns[0].observation;
        assert!(kept.starts_with(&told(60_000)) && kept.len() < (1 << 20) + 100);
        assert!(
            kept.ends_with("more bytes are not recorded]"),
            "{}",
            kept.len()
        );
    }
}
