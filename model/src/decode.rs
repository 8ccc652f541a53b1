//! One step of generation: the logits of the next token, on whichever device the network is,
//! and an id drawn from each row of them.

use crate::Result;
use crate::gpu;
use crate::network::{Batch, Cache, Network, Numbers};
use crate::sampler::Draw;

/// Raw logits, a row for each sequence whose next token is wanted.
pub(crate) enum Logits<'a> {
    Host {
        rows: Vec<f32>,
        vocabulary: usize,
    },
    Gpu {
        rows: gpu::Matrix,
        network: &'a gpu::Network,
    },
}

impl Network {
    /// Runs a batch of segments, each on its cache, and returns the logits after `rows`; `head` is
    /// [`Network::generating_head`].
    pub(crate) fn next_token(
        &self,
        batch: &Batch,
        rows: &[u32],
        caches: &mut [&mut Cache],
        head: &Numbers,
    ) -> Result<Logits<'_>> {
        let Some(network) = &self.gpu else {
            let hidden = self.hidden(batch, rows, Some(caches), None);
            return Ok(Logits::Host {
                rows: self.logits(&hidden, head),
                vocabulary: self.vocabulary(),
            });
        };
        let mut pages: Vec<&mut gpu::Cache> = (caches.iter_mut())
            .filter_map(|cache| cache.pages.as_mut())
            .collect();
        let hidden = network.hidden(batch, rows, Some(&mut pages), None)?;
        Ok(Logits::Gpu {
            rows: network.logits(&hidden)?,
            network,
        })
    }
}

impl Logits<'_> {
    /// An id for each row, and its log-probability.
    pub(crate) fn draw(&self, draws: &[Draw<'_>]) -> Result<Vec<(u32, f32)>> {
        match self {
            Logits::Host { rows, vocabulary } => {
                let rows = rows.chunks_exact(*vocabulary);
                Ok(draws
                    .iter()
                    .zip(rows)
                    .map(|(draw, row)| draw.of(row))
                    .collect())
            }
            Logits::Gpu { rows, network } => network.sample(rows, draws),
        }
    }
}
