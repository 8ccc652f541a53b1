//! Invented recipe books: from a seed, a new task of a chosen depth.
//!
//! Real goals are few, and a small model memorises them. Worlds are unlimited, so a model learns to
//! read, copy and plan. A world has a few lines: a chain of crafts that leads to the goal,
//! sometimes a second craftable ingredient or another recipe, and distractors. Counts are drawn so
//! that an intermediate item is crafted once, seldom twice, which bounds the number of rounds of a
//! solution.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::book::{BookBuilder, RecipeBook};
use super::words::{Names, Vocabulary};
use super::world::World;
use crate::draws::Draws;
use agentgym_envs::EnvError;

const DEPTH_MAX: u32 = 8;
const LINES_MAX: u32 = 24;
const INPUTS_MAX: usize = 4;
const COUNT_MAX: u32 = 9;
const DISTRACTORS: RangeInclusive<u32> = 1..=3;

/// Chances in percent.
const CRAFTED_TWICE: usize = 20;
const RAW_USED_AGAIN: usize = 25;
const SIDE_CRAFT: usize = 40;
const ALTERNATIVE: usize = 40;

/// The shape of generated worlds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worlds {
    depths: RangeInclusive<u32>,
    lines: RangeInclusive<u32>,
    vocabulary: Vocabulary,
}

impl Default for Worlds {
    fn default() -> Self {
        Self {
            depths: 1..=3,
            lines: 4..=8,
            vocabulary: Vocabulary::Lexicon,
        }
    }
}

struct Draft {
    output: String,
    count: u32,
    inputs: Vec<(String, u32)>,
    /// Consecutive crafts that the output needs.
    depth: u32,
}

impl Worlds {
    /// Worlds of these depths and numbers of lines. The depth of world `id` is
    /// `depths.start + id mod (number of depths)`.
    pub fn new(depths: RangeInclusive<u32>, lines: RangeInclusive<u32>) -> Result<Self, EnvError> {
        let (low, high) = (*depths.start(), *depths.end());
        if low < 1 || high > DEPTH_MAX || low > high {
            return Err(EnvError::Worlds(format!(
                "depths {low}-{high} are not possible; they lie in 1-{DEPTH_MAX}"
            )));
        }
        let (few, many) = (*lines.start(), *lines.end());
        if few < 2 || many > LINES_MAX || few > many || many <= high {
            return Err(EnvError::Worlds(format!(
                "lines {few}-{many} are not possible with depths up to {high}; they lie in \
                 2-{LINES_MAX}, and more than the depth are needed"
            )));
        }
        Ok(Self {
            depths,
            lines,
            vocabulary: Vocabulary::Lexicon,
        })
    }

    /// The same shape with another vocabulary.
    pub fn with_vocabulary(self, vocabulary: Vocabulary) -> Self {
        Self { vocabulary, ..self }
    }

    /// The depth of a world's goal.
    pub fn depth(&self, seed: u64) -> u32 {
        let depths = u64::from(self.depths.end() - self.depths.start()) + 1;
        self.depths.start() + (seed % depths) as u32
    }

    /// The world of a seed; it is the same on every machine.
    pub fn world(&self, seed: u64) -> World {
        let mut draws = Draws::new("world", &[&seed.to_le_bytes()]);
        let mut maker = Maker {
            names: Names::new(self.vocabulary, &mut draws),
            raws: Vec::new(),
            drafts: Vec::new(),
            draws,
        };
        let depth = self.depth(seed);
        let lines = maker.draws.between(self.lines.clone());
        let distractors = maker.draws.between(DISTRACTORS);
        maker.chain(depth);
        let wanted = lines.saturating_sub(distractors);
        if depth < wanted && maker.draws.percent(SIDE_CRAFT) {
            maker.side_craft();
        }
        if (maker.drafts.len() as u32) < wanted && maker.draws.percent(ALTERNATIVE) {
            maker.alternative();
        }
        let required = maker.drafts.len();
        let fewest = self.lines.start().saturating_sub(required as u32);
        let most = self.lines.end().saturating_sub(required as u32);
        for _ in 0..distractors.max(fewest).min(most) {
            maker.distractor(required);
        }
        maker.finish()
    }
}

struct Maker {
    draws: Draws,
    names: Names,
    raws: Vec<String>,
    /// The goal's recipe first, then the chain below it, then extras, then distractors.
    drafts: Vec<Draft>,
}

impl Maker {
    fn chain(&mut self, depth: u32) {
        let outputs: Vec<(String, u32)> = (0..depth)
            .map(|_| (self.names.next(&mut self.draws), self.output_count()))
            .collect();
        for (level, (output, count)) in outputs.iter().enumerate() {
            let mut inputs = Vec::new();
            if let Some((next, made)) = outputs.get(level + 1) {
                let need = self.need(*made);
                inputs.push((next.clone(), need));
                let raws = self.draws.weighted(&[45, 40, 15]);
                self.add_raws(&mut inputs, raws);
            } else {
                let raws = 1 + self.draws.weighted(&[40, 40, 15, 5]);
                self.add_raws(&mut inputs, raws);
            }
            self.draws.shuffle(&mut inputs);
            self.drafts.push(Draft {
                output: output.clone(),
                count: *count,
                inputs,
                depth: depth - level as u32,
            });
        }
    }

    /// Once: adds an ingredient of the tree that has to be crafted from raw items; the depth does
    /// not change.
    fn side_craft(&mut self) {
        let hosts: Vec<usize> = (0..self.drafts.len())
            .filter(|at| self.drafts[*at].depth >= 2 && self.drafts[*at].inputs.len() < INPUTS_MAX)
            .collect();
        if hosts.is_empty() {
            return;
        }
        let host = hosts[self.draws.below(hosts.len())];
        let output = self.names.next(&mut self.draws);
        let count = self.output_count();
        let need = self.need(count);
        self.drafts[host].inputs.push((output.clone(), need));
        self.add_simple(output, count);
    }

    /// Another recipe for an item that is made only from raw items. In rare cases it equals the
    /// existing recipe, and the world has one line fewer than requested. This is not corrected:
    /// files refer to worlds by seed, so the world of a seed must not change.
    fn alternative(&mut self) {
        let simple: Vec<usize> = (0..self.drafts.len())
            .filter(|at| self.drafts[*at].depth == 1)
            .collect();
        let at = simple[self.draws.below(simple.len())];
        // With the same yield, so that it needs no more crafts.
        let (output, count) = (self.drafts[at].output.clone(), self.drafts[at].count);
        self.add_simple(output, count);
    }

    /// A recipe from raw items alone.
    fn add_simple(&mut self, output: String, count: u32) {
        let mut inputs = Vec::new();
        let raws = 1 + self.draws.weighted(&[50, 40, 10]);
        self.add_raws(&mut inputs, raws);
        self.drafts.push(Draft {
            output,
            count,
            inputs,
            depth: 1,
        });
    }

    /// A line that uses an ingredient of the goal's tree to make something useless.
    fn distractor(&mut self, required: usize) {
        let host = self.draws.below(required);
        let inputs = &self.drafts[host].inputs;
        let (shared, _) = &inputs[self.draws.below(inputs.len())];
        let mut inputs = vec![(shared.clone(), self.draws.between(1..=COUNT_MAX))];
        let raws = self.draws.weighted(&[45, 40, 15]);
        self.add_raws(&mut inputs, raws);
        self.draws.shuffle(&mut inputs);
        let output = self.names.next(&mut self.draws);
        let count = self.output_count();
        self.drafts.push(Draft {
            output,
            count,
            inputs,
            depth: 0,
        });
    }

    fn add_raws(&mut self, inputs: &mut Vec<(String, u32)>, count: usize) {
        for _ in 0..count {
            let known = !self.raws.is_empty() && self.draws.percent(RAW_USED_AGAIN);
            let mut raw = None;
            if known {
                let choice = &self.raws[self.draws.below(self.raws.len())];
                if inputs.iter().all(|(name, _)| name != choice) {
                    raw = Some(choice.clone());
                }
            }
            let raw = raw.unwrap_or_else(|| {
                let name = self.names.next(&mut self.draws);
                self.raws.push(name.clone());
                name
            });
            let most = [3, 6, COUNT_MAX][self.draws.weighted(&[50, 30, 20])];
            inputs.push((raw, self.draws.between(1..=most)));
        }
    }

    fn output_count(&mut self) -> u32 {
        1 + self.draws.weighted(&[50, 20, 15, 15]) as u32
    }

    /// How many of an intermediate item are needed, if one craft makes `made` of it.
    fn need(&mut self, made: u32) -> u32 {
        let crafts = 1 + u32::from(self.draws.percent(CRAFTED_TWICE));
        let most = (crafts * made).min(COUNT_MAX);
        self.draws.between((crafts - 1) * made + 1..=most)
    }

    fn finish(mut self) -> World {
        let mut builder = BookBuilder::default();
        for draft in &self.drafts {
            let inputs: Vec<_> = draft
                .inputs
                .iter()
                .map(|(name, count)| (name.clone(), false, *count))
                .collect();
            builder.add(&draft.output, draft.count, &inputs, None);
        }
        let book: RecipeBook = builder.finish();
        let goal = book
            .find(&self.drafts[0].output)
            .expect("the goal's recipe was the first one added");
        let mut lines: Vec<String> = book.recipes().iter().map(|r| book.line(r)).collect();
        lines.sort_unstable();
        lines.dedup();
        self.draws.shuffle(&mut lines);
        World {
            book: Arc::new(book),
            goal,
            lines,
        }
    }
}
