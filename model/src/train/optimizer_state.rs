//! What the next optimizer step needs beside the model, in memory or in files.

use std::path::Path;

use crate::cpu::adamw::{self, AdamWState};
use crate::folder::shards;
use crate::folder::tensor_file::{self, Entries};
use crate::{Dtype, Error, Policy, Result, Weights};

/// File of the f32 numbers behind a policy in bf16.
const MASTER: &str = "master.safetensors";

/// AdamW's moments and step count, and of a model in bf16 the f32 numbers that steps change.
#[derive(Debug)]
pub struct OptimizerState {
    pub(crate) moments: AdamWState,
    pub(crate) master: Option<Weights>,
}

impl OptimizerState {
    /// The state before the first step of a model.
    pub(crate) fn new(model: &Policy) -> Self {
        let own = model.trained_weights();
        OptimizerState {
            moments: AdamWState::new(model.trained_shapes()),
            master: (own.dtype() == Dtype::Bf16).then(|| own.clone().in_f32()),
        }
    }

    /// Reads what [`OptimizerState::save`] wrote for such a model.
    pub(crate) fn load(model: &Policy, dir: &Path) -> Result<Self> {
        let moments = AdamWState::load(dir, model.trained_shapes())?;
        let file = dir.join(MASTER);
        let master = match (model.trained_weights().dtype(), file.exists()) {
            (Dtype::Bf16, _) => Some(Weights::load_one(
                file,
                model.trained_shapes(),
                "policy",
                "is missing",
            )?),
            (Dtype::F32, false) => None,
            (Dtype::F32, true) => {
                return Err(Error::Unsupported {
                    path: file,
                    message: "belongs to a policy in bf16, and this one is trained in f32"
                        .to_owned(),
                });
            }
        };
        Ok(OptimizerState { moments, master })
    }

    /// Refuses the state of another model.
    pub(crate) fn check(self, model: &Policy) -> Result<Self> {
        let is_rounded = model.trained_weights().dtype() == Dtype::Bf16;
        match self.moments.is_of(&model.trained_shapes()) && self.master.is_some() == is_rounded {
            true => Ok(self),
            false => Err(Error::Request(
                "an optimizer state in memory is another model's".to_owned(),
            )),
        }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let master = self.master.iter().flat_map(Weights::iter);
        let master: usize = master.map(|(_, p)| size_of_val(p.numbers())).sum();
        self.moments.bytes() + master
    }

    /// Writes `state.safetensors` into a folder, and `master.safetensors` where the model is in bf16.
    ///
    /// # Errors
    /// The files cannot be written, or a number is not finite.
    pub fn save(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        self.files(|name, entries, metadata| tensor_file::save(&dir.join(name), entries, metadata))
    }

    /// Gives the bytes of each file that [`OptimizerState::save`] writes to `take`, in order, with the
    /// file's name.
    ///
    /// # Errors
    /// A number is not finite.
    pub fn each_piece(&self, mut take: impl FnMut(&'static str, &[u8])) -> Result<()> {
        self.files(|name, entries, metadata| {
            tensor_file::each_piece(entries, metadata, |piece| take(name, piece));
            Ok(())
        })
    }

    fn files(
        &self,
        mut each: impl FnMut(&'static str, &Entries<'_>, &[(&str, String)]) -> Result<()>,
    ) -> Result<()> {
        let (entries, metadata) = self.moments.entries()?;
        each(adamw::FILE, &entries, &metadata)?;
        let Some(master) = &self.master else {
            return Ok(());
        };
        let entries = shards::entries(master.iter(), Dtype::F32)?;
        each(MASTER, &entries, &shards::metadata())
    }
}
