//! Stage functions that only hash: the only part of a worker that the simulation replaces. They
//! follow the rules of the real ones: outputs are a pure function of the inputs, episodes are
//! journalled and replayed by the production code, and each stage reads what the real one needs, so
//! that a deletion by retention does not go unnoticed.

use super::world::{Link, mix};
use agentgym_jobs::episode::Task;
use agentgym_jobs::journal::{Event, RecordedMessage};
use agentgym_jobs::pipeline::{Input, Stage};
use agentgym_storage::Outputs;
use agentgym_worker::stages::StageFunctions;
use agentgym_worker::turn_journal::{EpisodeId, TurnJournal};
use agentgym_worker::{Error, Report, Result, StageContext};
use futures::future::{BoxFuture, FutureExt};
use std::sync::Arc;
use tokio::time::sleep;

const OPTIMIZER: &str = "optimizer";
const EPISODES: u32 = 3;
const TURNS: u32 = 2;
/// Probability that the journal interval is over after a turn.
const SAVED: f64 = 0.7;

/// The stages of one process.
pub(super) struct CheapStages(pub(super) Arc<Link>);

impl StageFunctions for CheapStages {
    fn run<'a>(
        &'a self,
        stage: Stage,
        context: &'a mut StageContext,
        outputs: &'a mut Outputs,
    ) -> BoxFuture<'a, Result<Report>> {
        self.make(stage, context, outputs).boxed()
    }
}

impl CheapStages {
    async fn make(
        &self,
        stage: Stage,
        context: &mut StageContext,
        outputs: &mut Outputs,
    ) -> Result<Report> {
        let id = context.part.id;
        let mut state =
            mix(u64::from(id.iteration) << 32 | u64::from(id.part) << 8 | id.stage as u64);
        for input in &context.part.inputs {
            for name in needed(stage, input) {
                let bytes = match name.split_once('/') {
                    Some((OPTIMIZER, file)) => {
                        let folder = context.inputs.folder(&input.name, OPTIMIZER).await?;
                        std::fs::read(folder.path().join(file)).unwrap().into()
                    }
                    _ => context.inputs.bytes(&input.name, name).await?,
                };
                state = bytes
                    .iter()
                    .fold(state, |s, byte| mix(s ^ u64::from(*byte)));
            }
        }
        self.0.turn("computes", &id.to_string()).await;
        self.0.world.may_panic("a stage", |f| f.stage_panics);
        if self.0.world.strikes(|f| f.stage_fails) {
            return Err(match state % 2 {
                0 => Error::Environment("the environment is away".to_owned()),
                _ => Error::from(agentgym_model::Error::DeviceLost {
                    name: "cuda:0".to_owned(),
                    message: "it has fallen off the bus".to_owned(),
                }),
            });
        }
        let episodes = match stage {
            Stage::Rollout | Stage::Evaluate | Stage::EvaluateInit => {
                self.play(context, state).await?
            }
            Stage::Expire => String::new(),
            _ => {
                self.compute(context, state).await?;
                String::new()
            }
        };
        for name in written(stage) {
            let content = format!(
                "{{\"success\": 0.{}, \"of\": \"{episodes}\"}}",
                state % 1000
            );
            match name.split_once('/') {
                Some((OPTIMIZER, file)) => {
                    let folder = context.scratch.join(OPTIMIZER);
                    std::fs::create_dir_all(&folder).unwrap();
                    std::fs::write(folder.join(file), content).unwrap();
                    outputs
                        .folder_after_commit(OPTIMIZER, "simulated", &folder)
                        .await?;
                }
                _ => _ = outputs.bytes(name, "simulated", content.into()).await?,
            }
        }
        Ok(Report::default())
    }

    /// Plays what the journal does not contain. When the process drains, a turn in progress is
    /// finished and journalled.
    async fn play(&self, context: &mut StageContext, state: u64) -> Result<String> {
        let ids = (0..EPISODES).map(|group| EpisodeId {
            task: Task {
                env: "simulated".to_owned(),
                item_id: i64::from(group),
            },
            group,
            sample: 0,
            stream: [0; 32],
        });
        let mut journal = TurnJournal::read(context, ids)?;
        let (mut record, mut sampled) = (String::new(), 0);
        for episode in 0..EPISODES {
            let mut tape = journal.tape(episode, 0);
            let mut prefix = state ^ u64::from(episode);
            for number in 0..TURNS {
                let own = mix(prefix);
                let token_ids = vec![own as u32, (own >> 32) as u32];
                let known = tape.message(|_, _| true);
                if known
                    .as_ref()
                    .is_some_and(|known| known.0.token_ids != token_ids)
                {
                    self.0.world.violated(format!(
                        "the journal of {} holds another episode",
                        context.part.id
                    ));
                }
                if known.is_none() {
                    if context.cancel.is_cancelled() {
                        journal.save(context, || sampled, true).await?;
                        return Err(Error::Cancelled);
                    }
                    sleep(self.0.world.span_of(own, 4_000)).await;
                    self.0.world.log().counts.turns += 1;
                    sampled += token_ids.len() as u64;
                    let entropies = vec![0.0; token_ids.len()];
                    let message = RecordedMessage {
                        number,
                        log_probs: vec![0.0; token_ids.len()],
                        token_ids,
                        log_kept_masses: None,
                        ended: true,
                    };
                    tape.record(Event::MessageWithEntropies(message, entropies));
                    if self.0.world.rng().chance(SAVED) {
                        journal.save(context, || sampled, false).await?;
                    }
                }
                prefix = own;
            }
            tape.over();
            record.push_str(&format!("{prefix:016x}"));
        }
        Ok(record)
    }

    /// Lets a simulated time pass.
    async fn compute(&self, context: &StageContext, state: u64) -> Result<()> {
        let span = self.0.world.span_of(state, 8_000);
        let slept = context.cancel.run_until_cancelled(sleep(span)).await;
        slept.ok_or(Error::Cancelled)
    }
}

/// The artifacts of an input that a stage reads.
fn needed(stage: Stage, input: &Input) -> Vec<&'static str> {
    let from = input.from.stage;
    let carries_on = stage == from;
    match (input.name.as_str(), from) {
        _ if stage == Stage::Expire => vec![],
        ("init", _) => vec!["demonstrations.bin"],
        ("critic", _) if carries_on => vec!["critic/model", "optimizer/state"],
        ("critic", _) => vec!["critic/model"],
        (_, Stage::Init) => vec!["policy/model"],
        (_, Stage::Sft | Stage::Dpo | Stage::Update) if carries_on => {
            vec!["policy/model", "optimizer/state"]
        }
        (_, Stage::Sft | Stage::Dpo | Stage::Update) => vec!["policy/model"],
        (_, Stage::Rollout | Stage::Reward | Stage::Filter) => vec!["episodes.bin"],
        (_, Stage::LogProbs) => vec!["log_probs.bin"],
        (_, Stage::Select) => vec!["select.bin"],
        (_, Stage::Advantage) => vec!["batch.bin"],
        (_, Stage::Gradient) => vec!["gradient/sum", "gradient.bin"],
        (name, other) => unreachable!("{stage} reads {name} of {other}"),
    }
}

fn written(stage: Stage) -> Vec<&'static str> {
    match stage {
        Stage::Init => vec!["policy/model", "critic/model", "demonstrations.bin"],
        Stage::Sft | Stage::Dpo | Stage::Update => {
            vec!["policy/model", "optimizer/state", "metrics.json"]
        }
        Stage::CriticUpdate => vec!["critic/model", "optimizer/state"],
        Stage::Rollout | Stage::Reward | Stage::Filter => vec!["episodes.bin"],
        Stage::LogProbs => vec!["log_probs.bin"],
        Stage::Select => vec!["select.bin"],
        Stage::Advantage => vec!["batch.bin", "metrics.json"],
        Stage::Gradient => vec!["gradient/sum", "gradient.bin"],
        Stage::Evaluate | Stage::EvaluateInit => vec!["metrics.json"],
        Stage::Expire => vec![],
    }
}
