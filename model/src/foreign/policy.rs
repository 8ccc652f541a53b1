//! A folder's model by candle, and the conversations with it.

use super::ForeignModel;
use super::family::Described;
use super::gguf::{self, GgufFile};
use super::network::{Network, Reach};
use crate::folder::names::{CONFIG, EMBEDDING, HEAD, INDEX};
use crate::folder::parameter::check_finite;
use crate::folder::parameter::numbers;
use crate::folder::tokenizer;
use crate::folder::weight_files::WeightFiles;
use crate::generate::request::{FinishReason, Generation, GenerationRequest};
use crate::policy_text::GENERATION_CONFIG;
use crate::sampler::{Draw, Drawn};
use crate::{Device, Error, PolicyText, Result};
use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files of a folder besides the weights and the tokenizer's.
const BESIDE: [&str; 4] = [CONFIG, GENERATION_CONFIG, "chat_template.jinja", INDEX];

/// Where a model comes from.
enum Source {
    Folder(Box<Described>, WeightFiles),
    File(Box<GgufFile>),
}

impl Source {
    fn open(dir: &Path) -> Result<(Self, PolicyText)> {
        let has_config = dir.join(CONFIG).exists();
        let file = gguf::find(dir)?;
        let file = file.filter(|_| !has_config || WeightFiles::open(dir).is_err());
        if let Some(path) = file {
            let file = guarded(&path, || GgufFile::open(&path))?;
            let text = PolicyText::read_for(dir, file.vocab_size, file.end().as_ref())?;
            file.check_vocabulary(text.tokenizer())?;
            return Ok((Self::File(Box::new(file)), text));
        }
        let described = Described::load(dir)?;
        let weights = WeightFiles::open(dir)?;
        weights.check_types()?;
        let text = PolicyText::read_for(dir, described.vocab_size, described.end.as_ref())?;
        Ok((Self::Folder(Box::new(described), weights), text))
    }

    fn reach(&self) -> &Reach {
        match self {
            Self::Folder(described, _) => &described.reach,
            Self::File(file) => &file.reach,
        }
    }

    /// The files of the weights.
    fn files(&self) -> Vec<String> {
        let name = |path: &Path| {
            path.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        };
        match self {
            Self::Folder(_, weights) => weights.paths().filter_map(name).collect(),
            Self::File(file) => name(file.path()).into_iter().collect(),
        }
    }

    /// Refuses conversations that are longer than candle computes.
    fn check_context(&self, dir: &Path, context: usize) -> Result<()> {
        let Reach { positions, why, .. } = self.reach();
        match context > *positions {
            false => Ok(()),
            true => Err(Error::Unsupported {
                path: dir.to_owned(),
                message: format!(
                    "its conversations have at most {positions} ids ({why}), and those of the run may have {context}; set \
                     actor_rollout_ref.rollout.max_model_len={positions}"
                ),
            }),
        }
    }

    fn network(self, context: usize, device: &candle_core::Device) -> Result<Network> {
        match self {
            Self::File(file) => file.network(context, device),
            Self::Folder(described, weights) => {
                let tensors = tensors(weights, described.tied)?;
                let weights = VarBuilder::from_tensors(tensors, DType::F32, device);
                described.network(context, weights)
            }
        }
    }
}

/// A model and its text side.
pub struct ForeignPolicy {
    folder: PathBuf,
    text: PolicyText,
    device: candle_core::Device,
    /// Has run nothing.
    network: Network,
    reach: Reach,
}

impl std::fmt::Debug for ForeignPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ForeignPolicy({})", self.folder.display())
    }
}

impl ForeignPolicy {
    /// Checks whether a folder holds a model that [`ForeignPolicy::load`] could read for
    /// conversations of that many ids, without reading the numbers of its weights. Also its text
    /// side.
    ///
    /// # Errors
    /// What candle does not compute, a file that is missing or damaged, or files that do not belong
    /// together.
    pub fn check(dir: &Path, context: usize) -> Result<(ForeignModel, PolicyText)> {
        let (source, text) = Source::open(dir)?;
        source.check_context(dir, context)?;
        let beside = BESIDE.into_iter().chain(tokenizer::FILES);
        let beside = beside.filter(|name| dir.join(name).is_file());
        let (family, parameters) = match &source {
            Source::Folder(described, weights) => (described.name(), weights.parameters()),
            Source::File(file) => (file.architecture, file.parameters),
        };
        let found = ForeignModel {
            family,
            gguf: matches!(source, Source::File(_)),
            parameters,
            positions: source.reach().positions,
            files: beside.map(str::to_owned).chain(source.files()).collect(),
        };
        Ok((found, text))
    }

    /// Whether candle computes on `device`, before a model is fetched to be read there.
    ///
    /// # Errors
    /// Why it does not, and what to do.
    pub fn check_device(device: &Device) -> std::result::Result<(), String> {
        device.candle().map(drop)
    }

    /// Reads a folder to `device`, for conversations of at most `context` ids.
    ///
    /// # Errors
    /// Those of [`ForeignPolicy::check`]; a weight that is missing or of another shape; a model of
    /// shorter conversations; a device on which candle does not compute.
    pub fn load(dir: &Path, context: usize, device: &Device) -> Result<Self> {
        let device = device.candle().map_err(|message| Error::Candle {
            path: dir.to_owned(),
            message,
        })?;
        let (source, text) = Source::open(dir)?;
        source.check_context(dir, context)?;
        let mut reach = source.reach().clone();
        reach.positions = context;
        let network = guarded(dir, || source.network(context, &device))?;
        Ok(Self {
            folder: dir.to_owned(),
            text,
            device,
            network,
            reach,
        })
    }

    /// What the folder says of text.
    pub fn text(&self) -> &PolicyText {
        &self.text
    }

    /// A conversation in which nothing was said.
    pub fn begin(self: &Arc<Self>) -> Conversation {
        Conversation {
            policy: Arc::clone(self),
            network: self.network.clone(),
            run: Vec::new(),
        }
    }
}

/// A conversation, with what the network keeps of it.
pub struct Conversation {
    policy: Arc<ForeignPolicy>,
    network: Network,
    /// Ids that the network has run.
    run: Vec<u32>,
}

impl Conversation {
    /// The message behind `request.append`, which is the whole conversation; `sampled` says of each
    /// of its ids whether the policy said it in this conversation. `None` as soon as `wanted` is
    /// false.
    ///
    /// # Errors
    /// A request that no policy could answer, or candle's error.
    pub fn turn(
        &mut self,
        request: &GenerationRequest,
        sampled: &[bool],
        mut wanted: impl FnMut() -> bool,
    ) -> Result<Option<Generation>> {
        let known = request.append.as_slice();
        self.check(request, sampled)?;
        if self.run.len() >= known.len() || !known.starts_with(&self.run) {
            self.network = self.policy.network.clone();
            self.run.clear();
        }
        let mut logits = Vec::new();
        while self.run.len() < known.len() {
            if !wanted() {
                return Ok(None);
            }
            let at = self.run.len();
            let end = self.policy.reach.chunks.end(sampled, at);
            logits = self.append(&known[at..end])?;
        }
        let room = self.policy.reach.positions - known.len();
        let mut drawn: Vec<Drawn> = Vec::new();
        let finish = loop {
            let draw = Draw {
                sampling: &request.sampling,
                stream: &request.stream,
                turn: request.turn,
                token: drawn.len() as u32,
            };
            let next = draw.of(&logits);
            drawn.push(next);
            if request.stop_ids.contains(&next.id) {
                break FinishReason::Eos;
            }
            if drawn.len() >= request.tokens_max.min(room) {
                break FinishReason::Length;
            }
            if !wanted() {
                return Ok(None);
            }
            logits = self.append(&[next.id])?;
        };
        Ok(Some(Generation::of(request, &drawn, finish)))
    }

    fn check(&self, request: &GenerationRequest, sampled: &[bool]) -> Result<()> {
        let (known, positions) = (request.append.len(), self.policy.reach.positions);
        let vocabulary = self.policy.text.vocab_size();
        let outside = request.append.iter().find(|id| **id as usize >= vocabulary);
        let wrong = match outside {
            Some(id) => Some(format!("token id {id} is outside the vocabulary of {vocabulary}")),
            None if known == 0 || known != sampled.len() || request.tokens_max == 0 => Some(
                "needs at least one token before it, of each who said it, and tokens_max of at least 1".to_owned(),
            ),
            None if known >= positions => Some(format!("{known} tokens leave no room in {positions} positions")),
            None => request.sampling.check().err(),
        };
        match wrong {
            Some(message) => Err(Error::Request(format!("a turn: {message}"))),
            None => Ok(()),
        }
    }

    /// Runs the next ids; the logits behind the last one.
    fn append(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let failed = |message: String| Error::Candle {
            path: self.policy.folder.clone(),
            message,
        };
        let logits = self
            .network
            .run(ids, self.run.len(), &self.policy.device)
            .map_err(|e| failed(e.to_string()))?;
        let vocabulary = self.policy.text.vocab_size();
        if logits.len() != vocabulary || logits.iter().any(|logit| logit.is_nan()) {
            return Err(failed(format!(
                "behind {} ids it gives {} logits, some no numbers; {vocabulary} numbers were wanted",
                self.run.len() + ids.len(),
                logits.len(),
            )));
        }
        self.run.extend_from_slice(ids);
        Ok(logits)
    }
}

/// Runs candle's readers. Sizes that contradict each other make them overflow or divide by zero.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        Err(Error::Candle {
            path: path.to_owned(),
            message:
                "there is no network of these sizes; see the log above, and copy the model again"
                    .to_owned(),
        })
    })
}

/// All tensors of a folder, in f32, in the processor's memory.
fn tensors(mut weights: WeightFiles, tied: bool) -> Result<HashMap<String, Tensor>> {
    let names: Vec<String> = weights.names().map(str::to_owned).collect();
    let mut tensors = HashMap::new();
    for name in names {
        let Some(file) = weights.file_of(&name) else {
            continue;
        };
        let path = file.path().to_owned();
        let bad = |message: String| Error::Tensor {
            path: path.clone(),
            tensor: name.clone(),
            message,
        };
        let bytes = file.read(&name)?;
        let Some((dtype, shape)) = file.info(&name) else {
            continue;
        };
        let numbers = numbers(dtype, &bytes).map_err(bad)?;
        check_finite(&name, &numbers)?;
        let tensor = Tensor::from_vec(numbers, shape, &candle_core::Device::Cpu)
            .map_err(|e| bad(e.to_string()))?;
        tensors.insert(name, tensor);
    }
    if let Some(embedding) = tensors.get(EMBEDDING).filter(|_| tied).cloned() {
        tensors.entry(HEAD.to_owned()).or_insert(embedding);
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests;
