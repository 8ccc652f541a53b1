//! The networks of candle-transformers behind one face: ids in, the logits behind the last one out.
//! A clone of a network that has run nothing shares its weights and has a cache of its own.

use candle_core::{Device, Result, Tensor};
use candle_transformers::models::{
    gemma, gemma2, gemma3, phi3, quantized_llama, quantized_phi3, quantized_qwen3, qwen2_moe,
    qwen3_moe,
};

#[derive(Clone)]
pub(super) enum Network {
    Gemma(gemma::Model),
    Gemma2(gemma2::Model),
    Gemma3(gemma3::Model),
    Phi3(phi3::Model),
    Qwen2Moe(qwen2_moe::Model),
    Qwen3Moe(qwen3_moe::ModelForCausalLM),
    LlamaFile(quantized_llama::ModelWeights),
    Phi3File(quantized_phi3::ModelWeights),
    Qwen3File(quantized_qwen3::ModelWeights),
}

impl Network {
    /// Runs ids that stand at `at` and the places after it; the logits behind the last one.
    pub(super) fn run(&mut self, ids: &[u32], at: usize, device: &Device) -> Result<Vec<f32>> {
        let ids = Tensor::new(ids, device)?.unsqueeze(0)?;
        let logits = match self {
            Self::Gemma(model) => model.forward(&ids, at),
            Self::Gemma2(model) => model.forward(&ids, at),
            Self::Gemma3(model) => model.forward(&ids, at),
            Self::Phi3(model) => model.forward(&ids, at),
            Self::Qwen2Moe(model) => model.forward(&ids, at),
            Self::Qwen3Moe(model) => model.forward(&ids, at),
            Self::LlamaFile(model) => model.forward(&ids, at),
            Self::Phi3File(model) => model.forward(&ids, at),
            Self::Qwen3File(model) => model.forward(&ids, at),
        };
        logits?.flatten_all()?.to_vec1()
    }
}

/// How long a conversation candle computes as the model's authors do, and how it must be given its ids.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reach {
    /// Most ids.
    pub(super) positions: usize,
    /// What says so.
    pub(super) why: String,
    pub(super) chunks: Chunks,
}

/// Where several ids may be run at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Chunks {
    /// Everywhere.
    Anywhere,
    /// Below this place: candle forgets behind it what a sliding window has left, which is right only
    /// for one id at a time.
    Below(usize),
    /// At the start alone: candle keeps what it ran one at a time apart from what it ran together.
    First,
}

/// Most ids that are run at once; what attention takes grows with them.
const CHUNK: usize = 512;

impl Chunks {
    /// The end of what is run together from `at` on. The cut depends on who said an id and where it
    /// stands, never on when it was given: so a conversation that is taken up has the bits that it had.
    pub(super) fn end(self, sampled: &[bool], at: usize) -> usize {
        if sampled[at] {
            return at + 1;
        }
        let said = sampled[at..].iter().position(|sampled| *sampled);
        let end = said.map_or(sampled.len(), |said| at + said);
        match self {
            Self::Anywhere => end.min(at + CHUNK),
            Self::Below(place) if at < place => end.min(place).min(at + CHUNK),
            Self::First if at == 0 => end,
            Self::Below(_) | Self::First => at + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_run_together_does_not_depend_on_when_it_was_given() {
        let mut sampled = vec![false; 1200];
        sampled.extend([true, true, false, false, false, true]);
        let cuts = |chunks: Chunks| {
            let mut cuts = vec![0];
            while *cuts.last().unwrap() < sampled.len() {
                cuts.push(chunks.end(&sampled, *cuts.last().unwrap()));
            }
            cuts
        };
        let turns = [1200, 1201, 1202, 1205, 1206];
        assert_eq!(
            cuts(Chunks::Anywhere),
            [&[0, 512, 1024][..], &turns].concat()
        );
        let near = cuts(Chunks::Below(600));
        assert_eq!(near[..4], [0, 512, 600, 601]);
        assert_eq!(near.len(), 3 + 1206 - 600);
        assert_eq!(
            cuts(Chunks::First),
            [0, 1200, 1201, 1202, 1203, 1204, 1205, 1206]
        );
    }
}
