//! A model's parameters, by Hugging Face name. In memory every dense weight is
//! `[in, out]`, out-contiguous, because the products' fixed order of additions
//! needs it (`kernels::matmul`); files hold Hugging Face's `[out, in]`.

use crate::folder::names::{EMBEDDING, HEAD};
use crate::folder::names::{HEAD_BIAS, HEAD_WEIGHT};
use crate::folder::parameter::Parameter;
use crate::folder::parameter::is_dense;
use crate::folder::parameter::numbers;
use crate::folder::parameter::transpose;
use crate::folder::shards::{self, SHARD_BYTES_MAX};
use crate::folder::tensor_file::TensorFile;
use crate::folder::weight_files::WeightFiles;
use crate::parallel::{self, ComputeOptions};
use crate::spare::Spare;
use crate::{Dtype, Error, ModelConfig, Result};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Parameters of one model, immutable; numbers are shared, so a clone is cheap.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    parameters: BTreeMap<String, Parameter>,
    /// In which files hold them. In memory they are f32, and where this is bf16 each is one of bf16.
    dtype: Dtype,
}

/// Names and in-memory shapes of all parameters, in a fixed order.
pub fn parameter_shapes(config: &ModelConfig) -> BTreeMap<String, Vec<usize>> {
    let hidden = config.hidden_size;
    let inner = config.intermediate_size;
    let (queries, kv) = (config.query_width(), config.key_width());
    let mut shapes = BTreeMap::new();
    let mut add = |name: String, shape: &[usize]| shapes.insert(name, shape.to_vec());
    add(EMBEDDING.to_owned(), &[config.vocab_size, hidden]);
    for layer in 0..config.num_hidden_layers {
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        for (part, width) in [("q_proj", queries), ("k_proj", kv), ("v_proj", kv)] {
            add(at(&format!("self_attn.{part}.weight")), &[hidden, width]);
            if config.has_biases() {
                add(at(&format!("self_attn.{part}.bias")), &[width]);
            }
        }
        if config.norms_heads() {
            add(at("self_attn.q_norm.weight"), &[config.head_dim]);
            add(at("self_attn.k_norm.weight"), &[config.head_dim]);
        }
        add(at("self_attn.o_proj.weight"), &[queries, hidden]);
        add(at("mlp.gate_proj.weight"), &[hidden, inner]);
        add(at("mlp.up_proj.weight"), &[hidden, inner]);
        add(at("mlp.down_proj.weight"), &[inner, hidden]);
        add(at("input_layernorm.weight"), &[hidden]);
        add(at("post_attention_layernorm.weight"), &[hidden]);
    }
    add("model.norm.weight".to_owned(), &[hidden]);
    if config.value_head {
        add(HEAD_WEIGHT.to_owned(), &[1, hidden]);
        add(HEAD_BIAS.to_owned(), &[1]);
    } else if !config.tie_word_embeddings {
        add(HEAD.to_owned(), &[hidden, config.vocab_size]);
    }
    shapes
}

impl Weights {
    /// Wraps parameters that already have the in-memory layout.
    pub fn new(parameters: BTreeMap<String, Parameter>) -> Self {
        Weights {
            parameters,
            dtype: Dtype::F32,
        }
    }

    /// In which files hold them.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The same numbers, which files are to hold in f32.
    pub(crate) fn in_f32(self) -> Self {
        Self::new(self.parameters)
    }

    /// Each number rounded to the nearest of bf16, of two as near to the even one; files hold these.
    /// Memory that no clone shares is rounded in place.
    ///
    /// # Errors
    /// A number is not finite, or rounds to none that is.
    pub fn rounded(self, options: &ComputeOptions<'_>) -> Result<Self> {
        let parameters = self.parameters.into_iter();
        let all: Vec<_> = parameters
            .map(|(name, parameter)| (name, Mutex::new(parameter)))
            .collect();
        let whole = "no thread panics while it rounds";
        parallel::map(options, all.len(), |at| {
            let (name, parameter) = &all[at];
            parameter.lock().expect(whole).round(name)
        })?;
        let all = all.into_iter();
        Ok(Weights {
            parameters: all
                .map(|(name, parameter)| (name, parameter.into_inner().expect(whole)))
                .collect(),
            dtype: Dtype::Bf16,
        })
    }

    /// A parameter by its Hugging Face name.
    pub fn get(&self, name: &str) -> Option<&Parameter> {
        self.parameters.get(name)
    }

    /// All parameters in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Parameter)> {
        self.parameters
            .iter()
            .map(|(name, parameter)| (name.as_str(), parameter))
    }

    /// The number of parameters, as scalars.
    pub fn parameter_count(&self) -> usize {
        self.parameters.values().map(|p| p.numbers.len()).sum()
    }

    /// Replaces a parameter's numbers; clones made before keep the old ones.
    pub(crate) fn replace(&mut self, name: &str, update: impl FnOnce(&[f32]) -> Vec<f32>) {
        if let Some(parameter) = self.parameters.get_mut(name) {
            parameter.numbers = Arc::new(update(&parameter.numbers));
        }
    }

    /// Gives the memory of numbers that no clone holds to `spare`.
    pub(crate) fn give_memory_to(self, spare: &Spare) {
        let numbers = self.parameters.into_values().map(|p| p.numbers);
        numbers
            .filter_map(Arc::into_inner)
            .for_each(|numbers| spare.give(numbers));
    }

    /// Reads `model.safetensors`, or the shards that `model.safetensors.index.json`
    /// names, in f32, f16 or bf16, and checks names, shapes and numbers.
    pub fn load(dir: &Path, config: &ModelConfig) -> Result<Self> {
        let mut parameters = BTreeMap::new();
        let dtype = Self::read(dir, config, &mut |name, parameter| {
            parameters.insert(name, parameter);
        })?;
        Ok(Weights { parameters, dtype })
    }

    /// Reads one file of parameters of these shapes, which `source` gives; `missing` is said of one that
    /// the file lacks.
    pub(crate) fn load_one(
        path: PathBuf,
        mut shapes: BTreeMap<String, Vec<usize>>,
        source: &str,
        missing: &str,
    ) -> Result<Self> {
        let mut parameters = BTreeMap::new();
        let mut take = |name, parameter| drop(parameters.insert(name, parameter));
        let mut file = TensorFile::open(&path)?;
        read_tensors(&mut file, &mut shapes, source, &|_| false, &mut take)?;
        all_read(path, shapes, missing)?;
        Ok(Self::new(parameters))
    }

    /// Reads all that [`Weights::load`] would, one parameter in memory at a time.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn check(dir: &Path, config: &ModelConfig) -> Result<()> {
        Self::read(dir, config, &mut |_, _| ()).map(|_| ())
    }

    /// Gives each parameter that [`Weights::load`] would read to `take`, in no particular order, and
    /// returns bf16 where the files hold nothing else.
    fn read(
        dir: &Path,
        config: &ModelConfig,
        take: &mut dyn FnMut(String, Parameter),
    ) -> Result<Dtype> {
        let mut shapes = parameter_shapes(config);
        // The files of a tied model or a critic may hold a head that is not used.
        let skip = |name: &str| name == HEAD && (config.tie_word_embeddings || config.value_head);
        let mut files = WeightFiles::open(dir)?;
        if config.tie_word_embeddings && !config.value_head {
            check_tied(&mut files)?;
        }
        let mut files = files.into_files();
        for file in &mut files {
            read_tensors(file, &mut shapes, "config.json", &skip, take)?;
        }
        let last = files.last().map(|file| file.path().to_owned());
        all_read(last.unwrap_or_else(|| dir.to_owned()), shapes, "is missing")?;
        Ok(match files.iter().all(TensorFile::is_in_bf16) {
            true => Dtype::Bf16,
            false => Dtype::F32,
        })
    }

    /// Writes Hugging Face's layout; equal weights give equal bytes.
    pub fn save(&self, dir: &Path) -> Result<()> {
        self.save_as(dir, "model")
    }

    /// [`Weights::save`] with another stem than `model`.
    pub(crate) fn save_as(&self, dir: &Path, stem: &str) -> Result<()> {
        shards::save(dir, stem, (self.dtype, SHARD_BYTES_MAX), self.iter())
    }
}

/// Refuses a file, the last one of a model, where parameters are left that no file holds.
fn all_read(path: PathBuf, left: BTreeMap<String, Vec<usize>>, missing: &str) -> Result<()> {
    match left.into_keys().next() {
        None => Ok(()),
        Some(tensor) => Err(Error::Tensor {
            path,
            tensor,
            message: missing.to_owned(),
        }),
    }
}

/// Refuses a head that is not the embedding to which `config.json` ties it: `transformers` 5 takes
/// them apart, and older versions drop the head.
fn check_tied(files: &mut WeightFiles) -> Result<()> {
    let Some(path) = files.file_of(HEAD).map(|file| file.path().to_owned()) else {
        return Ok(());
    };
    let mut read = |tensor: &str| {
        let bad = |message| Error::Tensor {
            path: path.clone(),
            tensor: tensor.to_owned(),
            message,
        };
        let file = files
            .file_of(tensor)
            .ok_or_else(|| bad("is missing".to_owned()))?;
        let dtype = file.info(tensor).map(|(dtype, _)| dtype);
        let bytes = file.read(tensor)?;
        dtype.map_or(Ok(Vec::new()), |dtype| numbers(dtype, &bytes).map_err(bad))
    };
    match read(HEAD)? == read(EMBEDDING)? {
        true => Ok(()),
        false => Err(Error::Tensor {
            path,
            tensor: HEAD.to_owned(),
            message: format!(
                "differs from {EMBEDDING}, and config.json ties the two (tie_word_embeddings): write \
                 false there if the head counts, as transformers 5 takes it, or leave the tensor out"
            ),
        }),
    }
}

/// Gives a file's tensors to `take` and takes their names out of `shapes`, the in-memory shapes that
/// `source` gives. Unknown names, other shapes and numbers that are not finite are refused.
pub(crate) fn read_tensors(
    file: &mut TensorFile,
    shapes: &mut BTreeMap<String, Vec<usize>>,
    source: &str,
    skip: &dyn Fn(&str) -> bool,
    take: &mut dyn FnMut(String, Parameter),
) -> Result<()> {
    /// Tensors in memory at once that are yet to be given away.
    const AT_ONCE: usize = 4;
    let names = file.names().into_iter().filter(|name| !skip(name));
    let all: Vec<_> = names
        .map(|name| {
            let shape = shapes.remove(&name);
            (name, shape)
        })
        .collect();
    for some in all.chunks(AT_ONCE) {
        let read = some.par_iter().map(|(name, shape)| {
            let parameter = read_tensor(file, name, shape.as_ref(), source)?;
            Ok((name.clone(), parameter))
        });
        // Of several bad ones the first is named, whoever was faster.
        for read in read.collect::<Vec<Result<_>>>() {
            let (name, parameter) = read?;
            take(name, parameter);
        }
    }
    Ok(())
}

/// One tensor as a parameter of this in-memory shape, if there is such a parameter.
fn read_tensor(
    file: &TensorFile,
    name: &str,
    shape: Option<&Vec<usize>>,
    source: &str,
) -> Result<Parameter> {
    let bad = |message: String| Error::Tensor {
        path: file.path().to_owned(),
        tensor: name.to_owned(),
        message,
    };
    let Some((shape, (dtype, found))) = shape.zip(file.info(name)) else {
        return Err(bad(format!("is not a parameter of this {source}")));
    };
    let mut expected = shape.clone();
    if is_dense(name) {
        expected.reverse();
    }
    if found != expected {
        return Err(bad(format!(
            "has shape {found:?}, {source} gives {expected:?}"
        )));
    }
    let numbers = numbers(dtype, &file.read(name)?).map_err(bad)?;
    if let Some(at) = numbers.iter().position(|x| !x.is_finite()) {
        return Err(bad(format!("number {at} is {}, not finite", numbers[at])));
    }
    let numbers = match is_dense(name) {
        true => transpose(&numbers, expected[0], expected[1]),
        false => numbers,
    };
    Ok(Parameter::new(shape.clone(), numbers))
}
