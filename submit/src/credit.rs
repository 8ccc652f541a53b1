//! `credit RUN N [--episode K]`: why each token of an episode trains with its advantage, as a
//! formula with its numbers. Everything is computed anew from the plan, the episodes and their
//! log-probs by the functions of the stages; `batch.bin` is then only compared with the result.
//! AgentEvol keeps or leaves whole episodes, and DPO weighs pairs: for these it shows the filter's
//! verdict and the margin.

use crate::cli::{CreditArgs, Global};
use crate::records::{episodes, has, input};
use crate::runs::{RunView, cache_dir};
use crate::{Error, Result, text};
use agentgym_jobs::artifact_names;
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::episode::{Episode, Episodes};
use agentgym_jobs::pipeline::{BASE_PART, PartId, Stage, batch_of, parts, policy_of, reference_of};
use agentgym_jobs::records::{Batch, CriticTargets, LogProbs, Values};
use agentgym_jobs::trajectory::Lineage;
use agentgym_model::{Adapter, Device, Policy};
use agentgym_record::documents::{KlState, Selection};
use agentgym_storage::{Inputs, Manifest};
use agentgym_worker::stages::credit::{
    Candidate, Difference, Fate, Margin, PlayedIteration, PlayedPart, candidates, margin,
};
use serde_json::{Value, json};

/// Differences to the recorded batch that are listed.
const DIFFERENCES_MAX: usize = 20;

/// Whether the recorded batch is the computed one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Compared {
    /// The batch is not committed yet.
    NotYet,
    /// Bit for bit.
    Equal,
    /// It is not.
    Differs(Vec<Difference>),
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
            let found = played.explain(&view.plan, group, sample).map_err(failed)?;
            let found = found.ok_or_else(|| no_episode(n, group, sample))?;
            if global.json {
                let mut out = json!(found);
                out["batch"] = compared.to_json();
                text::emit_json(&document(view, n, out));
            } else {
                text::emit(&format!(
                    "{}\n{}",
                    found.lines().join("\n"),
                    compared.line()
                ));
            }
        }
        None => {
            let rows = played.overview(&view.plan).map_err(failed)?;
            if global.json {
                let out = json!({"episodes": rows, "batch": compared.to_json()});
                text::emit_json(&document(view, n, out));
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
        Compared::Differs(_) => Err(agentgym_jobs::Error::Payload {
            what: format!("{} of iteration {n}", artifact_names::BATCH),
            message: "is not what the plan, the episodes and their log-probs give; \
                      verify the run, and see whether another version of the program made it"
                .into(),
        }
        .into()),
        _ => Ok(()),
    }
}

fn document(view: &RunView, iteration: u32, mut inner: Value) -> Value {
    let mut out = json!({"run": view.plan.run.to_string(), "iteration": iteration});
    if let (Some(out), Some(inner)) = (out.as_object_mut(), inner.as_object_mut()) {
        out.append(inner);
    }
    out
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
            Self::Differs(all) => {
                let line = |d: &Difference| {
                    format!(
                        "\n  slot {} {}: computed {}, recorded {}",
                        d.slot, d.what, d.computed, d.recorded
                    )
                };
                let all: String = all.iter().map(line).collect();
                format!("≠ batch.bin:{all}")
            }
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::NotYet => json!({"compared": "not_committed"}),
            Self::Equal => json!({"compared": "equal"}),
            Self::Differs(all) => json!({"compared": "differs", "differences": all}),
        }
    }
}

/// The episodes of a training iteration with everything that their credit is computed from.
pub(crate) async fn played(view: &RunView, n: u32) -> Result<PlayedIteration> {
    let mut all = Vec::new();
    for id in view.stage_parts(n, Stage::LogProbs)? {
        let manifest = view.committed(id).await?;
        let LogProbs::V1(log_probs) = view.payload(&manifest, artifact_names::LOG_PROBS).await?;
        let values = match has(&manifest, artifact_names::VALUES) {
            true => {
                let Values::V1(values) = view.payload(&manifest, artifact_names::VALUES).await?;
                Some(values)
            }
            false => None,
        };
        let rollout = input(view, &manifest, "rollout").await?;
        let baselines = match has(&rollout, artifact_names::BASELINES) {
            true => {
                let own: Episodes = view.payload(&rollout, artifact_names::BASELINES).await?;
                own.into_vec()
            }
            false => Vec::new(),
        };
        all.push(PlayedPart {
            part: id.part,
            episodes: episodes(view, &rollout).await?,
            log_probs,
            values,
            baselines,
        });
    }
    let (kl_coef, selected) = (kl_coef(view, n).await?, selected(view, n).await?);
    PlayedIteration::new(&view.plan, n, all, kl_coef, selected).map_err(failed)
}

/// The coefficient of the KL penalty in an iteration's rewards, if there is one.
async fn kl_coef(view: &RunView, n: u32) -> Result<Option<f64>> {
    let Some(controller) = view.plan.config.kl_controller()? else {
        return Ok(None);
    };
    let all = parts(&view.plan, n);
    let own = all.iter().find(|part| part.id.stage == Stage::Advantage);
    let before = own.and_then(|part| part.inputs.iter().find(|i| i.name == "before"));
    let Some(before) = before else {
        return Ok(Some(controller.initial()));
    };
    let before = view.committed(before.from).await?;
    let state: KlState = view.document(&before).await?;
    Ok(Some(state.next_kl_coef))
}

/// The groups chosen by the last round of a filter, in the order of their slots.
pub(crate) async fn selected(view: &RunView, n: u32) -> Result<Option<Vec<u32>>> {
    if !view.plan.selects() {
        return Ok(None);
    }
    let last = PartId {
        iteration: n,
        stage: Stage::Select,
        part: view.plan.rollout_rounds() - 1,
    };
    let selection: Selection = view.document(&view.committed(last).await?).await?;
    Ok(Some(selection.groups))
}

/// Compares the recorded batch with the computed one.
pub(crate) async fn compare(view: &RunView, n: u32, played: &PlayedIteration) -> Result<Compared> {
    let Some(manifest) = view.manifest(batch_of(n)).await? else {
        return Ok(Compared::NotYet);
    };
    let batch: Batch = view.payload(&manifest, artifact_names::BATCH).await?;
    let targets: Option<CriticTargets> = match has(&manifest, artifact_names::TARGETS) {
        true => Some(view.payload(&manifest, artifact_names::TARGETS).await?),
        false => None,
    };
    let found = played.differences(&batch, targets.as_ref(), DIFFERENCES_MAX);
    Ok(match found.is_empty() {
        true => Compared::Equal,
        false => Compared::Differs(found),
    })
}

async fn of_candidates(view: &RunView, args: &CreditArgs, global: &Global) -> Result<()> {
    let n = args.iteration;
    let (all, compared) = evolved(view, n).await?;
    let wanted = args
        .episode
        .as_deref()
        .map(|e| place(view, e))
        .transpose()?;
    let shown: Vec<&Candidate> = all
        .iter()
        .filter(|c| {
            wanted.is_none_or(|(group, sample)| {
                let l = &c.lineage;
                (l.iteration, l.group, l.sample) == (n, group, sample)
            })
        })
        .collect();
    if let (Some((group, sample)), true) = (wanted, shown.is_empty()) {
        return Err(no_episode(n, group, sample));
    }
    if global.json {
        let out = json!({
            "candidates": shown, "threshold": view.plan.config.agentevol.threshold,
            "max_length": view.plan.config.sft.max_length, "lineage_equal": compared,
        });
        text::emit_json(&document(view, n, out));
    } else {
        let cells = shown.iter().map(|c| {
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
    let (mut before, mut played) = (Vec::new(), Vec::new());
    for input in &filter.inputs {
        match (input.name.as_str(), input.from.stage) {
            ("before", _) => {
                let manifest = view.committed(input.from).await?;
                let lineage: Vec<Lineage> = view.document(&manifest).await?;
                let all: Vec<Episode> = episodes(view, &manifest).await?;
                before.extend(lineage.into_iter().zip(all));
            }
            (_, Stage::Rollout | Stage::Reward) => {
                let manifest = view.committed(input.from).await?;
                played.push((input.from.part, episodes(view, &manifest).await?));
            }
            _ => {}
        }
    }
    let found = candidates(&view.plan, n, before, played);
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
    let index: usize = episode.parse().map_err(|_| {
        Error::Usage(format!(
            "--episode {episode}: give the number of a pair, from 0"
        ))
    })?;
    let reference = load_policy(view, &view.committed(reference_of(&view.plan)).await?).await?;
    let after = load_policy(view, &view.committed(policy_of(&view.plan, 0)).await?).await?;
    let init = vec![("init".to_owned(), view.committed(BASE_PART).await?)];
    let init = Inputs::new(view.store.clone(), init, cache_dir());
    let mut both = Vec::new();
    for policy in [&reference, &after] {
        let found = margin(&view.plan, &init, index, policy, &reference).await;
        let found = found.map_err(failed)?;
        both.push(found.ok_or_else(|| Error::Missing(format!("there is no pair {index}")))?);
    }
    if global.json {
        let out = json!({"pair": index, "before": both[0], "after": both[1]});
        text::emit_json(&document(view, 0, out));
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
        "pair {index}  {}  rewards {} and {}\n{}{}",
        both[0].item_id,
        both[0].rewards[0],
        both[0].rewards[1],
        lines("before training", &both[0]),
        lines("after training", &both[1])
    ));
    Ok(())
}

/// A policy with its adapter, if one is trained.
pub(crate) async fn load_policy(view: &RunView, manifest: &Manifest) -> Result<Policy> {
    let folder = async |manifest: &Manifest, prefix: &str| {
        let commit = vec![("commit".to_owned(), manifest.clone())];
        let inputs = Inputs::new(view.store.clone(), commit, cache_dir());
        inputs.folder("commit", prefix).await
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
