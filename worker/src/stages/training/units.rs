//! Cutting a minibatch's sequences into gradient units, which one thread each computes. The cut
//! depends on the plan and on the sequences alone.

use crate::Result;
use agentgym_algorithms::batches::scoped_units;
use agentgym_model::{ScoreRequest, TrainSequence, Unit, cut_tree, tree_nodes};
use agentgym_record::documents::UnitRule;
use agentgym_record::metrics::TrainedTokens;
use std::ops::Range;

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

impl Size {
    /// The metrics of what steps by a rule computed.
    pub(crate) fn trained_by(self, rule: UnitRule) -> TrainedTokens {
        TrainedTokens {
            trained_tokens: self.tokens,
            shared_tokens: rule.share_prefixes.then(|| self.tokens - self.nodes),
        }
    }
}

impl Units {
    /// Cuts `sequences`, of which `scope` neighbours at a time must stay together.
    pub(crate) fn cut(
        rule: UnitRule,
        sequences: &[ScoreRequest<'_>],
        scope: usize,
    ) -> Result<Self> {
        let members: Vec<Vec<usize>> = match rule.share_prefixes {
            false => {
                let lengths: Vec<usize> = sequences.iter().map(|s| s.token_ids.len()).collect();
                let ranges = scoped_units(&lengths, scope, rule.unit_tokens)?;
                ranges.into_iter().map(Iterator::collect).collect()
            }
            true => {
                let scopes = sequences.chunks(scope);
                let scopes: Vec<Vec<&[u32]>> = scopes
                    .map(|scope| scope.iter().map(ScoreRequest::path).collect())
                    .collect();
                let cuts = cut_tree(&scopes, rule.unit_tokens)?;
                let all = |at: usize| at * scope..(at + 1) * scope;
                let members = cuts.into_iter().map(|cut| cut.into_iter().flat_map(all));
                members.map(Iterator::collect).collect()
            }
        };
        let size = |unit: &Vec<usize>| {
            let sequences = || unit.iter().map(|&at| &sequences[at]);
            let tokens = sequences().map(|s| s.token_ids.len()).sum();
            let nodes = match rule.share_prefixes {
                false => tokens,
                true => tree_nodes(&sequences().map(ScoreRequest::path).collect::<Vec<_>>()),
            };
            Size { tokens, nodes }
        };
        Ok(Units {
            rule,
            sizes: members.iter().map(size).collect(),
            members,
        })
    }

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
