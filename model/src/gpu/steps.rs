//! Decode steps that are recorded once and replayed: where every running sequence has one new
//! token, the device calls of a step depend on a few sizes alone. Launching every kernel takes
//! longer than a small network computes.
//!
//! Lists are padded to those sizes. A padding row is a sequence of one token, which writes into a
//! spare page that no other row reads; since a row's bits do not depend on what is computed beside
//! it, padding does not change the other rows (I7).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::backend::{Recording, TILE};
use super::cache::Cache;
use super::matrix::Operands;
use super::network::Network;
use super::rows::{Lists, Rows, Sizes};
use crate::batch::Batch;
use crate::{Error, Result};

/// The recorded steps of one network.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// By sizes; `None` for sizes that have occurred only once.
    known: BTreeMap<Sizes, Option<Step>>,
    /// Where padding rows write; kept, since a discarded step may still execute.
    spare: Option<Cache>,
    /// Recording is off: there is no memory for it, or no support.
    off: bool,
    replays: u64,
}

/// A recorded step, its inputs and its output.
#[derive(Debug)]
struct Step {
    // First, to be dropped before the memory that it was recorded with.
    recording: Recording,
    rows: Rows,
    hidden: Operands,
}

impl Step {
    fn record(network: &Network, lists: &Lists, sizes: Sizes) -> Result<Self> {
        let gpu = &network.gpu;
        let rows = Rows::upload(gpu, lists)?;
        let hidden = gpu.matrix(sizes.rows, network.hidden)?;
        let recording = gpu.record(|| hidden.set_part(0, &network.hidden_of(&rows)?))?;
        Ok(Step {
            recording,
            rows,
            hidden,
        })
    }
}

impl Steps {
    /// How many steps were replayed.
    pub(crate) fn replays(&self) -> u64 {
        self.replays
    }

    /// Frees all recordings and makes no more; returns whether there were any.
    pub(crate) fn give_up(&mut self) -> bool {
        self.off = true;
        !std::mem::take(&mut self.known).is_empty()
    }

    /// Normed hidden states of the `wanted` rows of a batch whose segments have a cache each.
    pub(crate) fn hidden(
        &mut self,
        network: &Network,
        batch: &Batch,
        wanted: &[u32],
        caches: &mut [&mut Cache],
    ) -> Result<Operands> {
        let (gpu, group) = (&network.gpu, network.group());
        let each_has_one = batch.lengths.iter().all(|&length| length == 1);
        let records = !self.off && gpu.keeps_steps();
        if !records || !each_has_one || wanted.len() != batch.ids.len() {
            let lists = Lists::of_caches(gpu, batch, wanted, caches, None, group)?;
            return network.hidden_of(&Rows::upload(gpu, &lists)?);
        }
        let padded = batch.padded(rounded(wanted.len()));
        let spare = match padded.ids.len() > wanted.len() {
            true => Some(self.spare(network)?),
            false => None,
        };
        let all: Vec<u32> = (0..padded.ids.len() as u32).collect();
        let mut lists = Lists::of_caches(gpu, &padded, &all, caches, spare, group)?;
        let sizes = lists.round_up();
        let done = match self.done_again(network, &lists, sizes) {
            Err(error @ Error::Device { .. }) => {
                gpu.keep_no_steps(&error);
                self.give_up();
                None
            }
            other => other?,
        };
        let hidden = match done {
            Some(step) => &step.hidden,
            None => &network.hidden_of(&Rows::upload(gpu, &lists)?)?,
        };
        hidden.part(0, wanted.len())
    }

    fn spare(&mut self, network: &Network) -> Result<&Cache> {
        let spare = match self.spare.take() {
            Some(spare) => spare,
            None => network.cache().page(&network.gpu)?,
        };
        Ok(self.spare.insert(spare))
    }

    /// Replays the step of these sizes with these lists. `None`, without any work done, when sizes
    /// occur for the first time: a recording pays off only if it is used again.
    fn done_again(
        &mut self,
        network: &Network,
        lists: &Lists,
        sizes: Sizes,
    ) -> Result<Option<&Step>> {
        let step = match self.known.entry(sizes) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                new.insert(None);
                return Ok(None);
            }
        };
        let step = match step {
            Some(step) => {
                step.rows.refill(lists)?;
                step
            }
            none => none.insert(Step::record(network, lists, sizes)?),
        };
        step.recording.replay()?;
        self.replays += 1;
        Ok(Some(step))
    }
}

/// `rows` rounded up, which costs little: products take whole tiles of rows.
fn rounded(rows: usize) -> usize {
    match rows < TILE {
        true => rows.next_power_of_two(),
        false => rows.next_multiple_of(TILE),
    }
}
