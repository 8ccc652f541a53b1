//! Cutting a minibatch's sequences into gradient units, which one thread each computes. The cut
//! depends on the plan and on the sequences alone.

use crate::Result;
use agentgym_algorithms::batches::scoped_units;
use agentgym_jobs::config::Config;
use agentgym_model::{ScoreRequest, TrainSequence, Unit, cut_tree, tree_nodes};
use agentgym_record::metrics::TrainedTokens;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How units are cut; part of a step's recorded settings.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct UnitRule {
    /// Most tokens of a unit of several sequences; where prefixes are shared, most nodes of its
    /// tree.
    pub(crate) unit_tokens: usize,
    /// Whether what sequences have in common is computed once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) share_prefixes: bool,
}

impl UnitRule {
    pub(crate) fn of(config: &Config) -> Self {
        UnitRule {
            unit_tokens: config.jobs.unit_tokens,
            share_prefixes: config.actor_rollout_ref.actor.share_prefixes,
        }
    }
}

/// The gradient units of a minibatch.
#[derive(Debug)]
pub(crate) struct Units {
    rule: UnitRule,
    /// The sequences of each unit, ascending.
    members: Vec<Vec<usize>>,
    sizes: Vec<Size>,
}

/// What a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Size {
    /// Tokens of all sequences.
    pub(crate) tokens: usize,
    /// Those that go through forward and backward on their own.
    pub(crate) nodes: usize,
}

impl std::ops::AddAssign for Size {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.nodes += other.nodes;
    }
}

impl std::iter::Sum for Size {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        let mut sum = Size::default();
        sizes.for_each(|size| sum += size);
        sum
    }
}

impl UnitRule {
    /// The metrics of what steps by this rule computed.
    pub(crate) fn trained(self, size: Size) -> TrainedTokens {
        TrainedTokens {
            trained_tokens: size.tokens,
            shared_tokens: self.share_prefixes.then(|| size.tokens - size.nodes),
        }
    }

    /// Cuts `sequences`, of which `scope` neighbours at a time must stay together.
    pub(crate) fn cut(self, sequences: &[ScoreRequest<'_>], scope: usize) -> Result<Units> {
        let members: Vec<Vec<usize>> = match self.share_prefixes {
            false => {
                let lengths: Vec<usize> = sequences.iter().map(|s| s.token_ids.len()).collect();
                let ranges = scoped_units(&lengths, scope, self.unit_tokens)?;
                ranges.into_iter().map(Iterator::collect).collect()
            }
            true => {
                let scopes = sequences.chunks(scope);
                let scopes: Vec<Vec<&[u32]>> = scopes
                    .map(|scope| scope.iter().map(ScoreRequest::path).collect())
                    .collect();
                let cuts = cut_tree(&scopes, self.unit_tokens)?;
                let all = |at: usize| at * scope..(at + 1) * scope;
                let members = cuts.into_iter().map(|cut| cut.into_iter().flat_map(all));
                members.map(Iterator::collect).collect()
            }
        };
        let size = |unit: &Vec<usize>| {
            let sequences = || unit.iter().map(|&at| &sequences[at]);
            let tokens = sequences().map(|s| s.token_ids.len()).sum();
            let nodes = match self.share_prefixes {
                false => tokens,
                true => tree_nodes(&sequences().map(ScoreRequest::path).collect::<Vec<_>>()),
            };
            Size { tokens, nodes }
        };
        Ok(Units {
            rule: self,
            sizes: members.iter().map(size).collect(),
            members,
        })
    }
}

impl Units {
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The sequences of a unit, ascending: the order of its streams.
    pub(crate) fn of(&self, unit: usize) -> &[usize] {
        &self.members[unit]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[usize]> {
        self.members.iter().map(Vec::as_slice)
    }

    /// What `some` of the units compute.
    pub(crate) fn size(&self, some: Range<usize>) -> Size {
        self.sizes[some].iter().copied().sum()
    }

    /// The units as the trainer takes them.
    pub(crate) fn for_model<'a>(&self, sequence: impl Fn(usize) -> ScoreRequest<'a>) -> Vec<Unit> {
        let sequence = |&at: &usize| {
            let ScoreRequest {
                token_ids,
                loss_mask,
            } = sequence(at);
            TrainSequence {
                token_ids: token_ids.to_vec(),
                loss_mask: loss_mask.to_vec(),
            }
        };
        let unit = |members: &Vec<usize>| Unit {
            sequences: members.iter().map(sequence).collect(),
            skip: false,
            share_prefixes: self.rule.share_prefixes,
        };
        self.members.iter().map(unit).collect()
    }
}
