//! A pipeline is a pure function: (plan, iteration) → parts, each naming its inputs as (iteration,
//! stage, part). A stage does not know which policy it reads; the dependency on iteration `n − 1`
//! is defined only here.

use crate::config::Pipeline;
use crate::plan::{InitRole, Plan};
pub use crate::stage::{Facts, Records, Stage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Identifies a part within its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartId {
    /// Iteration; 0 makes the start policy.
    pub iteration: u32,
    /// Stage.
    pub stage: Stage,
    /// Part of the stage.
    pub part: u32,
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.iteration, self.stage, self.part)
    }
}

impl FromStr for PartId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shape = || format!("`{text}` is no part; write ITERATION/STAGE/PART, e.g. 3/rollout/0");
        let mut pieces = text.split('/');
        let mut piece = || pieces.next().ok_or_else(shape);
        let (iteration, stage, part) = (piece()?, piece()?, piece()?);
        let number = |digits: &str| digits.parse().map_err(|_| shape());
        let id = Self {
            iteration: number(iteration)?,
            stage: stage.parse()?,
            part: number(part)?,
        };
        pieces.next().map_or(Ok(id), |_| Err(shape()))
    }
}

/// An input of a part, with the name under which the stage opens it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Name inside the stage.
    pub name: String,
    /// The part whose commit is read.
    pub from: PartId,
}

/// A part of a stage: one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its id.
    pub id: PartId,
    /// The inputs that must be committed first.
    pub inputs: Vec<Input>,
}

impl Part {
    /// The input whose optimizer state the part goes on with.
    pub fn state_input(&self) -> Option<&Input> {
        self.inputs
            .iter()
            .find(|input| input.from.stage == self.id.stage)
    }
}

/// The parts of an iteration, in the order of the stages.
pub fn parts(plan: &Plan, iteration: u32) -> Vec<Part> {
    if plan.forked_at().is_some_and(|last| iteration <= last) {
        let own = adopted(plan)
            .into_iter()
            .filter(|id| id.iteration == iteration);
        let inputs = Vec::new;
        return own
            .map(|id| Part {
                id,
                inputs: inputs(),
            })
            .collect();
    }
    planned(plan, iteration)
}

/// The parts that a fork takes over: those of the parent's iterations that the fork's own
/// iterations read, and the policy it starts from. `agentgym-submit fork` commits them before the
/// plan is written, so no worker ever makes them.
pub fn adopted(plan: &Plan) -> BTreeSet<PartId> {
    let Some(last) = plan.forked_at() else {
        return BTreeSet::new();
    };
    // No part reads farther back than the lag plus one iteration.
    let own = last + 1..=last.saturating_add(plan.config.algorithm.lag + 1);
    let read = own
        .flat_map(|iteration| planned(plan, iteration))
        .flat_map(|part| part.inputs)
        .map(|input| input.from)
        .filter(|from| from.iteration <= last);
    read.chain([policy_of(plan, last)]).collect()
}

fn planned(plan: &Plan, iteration: u32) -> Vec<Part> {
    let mut parts = Parts {
        plan,
        iteration,
        list: Vec::new(),
    };
    if iteration == 0 {
        parts.start();
    } else if iteration <= plan.iterations {
        match plan.config.run.pipeline {
            Pipeline::Rl => parts.train(),
            Pipeline::AgentEvol => parts.evolve(),
            Pipeline::Sft | Pipeline::Dpo | Pipeline::Eval => {}
        }
    }
    parts.list
}

/// The part whose output is the batch that `iteration` trains on.
pub fn batch_of(iteration: u32) -> PartId {
    PartId {
        iteration,
        stage: Stage::Advantage,
        part: 0,
    }
}

/// The part whose output is the policy *after* `iteration`.
pub fn policy_of(plan: &Plan, iteration: u32) -> PartId {
    match (iteration, plan.dpo_parts()) {
        (0, 0) => warm_start_of(plan),
        (0, parts) => PartId {
            iteration: 0,
            stage: Stage::Dpo,
            part: parts - 1,
        },
        _ if plan.config.run.pipeline == Pipeline::AgentEvol => PartId {
            iteration,
            stage: Stage::Sft,
            part: plan.sft_parts(iteration).saturating_sub(1),
        },
        _ => PartId {
            iteration,
            stage: Stage::Update,
            part: plan.update_parts(iteration) - 1,
        },
    }
}

/// The part whose output is the policy after the warm start, or the initial policy without a warm
/// start.
fn warm_start_of(plan: &Plan) -> PartId {
    let (stage, part) = match plan.sft_parts(0) {
        0 => (Stage::Init, 0),
        parts => (Stage::Sft, parts - 1),
    };
    PartId {
        iteration: 0,
        stage,
        part,
    }
}

/// The part that wrote the reference policy for KL divergences: the model of `ref.model.path`; else
/// the base if an adapter is trained; else the policy that training starts from.
pub fn reference_of(plan: &Plan) -> PartId {
    let own = init_part(plan, InitRole::Reference);
    own.unwrap_or_else(|| match plan.has_adapter() {
        true => BASE_PART,
        false => warm_start_of(plan),
    })
}

/// Writes the initial policy; if an adapter is trained, also its frozen base.
pub const BASE_PART: PartId = PartId {
    iteration: 0,
    stage: Stage::Init,
    part: 0,
};

/// The part whose output is the critic *after* `iteration`, if there is one.
pub fn critic_of(plan: &Plan, iteration: u32) -> Option<PartId> {
    let init = init_part(plan, InitRole::Critic)?;
    Some(match iteration {
        0 => init,
        _ => PartId {
            iteration,
            stage: Stage::CriticUpdate,
            part: 0,
        },
    })
}

fn init_part(plan: &Plan, role: InitRole) -> Option<PartId> {
    let part = plan.init_roles().iter().position(|r| *r == role)?;
    Some(PartId {
        iteration: 0,
        stage: Stage::Init,
        part: part as u32,
    })
}

struct Parts<'a> {
    plan: &'a Plan,
    iteration: u32,
    list: Vec<Part>,
}

impl Parts<'_> {
    fn add(&mut self, stage: Stage, part: u32, mut inputs: Vec<(String, PartId)>) {
        // Commits of training stages hold only the adapter.
        let trained = |(name, from): &(String, PartId)| name == "policy" && *from != BASE_PART;
        if self.plan.has_adapter() && inputs.iter().any(trained) {
            inputs.push(("base".into(), BASE_PART));
        }
        let id = PartId {
            iteration: self.iteration,
            stage,
            part,
        };
        let inputs = inputs
            .into_iter()
            .map(|(name, from)| Input { name, from })
            .collect();
        self.list.push(Part { id, inputs });
    }

    fn here(&self, stage: Stage, part: u32) -> PartId {
        PartId {
            iteration: self.iteration,
            stage,
            part,
        }
    }

    /// A part of the rollouts, and the part that asks for its rewards if a function gives them.
    fn rollout(&mut self, part: u32, inputs: Vec<(String, PartId)>) {
        self.add(Stage::Rollout, part, inputs);
        if self.plan.has_reward_function() {
            let rollout = self.here(Stage::Rollout, part);
            self.add(Stage::Reward, part, vec![("rollout".into(), rollout)]);
        }
    }

    /// The part whose episodes the later stages read: those of a rollout, with their final rewards.
    fn rewarded(&self, part: u32) -> PartId {
        let stage = match self.plan.has_reward_function() {
            true => Stage::Reward,
            false => Stage::Rollout,
        };
        self.here(stage, part)
    }

    fn evaluate(&mut self, stage: Stage, policy: PartId) {
        for set in 0..self.plan.config.evaluation.sets.len() as u32 {
            self.add(stage, set, vec![("policy".into(), policy)]);
        }
    }

    fn start(&mut self) {
        let init = self.here(Stage::Init, 0);
        self.add(Stage::Init, 0, vec![]);
        self.fit(None);
        let start = warm_start_of(self.plan);
        for part in 0..self.plan.dpo_parts() {
            let before = match part {
                0 => start,
                _ => self.here(Stage::Dpo, part - 1),
            };
            let inputs = vec![
                ("init".into(), init),
                ("policy".into(), before),
                ("reference".into(), reference_of(self.plan)),
            ];
            self.add(Stage::Dpo, part, inputs);
        }
        if self.plan.warms_up() {
            self.evaluate(Stage::EvaluateInit, init);
        }
        self.evaluate(Stage::Evaluate, policy_of(self.plan, 0));
        for (part, role) in self.plan.init_roles().into_iter().enumerate() {
            let inputs = match role {
                InitRole::Policy => continue,
                // Its token ids must be the same as the policy's.
                InitRole::Reference => vec![("policy".into(), init)],
                // Provides the trunk, unless the critic has its own model.
                InitRole::Critic => vec![("policy".into(), policy_of(self.plan, 0))],
            };
            self.add(Stage::Init, part as u32, inputs);
        }
    }

    /// The chain of supervised parts, starting from the initial policy.
    fn fit(&mut self, kept: Option<PartId>) {
        for part in 0..self.plan.sft_parts(self.iteration) {
            let before = match part {
                0 => BASE_PART,
                _ => self.here(Stage::Sft, part - 1),
            };
            let mut inputs = vec![("init".into(), BASE_PART), ("policy".into(), before)];
            inputs.extend(kept.map(|kept| ("kept".into(), kept)));
            self.add(Stage::Sft, part, inputs);
        }
    }

    /// AgentEvol: explore, filter, and train again from the *initial* policy.
    fn evolve(&mut self) {
        let (plan, n) = (self.plan, self.iteration);
        let explorer = policy_of(plan, (n - 1).saturating_sub(plan.config.algorithm.lag));
        let rollouts = 0..plan.rollout_parts();
        for part in rollouts.clone() {
            self.rollout(part, vec![("policy".into(), explorer)]);
        }
        let mut inputs: Vec<(String, PartId)> = rollouts
            .map(|part| (format!("rollout.{part}"), self.rewarded(part)))
            .collect();
        if plan.config.agentevol.accumulate && n > 1 {
            let before = PartId {
                iteration: n - 1,
                ..self.here(Stage::Filter, 0)
            };
            inputs.push(("before".into(), before));
        }
        self.add(Stage::Filter, 0, inputs);
        self.fit(Some(self.here(Stage::Filter, 0)));
        let trained = policy_of(plan, n);
        if plan.evaluates(n) {
            self.evaluate(Stage::Evaluate, trained);
        }
        self.add(Stage::Expire, 0, vec![("update".into(), trained)]);
    }

    fn train(&mut self) {
        let (plan, n) = (self.plan, self.iteration);
        let rollout_policy = policy_of(plan, (n - 1).saturating_sub(plan.config.algorithm.lag));
        let start_policy = policy_of(plan, n - 1);
        let (per_round, rounds) = (plan.rollout_parts(), plan.rollout_rounds());
        let rollouts = per_round * rounds;
        // What the batch of an earlier iteration says of the sources; none before the first.
        let sources = |n: u32| (plan.has_curriculum() && n > 0).then(|| batch_of(n));
        let entered = sources((n - 1).saturating_sub(plan.config.algorithm.lag));
        let entered = entered.map(|from| ("curriculum".to_owned(), from));
        for round in 0..rounds {
            let own = round * per_round..(round + 1) * per_round;
            let before = (round > 0).then(|| self.here(Stage::Select, round.saturating_sub(1)));
            for part in own.clone() {
                let mut inputs = vec![("policy".into(), rollout_policy)];
                // A later round plays as many groups as are still missing, often none.
                inputs.extend(before.map(|select| ("select".into(), select)));
                inputs.extend(entered.clone());
                self.rollout(part, inputs);
            }
            if plan.selects() {
                let rollouts = own.map(|part| (format!("rollout.{part}"), self.rewarded(part)));
                let before = before.map(|select| ("before".into(), select));
                let inputs = rollouts.chain(before).collect();
                self.add(Stage::Select, round, inputs);
            }
        }
        for part in 0..rollouts {
            let mut inputs = vec![
                ("rollout".into(), self.rewarded(part)),
                ("policy".into(), start_policy),
            ];
            if plan.needs_reference() {
                inputs.push(("reference".into(), reference_of(plan)));
            }
            if let Some(critic) = critic_of(plan, n - 1) {
                inputs.push(("critic".into(), critic));
            }
            self.add(Stage::LogProbs, part, inputs);
        }
        let both = (0..rollouts).flat_map(|part| {
            [
                (format!("rollout.{part}"), self.rewarded(part)),
                (
                    format!("log_probs.{part}"),
                    self.here(Stage::LogProbs, part),
                ),
            ]
        });
        let mut inputs: Vec<(String, PartId)> = both.collect();
        if plan.selects() {
            inputs.push(("select".into(), self.here(Stage::Select, rounds - 1)));
        }
        if n > 1 && (plan.kl_adapts() || plan.has_curriculum()) {
            inputs.push(("before".into(), batch_of(n - 1)));
        }
        inputs.extend(entered);
        self.add(Stage::Advantage, 0, inputs);
        let batch = self.here(Stage::Advantage, 0);
        self.update(batch, start_policy);
        if let Some(critic) = critic_of(plan, n - 1) {
            self.add(
                Stage::CriticUpdate,
                0,
                vec![("batch".into(), batch), ("critic".into(), critic)],
            );
        }
        let update = policy_of(plan, n);
        if plan.evaluates(n) {
            self.evaluate(Stage::Evaluate, update);
        }
        self.add(Stage::Expire, 0, vec![("update".into(), update)]);
    }

    /// The optimizer steps: all in one part, or one part per step with gradient shards.
    fn update(&mut self, batch: PartId, start: PartId) {
        let shards = self.plan.gradient_shards(self.iteration);
        for part in 0..self.plan.update_parts(self.iteration) {
            let before = match part {
                0 => start,
                _ => self.here(Stage::Update, part - 1),
            };
            let inputs = vec![("batch".into(), batch), ("policy".into(), before)];
            let own = part * shards..(part + 1) * shards;
            for shard in own.clone() {
                self.add(Stage::Gradient, shard, inputs.clone());
            }
            let gradients = own.enumerate().map(|(shard, part)| {
                let from = self.here(Stage::Gradient, part);
                (format!("gradient.{shard}"), from)
            });
            let inputs = inputs.into_iter().chain(gradients).collect();
            self.add(Stage::Update, part, inputs);
        }
    }
}
