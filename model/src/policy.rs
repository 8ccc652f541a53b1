//! A policy folder in Hugging Face's layout, loaded once and shared: immutable
//! weights and their sizes, the tokenizer and chat template that belong to them.

use crate::folder::names::HEAD_BIAS;
use crate::folder::names::HEAD_WEIGHT;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::compute::Network;
use crate::cpu::network::rope_table;
use crate::dtype::Dtype;
use crate::folder::weight_files::WeightFiles;
use crate::gpu::{self, Gpu};
use crate::policy_text::{END_KEY, PolicyText, no_template};
use crate::spare::Spare;
use crate::{
    Adapter, Chat, Device, Error, ModelConfig, Parameter, Result, TemplateSettings, Tokenizer,
    Weights, parallel::ComputeOptions,
};

/// An immutable policy; a clone shares everything.
#[derive(Debug, Clone)]
pub struct Policy {
    device: Device,
    config: Arc<ModelConfig>,
    /// With an adapter, its product is merged into them.
    weights: Weights,
    adapted: Option<Arc<Adapted>>,
    network: Arc<Network>,
    text: PolicyText,
}

/// An adapter and the weights without it.
#[derive(Debug)]
struct Adapted {
    adapter: Adapter,
    base: Weights,
}

impl Policy {
    /// Reads a policy folder.
    pub fn load(dir: &Path, device: &Device) -> Result<Self> {
        let policy = Self::load_any(dir, device)?;
        match policy.config.value_head {
            false => Ok(policy),
            true => Err(is_critic(dir)),
        }
    }

    /// Checks whether a folder holds a policy that [`Policy::load`] could read, without reading
    /// the numbers of its weights or its vocabulary.
    ///
    /// # Errors
    /// The errors of `load` for the config and the chat template, or a file that is missing or cut
    /// off.
    pub fn check(dir: &Path) -> Result<ModelConfig> {
        let config = ModelConfig::load(dir)?;
        if config.value_head {
            return Err(is_critic(dir));
        }
        crate::folder::files::open(&dir.join("tokenizer.json"))?;
        Chat::load(dir)?.ok_or_else(|| no_template(dir))?;
        WeightFiles::open(dir)?.check_types()?;
        Ok(config)
    }

    /// Reads a policy's folder or a critic's.
    pub(crate) fn load_any(dir: &Path, device: &Device) -> Result<Self> {
        let config = ModelConfig::load(dir)?;
        let text = PolicyText::read(dir, &config)?;
        let weights = Weights::load(dir, &config)?;
        Self::assemble((config, weights), text, device.clone())
    }

    /// A policy of new weights. Messages end with `config`'s `eos_token_id`.
    pub fn new(
        config: ModelConfig,
        weights: Weights,
        tokenizer: Tokenizer,
        chat: Chat,
    ) -> Result<Self> {
        let dir = Path::new("new policy");
        let ids = (config.vocab_size, config.raw(END_KEY));
        let text = PolicyText::of(ids, (tokenizer, chat), None, dir)?;
        Self::assemble((config, weights), text, Device::cpu())
    }

    fn assemble(
        (config, weights): (ModelConfig, Weights),
        text: PolicyText,
        device: Device,
    ) -> Result<Self> {
        let network = Network::new(&config, rope_table(&config), &weights, None, &device)?;
        Ok(Policy {
            device,
            config: Arc::new(config),
            weights,
            adapted: None,
            network: Arc::new(network),
            text,
        })
    }

    /// The same policy with other weights of the same shapes, and no adapter.
    pub(crate) fn with_weights(&self, weights: Weights) -> Result<Self> {
        let rope = Arc::clone(&self.network.host.rope);
        let network = Network::new(&self.config, rope, &weights, None, &self.device)?;
        Ok(Policy {
            weights,
            adapted: None,
            network: Arc::new(network),
            ..self.clone()
        })
    }

    /// The same base with `adapter`, which replaces any previous one.
    pub fn with_adapter(&self, adapter: Adapter) -> Result<Self> {
        let base = match &self.adapted {
            Some(adapted) => &adapted.base,
            None => &self.weights,
        };
        let weights = adapter.merge(base);
        let rope = Arc::clone(&self.network.host.rope);
        let network = Network::new(&self.config, rope, &weights, Some(&adapter), &self.device)?;
        // A base in bf16 and a product in f32 add up to f32.
        let config = match base.dtype() {
            Dtype::F32 => Arc::clone(&self.config),
            Dtype::Bf16 => Arc::new(self.config.saying(Dtype::F32)),
        };
        Ok(Policy {
            config,
            weights,
            adapted: Some(Arc::new(Adapted {
                adapter,
                base: base.clone(),
            })),
            network: Arc::new(network),
            ..self.clone()
        })
    }

    /// The same policy with float32, the dtype of saved weights, in its `config.json`.
    #[must_use]
    pub fn saying_float32(self) -> Self {
        Policy {
            config: Arc::new(self.config.saying(Dtype::F32)),
            ..self
        }
    }

    /// The same policy, whose folder holds f32 numbers.
    #[must_use]
    pub fn in_f32(self) -> Self {
        Policy {
            weights: self.weights.in_f32(),
            ..self
        }
    }

    /// The policy of the nearest numbers of bf16, which its folder holds in bf16. A trainer keeps f32
    /// numbers beside it, and gives it the nearest of those after each step. With an adapter that is
    /// the base; the adapter stays as it is.
    ///
    /// # Errors
    /// A number is beyond bf16, or a GPU has no room.
    pub fn rounded(self, options: &ComputeOptions<'_>) -> Result<Self> {
        let (rope, adapter) = (Arc::clone(&self.network.host.rope), self.adapter().cloned());
        let base = match &self.adapted {
            Some(adapted) => adapted.base.clone(),
            None => self.weights,
        };
        // The network shares the numbers, which are rounded in place if nothing else does.
        drop(self.network);
        let weights = base.rounded(options)?;
        let config = Arc::new(self.config.saying(Dtype::Bf16));
        let network = Network::new(&config, rope, &weights, None, &self.device)?;
        let policy = Policy {
            device: self.device,
            config,
            weights,
            adapted: None,
            network: Arc::new(network),
            text: self.text,
        };
        match adapter {
            Some(adapter) => policy.with_adapter(adapter),
            None => Ok(policy),
        }
    }

    /// The same policy with a template that is given these settings ([`Chat::with_settings`]).
    ///
    /// # Errors
    /// Settings that it has no use for.
    pub fn with_settings(self, settings: &TemplateSettings) -> Result<Self> {
        let text = self.text.with_settings(settings)?;
        Ok(Policy { text, ..self })
    }

    /// The same policy, computed on `device`.
    ///
    /// # Errors
    /// It does not fit there.
    pub fn on(&self, device: &Device) -> Result<Self> {
        if self.gpu().is_none()
            && device.gpu().is_none()
            && self.device.host_bf16() == device.host_bf16()
        {
            return Ok(self.clone());
        }
        let (rope, adapter) = (Arc::clone(&self.network.host.rope), self.adapter());
        let network = Network::new(&self.config, rope, &self.weights, adapter, device)?;
        Ok(Policy {
            device: device.clone(),
            network: Arc::new(network),
            ..self.clone()
        })
    }

    /// The adapter, if there is one.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapted.as_ref().map(|adapted| &adapted.adapter)
    }

    /// The parameters that training changes: the adapter's if there is one, else all.
    pub fn trained_weights(&self) -> &Weights {
        match self.adapter() {
            Some(adapter) => adapter.weights(),
            None => &self.weights,
        }
    }

    /// Names and in-memory shapes of the parameters that training changes.
    pub(crate) fn trained_shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let trained = self.trained_weights().iter();
        trained
            .map(|(name, parameter)| (name.to_owned(), parameter.shape().to_vec()))
            .collect()
    }

    /// The same policy with other numbers in the parameters that training changes.
    pub(crate) fn with_trained(&self, weights: Weights) -> Result<Self> {
        match self.adapter() {
            Some(adapter) => self.with_adapter(adapter.with_weights(weights)),
            None => self.with_weights(weights),
        }
    }

    /// The same policy with the numbers that were fetched from the GPU, whose network already has
    /// them.
    pub(crate) fn with_fetched(&self, weights: Weights) -> Result<Self> {
        let here = Policy {
            device: Device::cpu(),
            ..self.clone()
        };
        let mut policy = here.with_trained(weights)?;
        policy.device = self.device.clone();
        Arc::make_mut(&mut policy.network).take_from_gpu(&self.network);
        Ok(policy)
    }

    /// Makes the network on the GPU take over what was trained there. Of the CPU's
    /// numbers only those that it computes with itself are updated: a critic's head.
    pub(crate) fn renew_on_gpu(&mut self, trained: &gpu::Trained) -> Result<()> {
        Arc::make_mut(&mut self.network).renew_on_gpu(trained)?;
        let heads = [HEAD_WEIGHT, HEAD_BIAS];
        trained.fetch(&mut self.weights, |name| heads.contains(&name))
    }

    /// The dense weights that an adapter is added to, without it, by module.
    pub(crate) fn adapted_bases(&self) -> impl Iterator<Item = (&str, &Parameter)> {
        let adapted = self.adapted.iter();
        let modules = adapted.flat_map(|adapted| adapted.adapter.adapted(&adapted.base));
        modules.map(|(module, parameter, _)| (module, parameter))
    }

    /// Drops the trained parameters; memory that is not shared goes to `spare`, for later
    /// gradients.
    pub(crate) fn give_memory_to(self, spare: &Spare) {
        let Policy {
            weights,
            adapted,
            network,
            ..
        } = self;
        drop(network);
        match adapted.map(Arc::into_inner) {
            None => weights.give_memory_to(spare),
            Some(adapted) => {
                let weights = adapted.map(|adapted| adapted.adapter.into_weights());
                weights.into_iter().for_each(|w| w.give_memory_to(spare));
            }
        }
    }

    /// The same tokenizer and template with another model.
    pub(crate) fn with_config(&self, config: ModelConfig, weights: Weights) -> Result<Self> {
        let rope = Arc::clone(&self.network.host.rope);
        let network = Network::new(&config, rope, &weights, None, &self.device)?;
        Ok(Policy {
            config: Arc::new(config),
            weights,
            adapted: None,
            network: Arc::new(network),
            ..self.clone()
        })
    }

    /// Writes the folder in Hugging Face's layout, an adapter's product merged into
    /// the weights. Equal policies give equal bytes.
    pub fn save(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let config = dir.join("config.json");
        std::fs::write(&config, self.config.to_text()).map_err(Error::io(&config))?;
        self.text.save(dir)?;
        self.weights.save(dir)
    }

    /// What the folder says of text.
    pub fn text(&self) -> &PolicyText {
        &self.text
    }

    /// The tokenizer of the folder.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.text.tokenizer()
    }

    /// The chat template of the folder.
    pub fn chat(&self) -> &Chat {
        self.text.chat()
    }

    /// The model's sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The parameters.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Ids that end the policy's message.
    pub fn eos_ids(&self) -> &[u32] {
        self.text.eos_ids()
    }

    /// The number of parameters, as scalars.
    pub fn parameter_count(&self) -> usize {
        self.weights.parameter_count()
    }

    /// The GPU that computes it, if one does.
    pub(crate) fn gpu(&self) -> Option<&Gpu> {
        self.device.gpu()
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }
}

fn is_critic(dir: &Path) -> Error {
    Error::Unsupported {
        path: dir.join("config.json"),
        message: "is a critic's: it gives values and cannot generate".to_owned(),
    }
}
