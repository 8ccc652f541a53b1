//! A model's folder written again for other programs: weights in another number format or in
//! smaller files, one tensor in memory at a time.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use half::bf16;

use crate::dtype::Dtype;
use crate::folder::names::{CONFIG, INDEX};
use crate::folder::parameter::numbers;
use crate::folder::shards;
use crate::folder::tensor_file::{self, Listed};
use crate::folder::weight_files::WeightFiles;
use crate::{Error, ModelConfig, Result};

/// How the weights of a folder are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The format of their numbers; in bf16 each is rounded to the nearest, of two as near to the
    /// even one.
    pub dtype: Dtype,
    /// Most bytes of a file; a larger tensor has a file of its own.
    pub shard_bytes_max: usize,
}

impl Layout {
    /// Writes the model's folder `from` into the folder `to`, which is made if it is missing. Its
    /// `config.json` names the format; files other than that and the weights are copied.
    ///
    /// # Errors
    /// The folder is damaged, a number is beyond bf16, or `to` cannot be written.
    pub fn write(&self, from: &Path, to: &Path) -> Result<()> {
        let config = ModelConfig::load(from)?.saying(self.dtype);
        let mut files = WeightFiles::open(from)?;
        std::fs::create_dir_all(to).map_err(Error::io(to))?;
        for entry in std::fs::read_dir(from).map_err(Error::io(from))? {
            let entry = entry.map_err(Error::io(from))?;
            let name = entry.file_name();
            let own = name.to_string_lossy();
            let written = own == CONFIG || own == INDEX || own.ends_with(".safetensors");
            if entry.path().is_file() && !written {
                let copy = to.join(&name);
                std::fs::copy(entry.path(), &copy).map_err(Error::io(&copy))?;
            }
        }
        let path = to.join(CONFIG);
        std::fs::write(&path, config.to_text()).map_err(Error::io(&path))?;
        self.write_weights(&mut files, to)
    }

    fn write_weights(&self, files: &mut WeightFiles, to: &Path) -> Result<()> {
        let names: Vec<String> = files.names().map(str::to_owned).collect();
        let mut tensors = Vec::new();
        for name in names {
            let file = files.file_of(&name);
            let shape = file.and_then(|file| Some(file.info(&name)?.1.to_vec()));
            tensors.push((name, shape.unwrap_or_default()));
        }
        write_tensors(to, *self, tensors, &mut |path, tensor, out| {
            let bytes = self.bytes(files, tensor)?;
            out.write_all(&bytes).map_err(Error::io(path))
        })?;
        Ok(())
    }

    /// The bytes of a tensor in this format.
    fn bytes(&self, files: &mut WeightFiles, tensor: &str) -> Result<Vec<u8>> {
        let Some(file) = files.file_of(tensor) else {
            return Ok(Vec::new());
        };
        let bytes = file.read(tensor)?;
        let bad = |message: String| Error::Tensor {
            path: file.path().to_owned(),
            tensor: tensor.to_owned(),
            message,
        };
        let found = match file.info(tensor) {
            Some((dtype, _)) => numbers(dtype, &bytes).map_err(bad)?,
            None => Vec::new(),
        };
        encoded(self.dtype, &found).map_err(bad)
    }
}

/// Writes the bytes of the tensor of a name; the path is that of its file.
pub(crate) type TensorWriter<'a> = dyn FnMut(&Path, &str, &mut BufWriter<File>) -> Result<()> + 'a;

/// Writes the weights of a folder: tensors of these names, sorted, and shapes, of which `data` writes the bytes.
/// Gives how many bytes they have.
pub(crate) fn write_tensors(
    to: &Path,
    layout: Layout,
    tensors: Vec<(String, Vec<usize>)>,
    data: &mut TensorWriter<'_>,
) -> Result<u64> {
    let listed = tensors.into_iter().map(|(name, shape)| Listed {
        dtype: layout.dtype.in_files(),
        bytes: shape.iter().product::<usize>() * layout.dtype.bytes(),
        name,
        shape,
    });
    let listed: Vec<Listed> = listed.collect();
    let sizes: Vec<_> = listed.iter().map(|t| (t.name.as_str(), t.bytes)).collect();
    let format = [("format", "pt".to_owned())];
    shards::write(
        (to, "model"),
        &sizes,
        layout.shard_bytes_max,
        |path, shard| {
            tensor_file::write(path, &listed[shard], &format, |tensor, out| {
                data(path, &tensor.name, out)
            })
        },
    )?;
    Ok(listed.iter().map(|tensor| tensor.bytes as u64).sum())
}

/// The bytes of numbers in a format.
pub(crate) fn encoded(dtype: Dtype, numbers: &[f32]) -> Result<Vec<u8>, String> {
    if dtype == Dtype::F32 {
        return Ok(numbers.iter().flat_map(|x| x.to_le_bytes()).collect());
    }
    let rounded: Vec<bf16> = numbers.iter().map(|&x| bf16::from_f32(x)).collect();
    match rounded.iter().position(|x| !x.is_finite()) {
        None => Ok(rounded.into_iter().flat_map(bf16::to_le_bytes).collect()),
        Some(at) => Err(format!(
            "number {at} is {}, which is beyond bf16; write f32 (--dtype f32)",
            numbers[at]
        )),
    }
}
