//! The output head on a GPU: log-probabilities and entropies of rows, a chunk of logits at a
//! time, their derivative, and sampling.

use super::backend::{Argument, Buffer, Launch, TILE};
use super::matrix::{Matrix, Operands};
use super::network::Network;
use crate::Result;
use crate::batch::Streams;
use crate::sampler::{Draw, Drawn};

/// Threads per block of the kernels that iterate over a vocabulary.
const THREADS: u32 = 256;

/// Rows whose logits are held at a time.
pub(crate) const CHUNK_ROWS: usize = 8 * TILE;

impl Network {
    /// Raw logits of hidden states.
    pub(crate) fn logits(&self, hidden: &Operands) -> Result<Matrix> {
        hidden.times(self.head())
    }

    /// Log-probabilities of `targets` and entropies, row by row.
    pub(crate) fn predict(
        &self,
        hidden: &Operands,
        targets: &[u32],
        inverse_temperature: f32,
    ) -> Result<Streams> {
        let mut streams = Streams::default();
        for (chunk, targets) in targets.chunks(CHUNK_ROWS).enumerate() {
            let logits = self.logits(&hidden.part(chunk * CHUNK_ROWS, targets.len())?)?;
            let log_probs = self.gpu.buffer::<f32>(targets.len())?;
            let entropies = self.gpu.buffer::<f32>(targets.len())?;
            let targets = self.gpu.upload(targets)?;
            let outputs = [log_probs.pointer(), entropies.pointer()];
            let numbers = [
                Argument::Int(self.vocabulary as i32),
                Argument::Float(inverse_temperature),
            ];
            let inputs = [logits.pointer(), targets.pointer()];
            let arguments = [inputs, outputs, numbers].concat();
            self.through_vocabulary("distribution", targets.length(), &arguments)?;
            streams
                .log_probs
                .extend(log_probs.download(targets.length())?);
            streams
                .entropies
                .extend(entropies.download(targets.length())?);
        }
        Ok(streams)
    }

    /// The derivative of a loss by hidden states, given the loss's derivatives `by` by the streams.
    /// Adds the one by the head's weight as stored to `by_weight`.
    pub(super) fn predict_backward(
        &self,
        hidden: &Operands,
        targets: &[u32],
        inverse_temperature: f32,
        by: &Streams,
        by_weight: Option<&Buffer>,
    ) -> Result<Matrix> {
        let by_hidden: Matrix = self.gpu.matrix(hidden.rows(), hidden.width())?;
        for (chunk, targets) in targets.chunks(CHUNK_ROWS).enumerate() {
            let first = chunk * CHUNK_ROWS;
            let part = hidden.part(first, targets.len())?;
            let logits = self.logits(&part)?;
            let range = first..first + targets.len();
            let by_log_prob = self.gpu.upload(&by.log_probs[range.clone()])?;
            let by_entropy = self.gpu.upload(&by.entropies[range])?;
            let targets = self.gpu.upload(targets)?;
            let by_logits: Operands = self.gpu.matrix(logits.rows(), logits.width())?;
            let arguments = [
                logits.pointer(),
                targets.pointer(),
                by_log_prob.pointer(),
                by_entropy.pointer(),
                by_logits.pointer(),
                Argument::Int(self.vocabulary as i32),
                Argument::Float(inverse_temperature),
            ];
            let rows = targets.length();
            self.through_vocabulary("distribution_backward", rows, &arguments)?;
            by_hidden.set_part(first, &by_logits.times_transposed(self.head())?)?;
            if let Some(by_weight) = by_weight {
                match self.head().transposed {
                    true => by_logits.add_weight_gradient(&part, by_weight, true)?,
                    false => part.add_weight_gradient(&by_logits, by_weight, true)?,
                }
            }
        }
        Ok(by_hidden)
    }

    /// Draws an id from every row of logits, and gives its log-probability.
    pub(crate) fn sample(&self, logits: &Matrix, draws: &[Draw<'_>]) -> Result<Vec<Drawn>> {
        // A top-k or top-p cut needs a sorted distribution, which the CPU computes.
        let rows = match draws.iter().any(Draw::cuts) {
            true => logits.download()?,
            false => Vec::new(),
        };
        let mut log_kept_masses = vec![0.0; draws.len()];
        let mut number = |(row, draw): (usize, &Draw<'_>)| match draw.cuts() {
            true => {
                let drawn = draw.of(&rows[row * self.vocabulary..][..self.vocabulary]);
                log_kept_masses[row] = drawn.log_kept_mass;
                -2.0 - f64::from(drawn.id)
            }
            false => draw.uniform().unwrap_or(-1.0),
        };
        let numbers: Vec<f64> = draws.iter().enumerate().map(&mut number).collect();
        let scales: Vec<f32> = draws.iter().map(Draw::inverse_temperature).collect();
        let (numbers, scales) = (self.gpu.upload(&numbers)?, self.gpu.upload(&scales)?);
        let ids = self.gpu.buffer::<u32>(draws.len())?;
        let log_probs = self.gpu.buffer::<f32>(draws.len())?;
        let entropies = self.gpu.buffer::<f32>(draws.len())?;
        let arguments = [
            logits.pointer(),
            numbers.pointer(),
            scales.pointer(),
            ids.pointer(),
            log_probs.pointer(),
            entropies.pointer(),
            Argument::Int(self.vocabulary as i32),
        ];
        self.through_vocabulary("sample", draws.len(), &arguments)?;
        let ids = ids.download(draws.len())?;
        let log_probs = log_probs.download(draws.len())?;
        let entropies = entropies.download(draws.len())?;
        let drawn = |row| Drawn {
            id: ids[row],
            log_prob: log_probs[row],
            entropy: entropies[row],
            log_kept_mass: log_kept_masses[row],
        };
        Ok((0..draws.len()).map(drawn).collect())
    }

    fn through_vocabulary(
        &self,
        kernel: &'static str,
        rows: usize,
        arguments: &[Argument],
    ) -> Result<()> {
        self.gpu.launch(&Launch {
            kernel,
            grid: (rows, 1),
            block: THREADS,
            shared: 0,
            arguments,
        })
    }
}
