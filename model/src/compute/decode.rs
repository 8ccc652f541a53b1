//! One decode step: the logits of the next tokens, on the network's device, and an id drawn
//! from each row of them.

use crate::Result;
use crate::batch::Batch;
use crate::compute::{Cache, Network};
use crate::cpu::layer::Numbers;
use crate::gpu;
use crate::parallel;
use crate::sampler::{Draw, Drawn};
use std::sync::Arc;

/// Raw logits, a row for each sequence whose next token is wanted.
pub(crate) enum Logits {
    Host {
        rows: Vec<f32>,
        vocabulary: usize,
    },
    Gpu {
        rows: gpu::Matrix,
        network: Arc<gpu::Network>,
    },
}

/// The state of generation between steps, apart from caches.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// [`Network::generating_head`]
    head: Numbers,
    /// From the first step on, as its recorded steps refer to it.
    on_gpu: Option<Arc<gpu::Network>>,
    steps: gpu::Steps,
}

impl Decoder {
    pub(crate) fn new(network: &Network) -> Self {
        Decoder {
            head: network.generating_head(),
            on_gpu: None,
            steps: gpu::Steps::default(),
        }
    }

    /// Steps that a GPU replayed from a recording.
    pub(crate) fn replays(&self) -> u64 {
        self.steps.replays()
    }

    /// Releases memory that only serves speed; returns whether there was any.
    pub(crate) fn make_do(&mut self) -> bool {
        self.steps.give_up()
    }

    /// Runs a batch of segments, each with its cache, through `network`, which must be the one of
    /// [`Decoder::new`], and returns the logits that follow `rows`.
    pub(crate) fn next_token(
        &mut self,
        network: &Network,
        batch: &Batch,
        rows: &[u32],
        caches: &mut [&mut Cache],
    ) -> Result<Logits> {
        if self.on_gpu.is_none() {
            self.on_gpu = network.on_gpu()?;
        }
        let Some(on_gpu) = &self.on_gpu else {
            let mut own: Vec<_> = (caches.iter_mut())
                .filter_map(|cache| match cache {
                    Cache::Host(cache) => Some(cache),
                    Cache::Gpu(_) => None,
                })
                .collect();
            let hidden = network.host.hidden(batch, rows, Some(&mut own), None);
            return Ok(Logits::Host {
                rows: network.host.logits(&hidden, &self.head),
                vocabulary: network.vocabulary(),
            });
        };
        let mut pages: Vec<&mut gpu::Cache> = (caches.iter_mut())
            .filter_map(|cache| match cache {
                Cache::Host(_) => None,
                Cache::Gpu(pages) => Some(pages),
            })
            .collect();
        let hidden = self.steps.hidden(on_gpu, batch, rows, &mut pages)?;
        Ok(Logits::Gpu {
            rows: on_gpu.logits(&hidden)?,
            network: Arc::clone(on_gpu),
        })
    }
}

impl Logits {
    /// An id for each row.
    pub(crate) fn draw(&self, draws: &[Draw<'_>]) -> Result<Vec<Drawn>> {
        match self {
            Logits::Host { rows, vocabulary } => {
                let rows = rows.chunks_exact(*vocabulary);
                let drawn = draws.iter().zip(rows).collect();
                Ok(parallel::divided(drawn, |(draw, row)| draw.of(row)))
            }
            Logits::Gpu { rows, network } => network.sample(rows, draws),
        }
    }
}
