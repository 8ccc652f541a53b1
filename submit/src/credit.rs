//! `credit RUN N [--episode K]`: why each token of an episode trains with its advantage, as a
//! formula with its numbers. Everything is computed anew from the plan, the episodes and their
//! log-probs by the functions of the stages; `batch.bin` is then only compared with the result.
//! AgentEvol keeps or leaves whole episodes, and DPO weighs pairs: for these it shows the filter's
//! verdict and the margin.

use crate::cli::{CreditArgs, Global};
use crate::runs::{COMMIT, RunView};
use crate::{Error, Result, text};
use agentgym_jobs::artifact_names;
use agentgym_jobs::config::{Pipeline, Threshold};
use agentgym_jobs::pipeline::{BASE_PART, Stage, batch_of, parts, policy_of, reference_of};
use agentgym_jobs::trajectory::Lineage;
use agentgym_model::{Adapter, Device, Policy};
use agentgym_record::credit::{Difference, EpisodeCredit, EpisodeLine, PlayedIteration};
use agentgym_record::filter::{Candidate, Fate, Pool, candidates};
use agentgym_record::iteration::{Iteration, batch};
use agentgym_storage::Manifest;
use agentgym_worker::stages::{Margin, margin};
use serde::Serialize;

/// Differences to the recorded batch that are listed.
const DIFFERENCES_MAX: usize = 20;

/// Whether the recorded batch is the computed one.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "compared", rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum Compared {
    /// The batch is not committed yet.
    #[serde(rename = "not_committed")]
    NotYet,
    /// Bit for bit.
    Equal,
    /// It is not.
    Differs {
        #[cfg_attr(test, schemars(with = "Vec<crate::documents::testing::Object>"))]
        differences: Vec<Difference>,
    },
}

/// What `credit` answers for each kind of run.
#[derive(Serialize)]
#[serde(untagged)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum CreditAnswer {
    /// Of one episode.
    Episode {
        #[serde(flatten)]
        #[cfg_attr(test, schemars(with = "crate::documents::testing::EpisodeCredit"))]
        credit: Box<EpisodeCredit>,
        batch: Compared,
    },
    /// Of all.
    Episodes {
        #[cfg_attr(test, schemars(with = "Vec<crate::documents::testing::EpisodeLine>"))]
        episodes: Vec<EpisodeLine>,
        batch: Compared,
    },
    /// Of AgentEvol's filter.
    Candidates {
        #[cfg_attr(test, schemars(with = "Vec<crate::documents::testing::Object>"))]
        candidates: Vec<Candidate>,
        #[cfg_attr(test, schemars(with = "serde_json::Value"))]
        threshold: Option<Threshold>,
        max_length: usize,
        lineage_equal: Option<bool>,
    },
    /// Of a preference run.
    Pair {
        pair: usize,
        #[cfg_attr(test, schemars(with = "crate::documents::testing::Object"))]
        before: Box<Margin>,
        #[cfg_attr(test, schemars(with = "crate::documents::testing::Object"))]
        after: Box<Margin>,
    },
}

/// `credit RUN N [--episode K]`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CreditDocument {
    run: String,
    iteration: u32,
    #[serde(flatten)]
    answer: CreditAnswer,
}

/// Runs the command.
pub(crate) async fn credit(view: &RunView, args: &CreditArgs, global: &Global) -> Result<()> {
    let n = args.iteration;
    view.iteration_parts(n)?;
    match view.plan.config.run.pipeline {
        Pipeline::Rl if n > 0 => of_tokens(view, args, global).await,
        Pipeline::AgentEvol if n > 0 => of_candidates(view, args, global).await,
        _ if n == 0 && view.plan.dpo_parts() > 0 => of_pair(view, args, global).await,
        _ => Err(Error::Missing(format!(
            "iteration {n} of run {} gives no credit to episodes; ask for an iteration from 1 to {}",
            view.plan.run, view.plan.iterations
        ))),
    }
}

async fn of_tokens(view: &RunView, args: &CreditArgs, global: &Global) -> Result<()> {
    let n = args.iteration;
    let played = played(view, n).await?;
    let compared = compare(view, n, &played).await?;
    match &args.episode {
        Some(episode) => {
            let (group, sample) = place(view, episode)?;
            let found = played.explain(&view.plan, group, sample)?;
            let found = found.ok_or_else(|| no_episode(n, group, sample))?;
            if global.json {
                let batch = compared.clone();
                let credit = Box::new(found);
                emit(view, n, CreditAnswer::Episode { credit, batch });
            } else {
                text::emit(&format!(
                    "{}\n{}",
                    found.lines().join("\n"),
                    compared.line()
                ));
            }
        }
        None => {
            let rows = played.overview(&view.plan)?;
            if global.json {
                let batch = compared.clone();
                emit(
                    view,
                    n,
                    CreditAnswer::Episodes {
                        episodes: rows,
                        batch,
                    },
                );
            } else {
                let cells = rows.iter().map(|r| {
                    vec![
                        format!("{}/{}", r.group, r.sample),
                        r.task.clone(),
                        r.outcome.name().to_owned(),
                        r.score.to_string(),
                        r.advantage
                            .map_or_else(|| "–".into(), |advantage| format!("{advantage:+.4}")),
                        r.left_out.unwrap_or_default().to_owned(),
                    ]
                });
                let head = ["episode", "task", "outcome", "score", "advantage", ""];
                let table = text::table(&head, &cells.collect::<Vec<_>>());
                text::emit(&format!("{table}{}", compared.line()));
            }
        }
    }
    match compared {
        Compared::Differs { .. } => Err(agentgym_jobs::Error::Payload {
            what: format!("{} of iteration {n}", artifact_names::BATCH),
            message: "is not what the plan, the episodes and their log-probs give; \
                      verify the run, and see whether another version of the program made it"
                .into(),
        }
        .into()),
        _ => Ok(()),
    }
}

fn emit(view: &RunView, iteration: u32, answer: CreditAnswer) {
    let run = view.plan.run.to_string();
    text::emit_json(&CreditDocument {
        run,
        iteration,
        answer,
    });
}

/// `K` or `GROUP/SAMPLE`.
fn place(view: &RunView, episode: &str) -> Result<(u32, u32)> {
    let n = view.plan.config.actor_rollout_ref.rollout.n;
    let numbers: Result<Vec<u32>, _> = episode.split('/').map(str::parse).collect();
    match numbers.as_deref() {
        Ok([k]) => Ok((k / n.max(1), k % n.max(1))),
        Ok([group, sample]) => Ok((*group, *sample)),
        _ => Err(Error::Usage(format!(
            "--episode {episode}: give its number, group × {n} + sample, or GROUP/SAMPLE"
        ))),
    }
}

fn no_episode(n: u32, group: u32, sample: u32) -> Error {
    Error::Missing(format!(
        "iteration {n} has no episode of group {group}, sample {sample}; `credit RUN {n}` lists them"
    ))
}

pub(crate) fn failed(error: agentgym_worker::Error) -> Error {
    match error {
        agentgym_worker::Error::Storage(error) => error.into(),
        agentgym_worker::Error::Jobs(error) => error.into(),
        other => Error::Usage(format!("the credit of this iteration: {other}")),
    }
}

impl Compared {
    pub(crate) fn line(&self) -> String {
        match self {
            Self::NotYet => "batch.bin is not committed yet: nothing to compare with".into(),
            Self::Equal => "= batch.bin, bit for bit".into(),
            Self::Differs { differences } => {
                let line = |d: &Difference| {
                    format!(
                        "\n  slot {} {}: computed {}, recorded {}",
                        d.slot, d.what, d.computed, d.recorded
                    )
                };
                let all: String = differences.iter().map(line).collect();
                format!("≠ batch.bin:{all}")
            }
        }
    }
}

/// What a training iteration's credit is computed from.
pub(crate) async fn iteration(view: &RunView, n: u32) -> Result<Iteration> {
    let inputs = view.inputs_of(batch_of(n)).await?;
    Ok(Iteration::read(&view.plan, n, &inputs, || ()).await?)
}

/// The credit of a training iteration's episodes.
pub(crate) async fn played(view: &RunView, n: u32) -> Result<PlayedIteration> {
    Ok(PlayedIteration::new(&view.plan, iteration(view, n).await?)?)
}

/// Compares the recorded batch with the computed one.
pub(crate) async fn compare(view: &RunView, n: u32, played: &PlayedIteration) -> Result<Compared> {
    let Some(manifest) = view.manifest(batch_of(n)).await? else {
        return Ok(Compared::NotYet);
    };
    let (batch, targets) = batch(&view.inputs([(COMMIT, manifest)]), COMMIT).await?;
    let found = played.differences(&batch, targets.as_ref(), DIFFERENCES_MAX);
    Ok(match found.is_empty() {
        true => Compared::Equal,
        false => Compared::Differs { differences: found },
    })
}

async fn of_candidates(view: &RunView, args: &CreditArgs, global: &Global) -> Result<()> {
    let n = args.iteration;
    let (mut all, compared) = evolved(view, n).await?;
    let wanted = args
        .episode
        .as_deref()
        .map(|e| place(view, e))
        .transpose()?;
    if let Some((group, sample)) = wanted {
        all.retain(|c| {
            let l = &c.lineage;
            (l.iteration, l.group, l.sample) == (n, group, sample)
        });
        if all.is_empty() {
            return Err(no_episode(n, group, sample));
        }
    }
    if global.json {
        let answer = CreditAnswer::Candidates {
            candidates: all,
            threshold: view.plan.config.agentevol.threshold.clone(),
            max_length: view.plan.config.sft.max_length,
            lineage_equal: compared,
        };
        emit(view, n, answer);
    } else {
        let cells = all.iter().map(|c| {
            vec![
                format!(
                    "{}:{}/{}",
                    c.lineage.iteration, c.lineage.group, c.lineage.sample
                ),
                c.lineage.item_id.clone(),
                c.lineage.reward.to_string(),
                c.lineage.turns.to_string(),
                c.tokens.to_string(),
                fate(&c.fate),
            ]
        });
        let head = ["episode", "task", "reward", "turns", "tokens", "filter"];
        let verdict = match compared {
            None => "lineage.json is not committed yet: nothing to compare with",
            Some(true) => "= lineage.json",
            Some(false) => "≠ lineage.json",
        };
        let table = text::table(&head, &cells.collect::<Vec<_>>());
        text::emit(&format!("{table}{verdict}"));
    }
    match compared {
        Some(false) => Err(agentgym_jobs::Error::Payload {
            what: format!("{} of iteration {n}", artifact_names::LINEAGE),
            message: "is not what the plan and the episodes give; verify the run".into(),
        }
        .into()),
        _ => Ok(()),
    }
}

pub(crate) fn fate(fate: &Fate) -> String {
    match fate {
        Fate::Kept => "kept: its advantage is 1 on every token it said".into(),
        Fate::BelowThreshold => "left: below the threshold".into(),
        Fate::TooLong => "left: longer than sft.max_length".into(),
        Fate::Duplicate { kept } => {
            let rivals = kept
                .iter()
                .map(|l| format!("{}:{}/{}", l.iteration, l.group, l.sample));
            format!("left for {}", rivals.collect::<Vec<_>>().join(", "))
        }
    }
}

/// The candidates of an AgentEvol iteration's filter, and whether the recorded choice is theirs.
pub(crate) async fn evolved(view: &RunView, n: u32) -> Result<(Vec<Candidate>, Option<bool>)> {
    let all = parts(&view.plan, n);
    let filter = all.iter().find(|part| part.id.stage == Stage::Filter);
    let filter = filter
        .ok_or_else(|| Error::Missing(format!("iteration {n} has no filter; nothing is kept")))?;
    let pool = Pool::read(&view.plan, n, &view.inputs_of(filter.id).await?, || ()).await?;
    let found = candidates(&view.plan, n, pool);
    let recorded = match view.manifest(filter.id).await? {
        None => None,
        Some(manifest) => Some(view.document::<Vec<Lineage>>(&manifest).await?),
    };
    let key = |l: &Lineage| (l.iteration, l.part, l.episode);
    let compared = recorded.map(|recorded| {
        let mut ours: Vec<_> = found
            .iter()
            .filter(|c| c.fate == Fate::Kept)
            .map(|c| key(&c.lineage))
            .collect();
        let mut theirs: Vec<_> = recorded.iter().map(key).collect();
        ours.sort_unstable();
        theirs.sort_unstable();
        ours == theirs
    });
    Ok((found, compared))
}

async fn of_pair(view: &RunView, args: &CreditArgs, global: &Global) -> Result<()> {
    let episode = args.episode.as_deref().unwrap_or("0");
    let pair: usize = episode.parse().map_err(|_| {
        Error::Usage(format!(
            "--episode {episode}: give the number of a pair, from 0"
        ))
    })?;
    let reference = load_policy(view, &view.committed(reference_of(&view.plan)).await?).await?;
    let after = load_policy(view, &view.committed(policy_of(&view.plan, 0)).await?).await?;
    let init = view.inputs([("init", view.committed(BASE_PART).await?)]);
    let margin = async |policy: &Policy| {
        let found = margin(&view.plan, &init, pair, policy, &reference).await;
        found
            .map_err(failed)?
            .ok_or_else(|| Error::Missing(format!("there is no pair {pair}")))
    };
    let (before, after) = (margin(&reference).await?, margin(&after).await?);
    if global.json {
        let (before, after) = (Box::new(before), Box::new(after));
        let answer = CreditAnswer::Pair {
            pair,
            before,
            after,
        };
        emit(view, 0, answer);
        return Ok(());
    }
    let lines = |when: &str, m: &Margin| {
        let of = |at: usize, name: &str| {
            format!(
                "  {name:8} {} tokens: {} · ({} − {}) = {}\n",
                m.tokens[at], m.beta, m.policy[at], m.reference[at], m.implicit_rewards[at]
            )
        };
        format!(
            "{when}\n{}{}  margin {} → {} loss {}, each token of the chosen answer pulls with {}, of the rejected one with {}\n",
            of(0, "chosen"),
            of(1, "rejected"),
            m.margin,
            m.loss_type,
            m.loss,
            -m.coefficient,
            m.coefficient
        )
    };
    text::emit(&format!(
        "pair {pair}  {}  rewards {} and {}\n{}{}",
        before.item_id,
        before.rewards[0],
        before.rewards[1],
        lines("before training", &before),
        lines("after training", &after)
    ));
    Ok(())
}

/// A policy with its adapter, if one is trained.
pub(crate) async fn load_policy(view: &RunView, manifest: &Manifest) -> Result<Policy> {
    let folder = async |manifest: &Manifest, prefix: &str| {
        let inputs = view.inputs([(COMMIT, manifest.clone())]);
        inputs.folder(COMMIT, prefix).await
    };
    let bad = |e: agentgym_model::Error| {
        Error::Usage(format!("reading the policy of {}: {e}", manifest.slot()))
    };
    if !has_folder(manifest, "adapter/") {
        let local = folder(manifest, "policy").await?;
        return Policy::load(local.path(), &Device::cpu()).map_err(bad);
    }
    let base = folder(&view.committed(BASE_PART).await?, "policy").await?;
    let base = Policy::load(base.path(), &Device::cpu()).map_err(bad)?;
    let adapter = folder(manifest, "adapter").await?;
    let adapter = Adapter::load(adapter.path(), base.config()).map_err(bad)?;
    base.with_adapter(adapter).map_err(bad)
}

fn has_folder(manifest: &Manifest, prefix: &str) -> bool {
    manifest.outputs.iter().any(|o| o.name.starts_with(prefix))
}
