//! Episodes against the built-in server over loopback HTTP, with the fixtures'
//! random policy.

use super::*;
use crate::decoder::DecoderOptions;
use crate::environments::Environments;
use crate::stages::testing::{plan, policy};
use agentgym_jobs::config::Style;
use agentgym_jobs::episode::{Finish, Sequence};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_jobs::plan::Plan;
use agentgym_model::{ComputeOptions, ScoreRequest, score};

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
    // The server lives as long as the process of the test.
    std::mem::forget(environments);
    let policy = policy();
    let options = DecoderOptions {
        threads,
        rows: 8,
        cache_tokens: 100_000,
    };
    let mut rules = Rules {
        rounds_max: 3,
        prompt_tokens_max: 4000,
        response_tokens_max: 2000,
        context_tokens_max: 8000,
        turn_tokens_max: 12,
        deadline: Duration::from_secs(60),
        fault_retries: 1,
        gym: plan.config.actor_rollout_ref.agentgym.clone(),
    };
    change(&mut rules);
    Player {
        decoder: Decoder::start(&policy, options, &beat()).unwrap(),
        policy,
        policy_iteration: 4,
        environments: BTreeMap::from([("textcraft".to_owned(), environment)]),
        rules,
        beat: beat(),
        env_us: AtomicU64::new(0),
        taken_up: AtomicU64::new(0),
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

#[tokio::test(flavor = "multi_thread")]
async fn mask_and_spans_say_who_produced_what() {
    let player = player(&plan(&[]), 1, |_| {}).await;
    for sample in 0..4 {
        let episode = player.play(&request(3, sample)).await.unwrap();
        episode.check().unwrap();
        assert_eq!(
            (episode.outcome, episode.turns.len(), episode.success),
            (Outcome::Horizon, 3, false)
        );
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
            assert_eq!(player.policy.eos_ids().contains(ids.last().unwrap()), ended);
            let text = player
                .policy
                .tokenizer()
                .decode(&ids[..ids.len() - usize::from(ended)], true);
            assert_eq!(text, turn.text);
            assert!(ids.len() <= 12 && turn.policy_iteration == 4);
        }
        assert_eq!(
            end,
            sequence.token_ids.len(),
            "nothing follows the last reply"
        );
        assert_eq!(sequence.loss_mask, expected);
    }
}

/// Scoring a sequence gives the log-probs that it was sampled with, bit for bit.
fn assert_scored_as_sampled(player: &Player, sequence: &Sequence) {
    let requests = [ScoreRequest {
        token_ids: &sequence.token_ids,
        loss_mask: &sequence.loss_mask,
    }];
    let options = ComputeOptions {
        threads: 1,
        pack_tokens: 4096,
        checkpointed: false,
        beat: &|| {},
    };
    let scores = score(&player.policy, &requests, 1.0, &options).unwrap();
    assert_eq!(scores[0].log_probs, sequence.sampled_log_probs);
}

#[tokio::test(flavor = "multi_thread")]
async fn scoring_gives_the_sampled_log_probs_bit_for_bit() {
    let player = player(&plan(&[]), 2, |_| {}).await;
    let episode = player.play(&request(7, 1)).await.unwrap();
    let sequence = &episode.sequences[0];
    assert_scored_as_sampled(&player, sequence);
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
                .play(&request(i64::from(sample), sample))
                .await
                .unwrap()
        });
    }
    let mut together = playing.join_all().await;
    together.sort_by_key(|e| e.sample);
    for episode in together {
        let again = alone
            .play(&request(i64::from(episode.sample), episode.sample))
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
        let episode = player.play(&request(3, 0)).await.unwrap();
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
    let player = player(&plan(&[]), 1, |rules| rules.prompt_tokens_max = 10).await;
    let message = player.play(&request(3, 0)).await.unwrap_err().to_string();
    for part in ["textcraft_3", "data.max_prompt_length = 10", "tokens"] {
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_that_is_not_there_is_no_fault_of_the_episode() {
    let plan = plan(&[
        "actor_rollout_ref.agentgym.env_addr=http://127.0.0.1:9",
        "actor_rollout_ref.agentgym.max_retries=1",
    ]);
    let player = player(&plan, 1, |_| {}).await;
    let error = player.play(&request(3, 0)).await.unwrap_err();
    assert!(matches!(error, Error::Environment(_)), "{error}");
    assert!(error.to_string().contains("http://127.0.0.1:9"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_errors_faults_the_episode() {
    // A socket that greets every request with the environment's error form.
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
    let episode = player.play(&request(3, 0)).await.unwrap();
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

/// An environment's own limits are those of its episodes where they are the lower ones.
#[tokio::test(flavor = "multi_thread")]
async fn an_environment_may_have_nearer_limits() {
    for (limits, rounds, tokens) in [((2, 5), 2, 5), ((9, 900), 3, 12)] {
        let mut player = player(&plan(&[]), 2, |_| {}).await;
        let environment = player.environments.get_mut("textcraft").unwrap();
        (environment.rounds_max, environment.turn_tokens_max) = limits;
        let episode = player.play(&request(3, 1)).await.unwrap();
        assert_eq!(
            (episode.outcome, episode.turns.len()),
            (Outcome::Horizon, rounds)
        );
        let sampled = episode.turns.iter().map(|t| t.policy.1 - t.policy.0);
        assert_eq!(sampled.max(), Some(tokens));
    }
}

/// What the policy sees is the prompt and the last turns, put together from the
/// ids that are there; each id is trained on once, and scoring agrees.
#[tokio::test(flavor = "multi_thread")]
async fn a_limited_context_has_a_sequence_for_every_turn_beyond_it() {
    for limit in [1, 2] {
        let player = player(&plan(&[]), 2, |rules| {
            rules.gym.context_turns = Some(limit);
            rules.rounds_max = 5;
        })
        .await;
        let episode = player.play(&request(3, 1)).await.unwrap();
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
        let chat = player.policy.chat();
        let mut told = Vec::new();
        for (index, turn) in episode.turns.iter().enumerate() {
            assert_eq!(turn.sequence as usize, index.saturating_sub(limit));
            let own = ids(turn, (0, turn.policy.0));
            let before = told[index.saturating_sub(limit)..].concat();
            assert_eq!(own, [prompt.clone(), before].concat(), "turn {index}");
            let ended = turn.finish == Finish::Eos;
            let tokenizer = player.policy.tokenizer();
            let bridge = chat.observation_ids(tokenizer, ended, &turn.observation);
            told.push([ids(turn, turn.policy), bridge.unwrap()].concat());
        }
        let loss: usize = episode.sequences.iter().map(Sequence::loss_tokens).sum();
        let sampled: u32 = episode.turns.iter().map(|t| t.policy.1 - t.policy.0).sum();
        assert_eq!(loss, sampled as usize, "every sampled id counts once");
        for sequence in &episode.sequences {
            assert_scored_as_sampled(&player, sequence);
        }
    }
    // A window that is never left changes nothing.
    let play = async |limit| {
        let player = player(&plan(&[]), 1, |rules| rules.gym.context_turns = limit).await;
        player.play(&request(3, 2)).await.unwrap()
    };
    assert_eq!(play(Some(3)).await, play(None).await);
}

/// Every so many turns, or when the window is full, the policy sums up in its own
/// words. The summary is sampled and trained on where it ends a sequence; the next
/// one is the prompt, the summary as the policy's message and the last observation,
/// all of them ids that are there already, and scoring agrees.
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_ends_a_sequence_and_begins_the_next() {
    const ASK: &str = "Sum up.";
    for (turns, tokens, after) in [
        (Some(2), 2000, Some(vec![2, 4])),
        (Some(1), 2000, Some(vec![1, 2, 3, 4])),
        (None, 2000, Some(vec![])),
        // Room for a few replies of 12 tokens and what is said between them.
        (None, 130, None),
    ] {
        let player = player(&plan(&[]), 2, |rules| {
            rules.gym.context_turns = turns;
            rules.gym.summary = Some(Style::Read {
                name: "summary".to_owned(),
                text: ASK.to_owned(),
            });
            rules.response_tokens_max = tokens;
            rules.rounds_max = 5;
        })
        .await;
        let episode = player.play(&request(3, 1)).await.unwrap();
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
        let (chat, tokenizer) = (player.policy.chat(), player.policy.tokenizer());
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
            let ended = player.policy.eos_ids().contains(own.last().unwrap());
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
            assert_scored_as_sampled(&player, sequence);
        }
        // Its random numbers are its own: the same episode again, on one thread.
        let again = Player {
            decoder: Decoder::start(
                &player.policy,
                DecoderOptions {
                    threads: 1,
                    rows: 8,
                    cache_tokens: 100_000,
                },
                &beat(),
            )
            .unwrap(),
            ..player
        };
        assert_eq!(again.play(&request(3, 1)).await.unwrap(), episode);
    }
}

/// Possible actions are noted where somebody asks, the environment lists them
/// and they are not in its texts anyway.
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
        let episode = player.play(&request).await.unwrap();
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
